import { constants } from "node:os";
import { fileURLToPath } from "node:url";
import { type Failure, type LaunchEvent, type Result, launch } from "@mosaic/launcher";

/** Options for starting ranks. */
export interface RankLaunchOptions<Report> {
  /** Called with each report of rank 0: a line of its output that is a JSON object. */
  readonly onReport?: (report: Report) => void;
  /** Called for every event. */
  readonly onEvent?: (event: LaunchEvent) => void;
  readonly maxRestarts?: number;
  readonly restartBackoffMs?: number;
  readonly minUptimeMs?: number;
  readonly abort?: AbortSignal;
}

/** Program of the ranks, and their number. */
export interface RankProgram {
  readonly entry: URL;
  readonly args: readonly string[];
  readonly ranks: number;
}

/** Reason for which `abortOnSignals` aborts. */
export class SignalError extends Error {
  override readonly name: string = "SignalError";
  /** Exit code of a program that the signal ends, as in a shell. */
  readonly exitCode: number;
  constructor(signal: NodeJS.Signals) {
    super(`received ${signal}`);
    this.exitCode = 128 + constants.signals[signal];
  }
}

/**
 * Starts ranks, and restarts them if one dies. Output other than reports is written to stderr. The launcher sends
 * SIGTERM to the ranks of an aborted job; the exit code is that of the signal that this program received.
 */
export async function launchRanks<Report>(
  { entry, args, ranks }: RankProgram,
  { onReport, onEvent, ...options }: RankLaunchOptions<Report> = {},
): Promise<Result> {
  const result = await launch({
    maxRestarts: 3,
    ...options,
    entry: fileURLToPath(entry),
    args,
    nprocPerNode: ranks,
    onEvent(event) {
      onEvent?.(event);
      if (event.type !== "line") return;
      const report = event.rank === 0 && event.stream === "stdout" ? parseReport<Report>(event.text) : undefined;
      if (report) onReport?.(report);
      else process.stderr.write(`[${event.rank}] ${event.text}\n`);
    },
  });
  const reason: unknown = options.abort?.reason;
  if (result.outcome !== "cancelled" || !(reason instanceof SignalError)) return result;
  return { ...result, exitCode: reason.exitCode };
}

function parseReport<Report>(line: string): Report | undefined {
  if (!line.startsWith('{"')) return undefined;
  try {
    return JSON.parse(line) as Report;
  } catch {
    return undefined;
  }
}

/** Error of failed ranks. The program should exit with `exitCode`. */
export class RanksFailedError extends Error {
  override readonly name: string = "RanksFailedError";
  readonly exitCode: number;
  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Throws a RanksFailedError that names the first failure, unless all ranks succeeded. */
export function throwIfFailed({ outcome, failure, exitCode }: Result): void {
  if (outcome !== "succeeded") throw new RanksFailedError(failure ? describeFailure(failure) : outcome, exitCode);
}

function describeFailure({ rank, signal, code, error, stderrTail, hint }: Failure): string {
  const exitText = signal ? `signal ${signal}` : `exit ${code}`;
  const errorText = error ? (error.stack ?? error.message) : stderrTail.join("\n");
  return `rank ${rank} failed (${exitText}): ${errorText}${hint ? `\n${hint}` : ""}`;
}
