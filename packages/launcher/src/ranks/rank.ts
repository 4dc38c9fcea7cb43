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

/** What one rank needs to start. */
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
  /** Called the moment the process is gone, before its output is drained. */
  readonly onExit: (rank: Rank) => void;
}

/** How many of its last stderr lines a report shows when the rank threw nothing. */
const MAX_TAIL_LINES = 30;
/** After a rank's exit, output that is held open but silent for this long is held by a process it left behind. */
const DRAIN_IDLE_MS = 200;
/** Processes that it left behind may write output for at most this long. */
const MAX_DRAIN_MS = 2000;

/** One rank: a process that leads a group of its own, its output, and how it ended. */
export class Rank {
  readonly rank: number;
  readonly local: number;
  /** 0 when the system could not start it. */
  readonly pid: number;
  /** Resolves when the process is gone, its output is read to the end, and its group is empty. */
  readonly completed: Promise<void>;
  readonly #options: RankOptions;
  readonly #child: ChildProcess;
  readonly #startedAt = Date.now();
  readonly #stderrTail: string[] = [];
  /** The first lines of Node's print of what it threw. */
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
    // detached: a group and session of its own, so that a terminal's Ctrl-C reaches the launcher alone, and one signal
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

  /** Whether it ended of its own accord with anything but 0. */
  get hasFailed(): boolean {
    return this.#exit !== undefined && this.#stoppedAt === undefined && this.#exit.code !== 0;
  }

  /** Whether it ended of its own accord with 0. */
  get hasSucceeded(): boolean {
    return this.#exit !== undefined && this.#stoppedAt === undefined && this.#exit.code === 0;
  }

  /** Signals the rank alone: its children are its own to end. */
  signal(signal: NodeJS.Signals): void {
    if (this.isRunning && this.pid > 0) sendSignal(this.pid, signal);
  }

  /** Records that it is signalled to end. */
  markStopped(): void {
    if (this.isRunning) this.#stoppedAt ??= Date.now();
  }

  /** Ends the rank and all that shares its group. */
  kill(): void {
    if (this.isRunning) {
      this.#stoppedAt ??= Date.now();
      this.#isKilled = true;
    }
    if (this.pid > 0) sendSignal(-this.pid, "SIGKILL");
  }

  /** What is known of it; call when done. */
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

  /** Readers are attached in the tick of the spawn: Node discards unread output when a child exits. */
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
      log.write(name, bytes);
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
        // Before Node's print, a line without end is one.
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
        // The system answers ENOENT for a missing directory, too, and Node names the program for it.
        const { cwd, command } = this.#options;
        const missingDirectoryText = existsSync(cwd) ? "" : ` (the working directory ${cwd} has been deleted)`;
        this.#stderrTail.push(`cannot start ${command.program}: ${error.message}${missingDirectoryText}`);
        recordExit(CANNOT_EXECUTE_EXIT_CODE, null);
      });
    });
  }

  /** Reads what the rank still had to report, then ends whatever it left in its group. */
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

  /** True when `finished` comes, false when nothing more has come for a while. */
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

  // Where the system has no descriptors left, Node gives a child without any streams, whatever its types state.

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
