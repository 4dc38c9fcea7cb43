import type { LaunchEvent, LineEvent } from "../job.ts";
import { failureLines, lostNodeLines } from "../report/failure-text.ts";
import type { OutputSink } from "./sink.ts";

/** Format of the console output, on a terminal or another stream. */
export interface TextStyle {
  readonly shownRanks: ReadonlySet<number>;
  /** Prefix of lines, in which `{rank}`, `{host}`, `{attempt}` and `{stream}` are replaced. */
  readonly prefix: string;
  readonly color: boolean;
  /** Width of the terminal for progress lines; undefined if lines cannot be overwritten. */
  readonly columns: number | undefined;
}

/** The fields of a prefix, in braces. */
export const PREFIX_FIELDS = ["rank", "host", "attempt", "stream"] as const;

const RANK_COLORS = [36, 33, 35, 32, 34, 96];
/**
 * Limits for an uncaught error printed by Node that is not the reported failure: lines, and characters of each line.
 */
const MAX_UNCAUGHT_LINES = 100;
const MAX_UNCAUGHT_LENGTH = 2000;
const CLEAR_LINE_SEQUENCE = "\r\u001b[K";

/** Shows a job as text: whole lines with their rank as prefix, stderr on stderr, and the launcher's messages. */
export class TextConsole {
  readonly #stdout: OutputSink;
  readonly #stderr: OutputSink;
  readonly #style: TextStyle;
  readonly #uncaughtLines = new Map<number, LineEvent[]>();
  /** Rank and attempt of the last reported error. Lines from other hosts may arrive after the report. */
  #lastReport = "";
  readonly #prefixes = new Map<string, string>();
  /** The progress line at the bottom of the terminal, which is redrawn after each printed text. */
  #progressLine = "";

  constructor(out: OutputSink, err: OutputSink, style: TextStyle) {
    this.#stdout = out;
    this.#stderr = err;
    this.#style = style;
  }

  /** Shows one event of the job. */
  writeEvent(event: LaunchEvent): void {
    if (event.type === "line") return this.#handleLine(event);
    if (event.type === "failure") {
      const { error, rank, attempt } = event.failure;
      this.#flushUncaught(error === undefined ? undefined : rank);
      if (error !== undefined) this.#lastReport = `${rank} ${attempt}`;
    }
    if (event.type === "node-lost") this.#printReport(lostNodeLines(event.lost));
    if (event.type === "end") this.#flushUncaught(undefined);
    const message = formatEvent(event);
    if (message !== undefined) this.#print(this.#stderr, `mosaic-run: ${message}\n`);
    if (event.type === "failure" && event.remote !== true) {
      const { rank, nodeRank = 0 } = event.failure;
      this.#printReport(failureLines(event.failure, nodeRank === 0 && this.#style.shownRanks.has(rank)));
    }
  }

  #handleLine(event: LineEvent): void {
    if (!this.#style.shownRanks.has(event.rank)) return;
    if (event.uncaught === true) return this.#bufferUncaught(event);
    this.#writeLine(event);
  }

  /**
   * Buffers an error that Node prints until the reported failure is known, so that the same error is not shown twice.
   */
  #bufferUncaught(event: LineEvent): void {
    if (this.#lastReport === `${event.rank} ${event.attempt}`) return;
    const lines = this.#uncaughtLines.get(event.rank) ?? [];
    this.#uncaughtLines.set(event.rank, lines);
    if (lines.length < MAX_UNCAUGHT_LINES) lines.push({ ...event, text: event.text.slice(0, MAX_UNCAUGHT_LENGTH) });
    else if (lines.length === MAX_UNCAUGHT_LINES)
      lines.push({ ...event, text: "… (see the rank's log for the full output)" });
  }

  #flushUncaught(reportedRank: number | undefined): void {
    for (const [rank, lines] of this.#uncaughtLines)
      if (rank !== reportedRank) for (const line of lines) this.#writeLine(line);
    this.#uncaughtLines.clear();
  }

