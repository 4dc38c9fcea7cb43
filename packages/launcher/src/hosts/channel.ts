import { type ChildProcess, spawn } from "node:child_process";
import type { Command } from "../entry.ts";
import type { LaunchEvent } from "../job.ts";
import { LineSplitter } from "../output/lines.ts";
import { sendSignal } from "../ranks/process-table.ts";
import { type AgentHeader, encodeHeader, encodeSignal } from "./agent-stdin.ts";
import type { AgentExit } from "./ssh.ts";

/** Maximum size of an event. It contains an output line of at most 1 MiB or a report, whose JSON text is longer. */
const MAX_EVENT_BYTES = 16_777_216;
/**
 * Time for reading the rest of the output after ssh has exited. A shared connection (ControlPersist) keeps stderr open
 * for longer.
 */
const DRAIN_TIMEOUT_MS = 1000;
/** Maximum number of kept lines that ssh and the remote shell write before the agent has started. */
const MAX_EARLY_LINES = 100;

/** Callbacks of the launcher for one agent. */
export interface ChannelCallbacks {
  readonly onEvent: (event: LaunchEvent) => void;
  /** Called with a line that is not an event: from ssh, the remote shell, or an agent that could not start. */
  readonly onText: (line: string) => void;
  readonly onEnded: (channel: Channel) => void;
}

/** One agent and the connection to its standard input and output, through ssh. */
export class Channel {
  readonly #child: ChildProcess;
  readonly #events: ChannelCallbacks;
  readonly #earlyLines: string[] = [];
  #isReady = false;
  #hasEnded = false;
  #spawnError: string | undefined;
  /** Whether the agent has reported the end of its job. */
  hasResult = false;

  constructor(command: Command, header: AgentHeader, { cwd, events }: { cwd: string; events: ChannelCallbacks }) {
    this.#events = events;
    // In a separate process group, because this process forwards Ctrl-C itself.
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

  /** Whether the agent has started. Output before that is from ssh. */
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

  /** Sends a signal to the agent, which handles it as if its process had received it. */
  signal(name: NodeJS.Signals): void {
    if (!this.#hasEnded) this.#child.stdin?.write(encodeSignal(name));
  }

  /** Closes the connection, even if the agent is not reachable any more. The agent exits when it detects the end. */
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

/**
 * Decodes an event that `createJsonConsole` has written. Returns "agent" for the first event, undefined for any other
 * text.
 */
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
