import { type ChildProcess, spawn } from "node:child_process";
import type { Command } from "../entry.ts";
import type { LaunchEvent } from "../job.ts";
import { LineSplitter } from "../output/lines.ts";
import { sendSignal } from "../ranks/process-table.ts";
import { type AgentHeader, encodeHeader, encodeSignal } from "./agent-stdin.ts";
import type { AgentExit } from "./ssh.ts";

/** An event of an agent has a line of output of 1 MiB at most, or a report; both grow as JSON. */
const MAX_EVENT_BYTES = 16_777_216;
/** A connection that ssh shares with later ones (ControlPersist) keeps its stderr open for longer. */
const DRAIN_TIMEOUT_MS = 1000;
/** Lines that ssh, and the shell there, may write before the agent is there. */
const MAX_EARLY_LINES = 100;

/** What the launcher does about an agent. */
export interface ChannelEvents {
  readonly onEvent: (event: LaunchEvent) => void;
  /** A line that is no event: of ssh, of the shell there, of an agent that could not begin. */
  readonly onText: (line: string) => void;
  readonly onEnded: (channel: Channel) => void;
}

/** One agent, and the connection to it: its standard input and output, through ssh. */
export class Channel {
  readonly #child: ChildProcess;
  readonly #events: ChannelEvents;
  readonly #earlyLines: string[] = [];
  #isReady = false;
  #hasEnded = false;
  #spawnError: string | undefined;
  /** Whether the agent has reported the end of its job. */
  hasResult = false;

  constructor(command: Command, header: AgentHeader, { cwd, events }: { cwd: string; events: ChannelEvents }) {
    this.#events = events;
    // In a group of its own: Ctrl-C is this process's to pass on.
    this.#child = spawn(command.program, command.args, { cwd, detached: true, stdio: ["pipe", "pipe", "pipe"] });
    const { stdin, stdout, stderr } = this.#child;
    const stdoutSplitter = new LineSplitter((_, text) => this.#receiveStdout(text), MAX_EVENT_BYTES);
    const stderrSplitter = new LineSplitter((_, text) => this.#receiveText(text));
    stdin?.on("error", () => {});
    stdout?.on("data", (chunk: Buffer) => stdoutSplitter.push(chunk));
    stderr?.on("data", (chunk: Buffer) => stderrSplitter.push(chunk));
    const onEnd = (): void => {
      if (this.#hasEnded) return;
      this.#hasEnded = true;
      stdoutSplitter.end();
      stderrSplitter.end();
      for (const stream of [stdin, stdout, stderr]) stream?.destroy();
      events.onEnded(this);
    };
    this.#child.on("error", (error: NodeJS.ErrnoException) => {
      this.#spawnError ??= error.code ?? error.message;
      if (this.#child.pid === undefined) onEnd();
    });
    this.#child.on("exit", () => setTimeout(onEnd, DRAIN_TIMEOUT_MS).unref());
    this.#child.on("close", onEnd);
    stdin?.write(encodeHeader(header));
  }

  /** Whether the agent runs: until then what comes is ssh's. */
  get isReady(): boolean {
    return this.#isReady;
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  get exit(): AgentExit {
    const { exitCode: code, signalCode: signal } = this.#child;
    return { code, signal, stderr: this.#earlyLines, spawnError: this.#spawnError };
  }

  /** The agent receives it as if its process did. */
  signal(name: NodeJS.Signals): void {
    if (!this.#hasEnded) this.#child.stdin?.write(encodeSignal(name));
  }

  /** Ends the connection, and with it the agent, which need not be reachable any more. */
  kill(): void {
    const { pid } = this.#child;
    if (this.#hasEnded || pid === undefined) return;
    this.#child.stdin?.destroy();
    sendSignal(-pid, "SIGKILL");
  }

  #receiveStdout(line: string): void {
    const event = decodeEvent(line);
    if (event === undefined) return this.#receiveText(line);
    if (event === "agent") {
      this.#isReady = true;
      for (const earlyLine of this.#earlyLines.splice(0)) this.#events.onText(earlyLine);
      return;
    }
    if (event.type === "end") this.hasResult = true;
    this.#events.onEvent(event);
  }

  #receiveText(line: string): void {
    if (this.#isReady) this.#events.onText(line);
    else if (this.#earlyLines.length < MAX_EARLY_LINES) this.#earlyLines.push(line);
  }
}

/** An event as `createJsonConsole` writes it; `agent` is the first; undefined for any other text. */
function decodeEvent(line: string): LaunchEvent | "agent" | undefined {
  if (!line.startsWith("{")) return undefined;
  try {
    const { event, msg, ...fields } = JSON.parse(line) as Record<string, unknown>;
    if (typeof msg === "string" && typeof fields.rank === "number")
      return { type: "line", kind: "line", text: msg, ...fields } as unknown as LaunchEvent;
    if (event === "agent") return event;
    return typeof event === "string" ? ({ type: event, ...fields } as unknown as LaunchEvent) : undefined;
  } catch {
    return undefined;
  }
}