  #writeLine(event: LineEvent): void {
    const prefix = this.#coloredPrefix(event);
    if (event.kind !== "progress") {
      if (event.rank === 0) this.#erase();
      this.#print(event.stream === "stdout" ? this.#stdout : this.#stderr, `${prefix}${event.text}\n`);
    } else if (event.rank === 0 && this.#style.columns !== undefined) {
      this.#erase();
      const textWidth = this.#style.columns - this.#formatPrefix(event).length - 1;
      this.#progressLine = `${prefix}${event.text.slice(0, Math.max(0, textWidth))}`;
      this.#stdout.write(this.#progressLine);
    }
  }

  #print(sink: OutputSink, text: string): void {
    const progressLine = this.#progressLine;
    this.#erase();
    sink.write(text);
    this.#progressLine = progressLine;
    if (progressLine !== "") this.#stdout.write(progressLine);
  }

  #erase(): void {
    if (this.#progressLine !== "") this.#stdout.write(CLEAR_LINE_SEQUENCE);
    this.#progressLine = "";
  }

  #printReport(lines: readonly string[]): void {
    this.#erase();
    const [headline = "", ...details] = lines;
    this.#stderr.write(`${[this.#colorize(31, headline), ...details].join("\n")}\n`);
  }

  #coloredPrefix(event: LineEvent): string {
    const key = `${event.rank} ${event.attempt} ${event.stream}`;
    const cachedPrefix = this.#prefixes.get(key);
    if (cachedPrefix !== undefined) return cachedPrefix;
    const coloredPrefix = this.#colorize(RANK_COLORS[event.rank % RANK_COLORS.length] ?? 36, this.#formatPrefix(event));
    this.#prefixes.set(key, coloredPrefix);
    return coloredPrefix;
  }

  #formatPrefix({ rank, node, attempt, stream }: LineEvent): string {
    const fields = { rank: `${rank}`, host: node, attempt: `${attempt}`, stream };
    return PREFIX_FIELDS.reduce((text, name) => text.replaceAll(`{${name}}`, () => fields[name]), this.#style.prefix);
  }

  #colorize(color: number, text: string): string {
    return this.#style.color && text !== "" ? `\u001b[${color}m${text}\u001b[0m` : text;
  }
}

/** Returns the launcher's message about an event, if any. A job without problems produces no messages. */
function formatEvent(event: Exclude<LaunchEvent, LineEvent>): string | undefined {
  switch (event.type) {
    case "stop":
      if (event.reason.startsWith("rank ")) return undefined;
      return `${event.reason}: sent ${event.signal} to ${formatRanks(event.ranks)}; SIGKILL in ${event.graceMs / 1000} s`;
    case "kill":
      return `${event.reason}: killing ${formatRanks(event.ranks)}`;
    case "log-failed":
      return `${event.log} cannot be written: ${event.reason}; the log is incomplete from here on, and the job continues`;
    case "orphans":
      return `killed orphaned processes: pid ${event.pids.join(", ")}`;
    case "rendezvous":
      return event.message;
    case "failure": {
      if (event.remote !== true) return undefined;
      const { rank, node, nodeRank, exitCode } = event.failure;
      return `rank ${rank} (node ${nodeRank}, ${node}) failed; the report is in the output of node 0   exit code ${exitCode}`;
    }
    case "trace":
      return event.page === undefined
        ? `no trace: ${event.reason}`
        : `trace of ${event.ranks} ${event.ranks === 1 ? "rank" : "ranks"}: ${event.page}`;
    case "restart":
      return `restarting all ranks in ${event.delayMs / 1000} s (attempt ${event.attempt})`;
    case "end": {
      const { outcome, exitCode, logDir } = event.result;
      if (outcome === "cancelled") return `cancelled; logs ${logDir}   exit code ${exitCode}`;
      if (event.result.lost !== undefined) return `ended: a node was lost; logs ${logDir}   exit code ${exitCode}`;
      if (outcome === "timed-out") return `timed out; logs ${logDir}   exit code ${exitCode}`;
      return undefined;
    }
    default:
      return undefined;
  }
}

const formatRanks = (list: readonly number[]): string =>
  list.length === 1 ? `rank ${list[0]}` : list.length <= 8 ? `ranks ${list.join(",")}` : `${list.length} ranks`;
