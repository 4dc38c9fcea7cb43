import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { Readable } from "node:stream";
import type { Command } from "../entry.ts";
import type { StreamName, EventListener } from "../job.ts";
import { LineSplitter, UncaughtFilter } from "../output/lines.ts";
import type { RankLog } from "../output/rank-log.ts";
import type { RankRecord } from "../report/diagnose.ts";
import { type ErrorRecord, parseErrorRecord } from "../report/error-record.ts";
import { CANNOT_EXECUTE_EXIT_CODE } from "../report/hints.ts";
import { sendSignal } from "./process-table.ts";

/** Options for starting one rank. */
export interface RankOptions {
  readonly rank: number;
  readonly local: number;
  readonly attempt: number;
  readonly runId: string;
  readonly command: Command;
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly log: RankLog;
  readonly emit: EventListener;
  /** Called as soon as the process has exited, before its output is drained. */
  readonly onExit: (rank: Rank) => void;
}

/** Maximum number of stderr lines in a report if the rank threw no error. */
const MAX_TAIL_LINES = 30;
/**
 * Time without output after a rank's exit, after which an open stream is attributed to a process that the rank left
 * behind.
 */
const DRAIN_IDLE_MS = 200;
/** Maximum time for which processes that a rank left behind may write output. */
const MAX_DRAIN_MS = 2000;

/** One rank: its process, which leads a separate process group, its output, and its exit. */
export class Rank {
  readonly rank: number;
  readonly local: number;
  /** 0 if the system could not start the process. */
  readonly pid: number;
  /** Resolves when the process has exited, its output has been read to the end, and its process group is empty. */
  readonly completed: Promise<void>;
  readonly #options: RankOptions;
  readonly #child: ChildProcess;
  readonly #startedAt = Date.now();
  readonly #stderrTail: string[] = [];
  /** The first lines of the uncaught error as printed by Node. */
  readonly #uncaughtLines: string[] = [];
  #exit: { code: number | null; signal: NodeJS.Signals | null; exitedAt: number } | undefined;
  #stoppedAt: number | undefined;
  #isKilled = false;

  /** Starts the process. */
  constructor(options: RankOptions) {
    this.#options = options;
    this.rank = options.rank;
    this.local = options.local;
    const { program, args } = options.command;
    // detached: a separate group and session, so that a terminal's Ctrl-C reaches only the launcher, and one signal
    // ends the rank with its children. fd 3 is the parent pipe of preload.ts.
    this.#child = spawn(program, args, {
      cwd: options.cwd,
      env: { ...options.env, MOSAIC_PARENT_PIPE_FD: "3" },
      detached: true,
      stdio: ["ignore", "pipe", "pipe", "pipe"],
    });
    this.pid = this.#child.pid ?? 0;
    this.#parentPipe?.on("error", () => {});
    const outputClosePromise = Promise.all([this.#readStream("stdout"), this.#readStream("stderr")]);
    this.completed = this.#waitForExit().then(() => this.#drainOutput(outputClosePromise));
  }

  get isRunning(): boolean {
    return this.#exit === undefined;
  }

  /** Whether the rank exited by itself with a code other than 0 or by a signal. */
  get hasFailed(): boolean {
    return this.#exit !== undefined && this.#stoppedAt === undefined && this.#exit.code !== 0;
  }

  /** Whether the rank exited by itself with 0. */
  get hasSucceeded(): boolean {
    return this.#exit !== undefined && this.#stoppedAt === undefined && this.#exit.code === 0;
  }

  /** Signals only the rank's process, which is responsible for its children. */
  signal(signal: NodeJS.Signals): void {
    if (this.isRunning && this.pid > 0) sendSignal(this.pid, signal);
  }

  /** Records that the rank is signalled to end. */
  markStopped(): void {
    if (this.isRunning) this.#stoppedAt ??= Date.now();
  }

  /** Kills the rank and all processes of its group. */
  kill(): void {
    if (this.isRunning) {
      this.#stoppedAt ??= Date.now();
      this.#isKilled = true;
    }
    if (this.pid > 0) sendSignal(-this.pid, "SIGKILL");
  }

  /** Returns the record of the rank. Call it after `completed`. */
  record(): RankRecord {
    const { code = null, signal = null, exitedAt: at = Date.now() } = this.#exit ?? {};
    const { rank, local, pid } = this;
    const log = this.#options.log.path("stderr");
    return {
      ...{ rank, local, pid, code, signal, log },
      startedAt: this.#startedAt,
      exitedAt: at,
      stoppedAt: this.#stoppedAt,
      isKilled: this.#isKilled,
      thrown: readErrorRecord(this.#options.log.errorFile),
      stderrTail: this.#stderrTail,
      uncaught: this.#uncaughtLines,
    };
  }

  /** Attaches the reader of a stream, in the same tick as the spawn: Node discards unread output when a child exits. */
  #readStream(name: StreamName): Promise<void> {
    const { rank, attempt, log, emit, runId } = this.#options;
    let isUncaughtPrint = false;
    const lines = new LineSplitter((kind, text) => {
      if (name === "stderr" && kind === "line" && this.#stderrTail.push(text) > MAX_TAIL_LINES)
        this.#stderrTail.shift();
      if (isUncaughtPrint && kind === "line" && this.#uncaughtLines.length < MAX_TAIL_LINES)
        this.#uncaughtLines.push(text);
      emit({ type: "line", rank, attempt, stream: name, kind, text, ...(isUncaughtPrint ? { uncaught: true } : {}) });
    });
    const writeOutput = (bytes: Buffer): void => {
      if (bytes.length === 0) return;
      const logError = log.write(name, bytes);
      if (logError !== undefined)
        emit({ type: "log-failed", rank, attempt, log: log.path(name), reason: logError.message });
      lines.push(bytes);
    };
    const filter = new UncaughtFilter(runId);
    const stream = this.#child[name];
    return new Promise((resolve) => {
      if (!stream) return resolve();
      stream.on("data", (chunk: Buffer) => {
        const { precedingBytes, uncaughtBytes } = filter.push(chunk);
        writeOutput(precedingBytes);
        if (uncaughtBytes === undefined) return;
        // The marker ends an incomplete line.
        if (!isUncaughtPrint) lines.end();
        isUncaughtPrint = true;
        writeOutput(uncaughtBytes);
      });
      stream.on("error", () => {});
      stream.on("close", () => {
        writeOutput(filter.end());
        lines.end();
        resolve();
      });
    });
  }

  #waitForExit(): Promise<void> {
    return new Promise((resolve) => {
      const recordExit = (code: number | null, signal: NodeJS.Signals | null): void => {
        if (this.#exit !== undefined) return;
        this.#exit = { code, signal, exitedAt: Date.now() };
        const { rank, pid } = this;
        const afterMs = this.#exit.exitedAt - this.#startedAt;
        this.#options.emit({ type: "exit", attempt: this.#options.attempt, rank, pid, code, signal, afterMs });
        this.#options.onExit(this);
        resolve();
      };
      this.#child.on("exit", recordExit);
      this.#child.on("error", (error) => {
        if (this.#child.pid !== undefined) return;
        // ENOENT is also returned for a missing working directory, and Node's message names only the program.
        const { cwd, command } = this.#options;
        const missingDirectoryText = existsSync(cwd) ? "" : ` (the working directory ${cwd} has been deleted)`;
        this.#stderrTail.push(`cannot start ${command.program}: ${error.message}${missingDirectoryText}`);
        recordExit(CANNOT_EXECUTE_EXIT_CODE, null);
      });
    });
  }

  /** Reads the remaining output of the rank, then kills the processes that are left in its group. */
  async #drainOutput(outputClosePromise: Promise<unknown>): Promise<void> {
    const finishedPromise = outputClosePromise.then(() => true);
    if (!(await this.#waitUntilIdle(finishedPromise))) {
      this.kill();
      if (!(await this.#waitUntilIdle(finishedPromise))) for (const stream of this.#outputs()) stream.destroy();
      await outputClosePromise;
    }
    this.kill();
    this.#parentPipe?.destroy();
    this.#options.log.close();
  }

  /**
   * Resolves to true when `finishedPromise` resolves, or to false after a time without output or the maximum drain
   * time.
   */
  async #waitUntilIdle(finishedPromise: Promise<boolean>): Promise<boolean> {
    const outputs = this.#outputs();
    let onData = (): void => {};
    const timers: NodeJS.Timeout[] = [];
    const idleTimeout = new Promise<boolean>((resolve) => {
      const idleTimer = setTimeout(() => resolve(false), DRAIN_IDLE_MS);
      timers.push(
        idleTimer,
        setTimeout(() => resolve(false), MAX_DRAIN_MS),
      );
      onData = () => idleTimer.refresh();
    });
    for (const stream of outputs) stream.on("data", onData);
    const result = await Promise.race([finishedPromise, idleTimeout]);
    for (const timer of timers) clearTimeout(timer);
    for (const stream of outputs) stream.off("data", onData);
    return result;
  }

  // If no file descriptors are left, Node returns a child without streams, contrary to its types.

  get #parentPipe(): Readable | undefined {
    return (this.#child.stdio as ChildProcess["stdio"] | undefined)?.[3] as Readable | undefined;
  }

  #outputs(): readonly Readable[] {
    return [this.#child.stdout, this.#child.stderr].filter((stream) => stream instanceof Readable);
  }
}

function readErrorRecord(path: string): ErrorRecord | undefined {
  try {
    return parseErrorRecord(readFileSync(path, "utf8"));
  } catch {
    return undefined;
  }
}
