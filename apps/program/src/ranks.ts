import { fileURLToPath } from "node:url";
import { type LaunchEvent, type Result, launch } from "@mosaic/launcher";

/** How ranks are started. */
export interface RankLaunchOptions<Report> {
  /** Called with what rank 0 reports: each line of JSON that begins with a step. */
  readonly progress?: (report: Report) => void;
  /** Called for every event. */
  readonly onEvent?: (event: LaunchEvent) => void;
  readonly maxRestarts?: number;
  readonly restartBackoffMs?: number;
  readonly minUptimeMs?: number;
  readonly abort?: AbortSignal;
}

/** What ranks run. */
export interface RankProgram {
  readonly entry: URL;
  readonly args: readonly string[];
  readonly ranks: number;
}

/** Starts ranks, which are restarted if one dies. `progress` is called with what rank 0 reports, a line of JSON with a step. */
export function startRanks<Report>(
  { entry, args, ranks }: RankProgram,
  { progress, onEvent, ...options }: RankLaunchOptions<Report> = {},
): Promise<Result> {
  return launch({
    maxRestarts: 3,
    ...options,
    entry: fileURLToPath(entry),
    args,
    nprocPerNode: ranks,
    onEvent(event) {
      onEvent?.(event);
      if (event.type !== "line") return;
      const report = event.rank === 0 && event.stream === "stdout" ? parseReport<Report>(event.text) : undefined;
      if (report) progress?.(report);
      else process.stderr.write(`[${event.rank}] ${event.text}\n`);
    },
  });
}

function parseReport<Report>(line: string): Report | undefined {
  if (!line.startsWith('{"step":')) return undefined;
  return JSON.parse(line) as Report;
}

/** The ranks did not come through; `exitCode` is what the program should end with. */
export class TrainingError extends Error {
  override readonly name: string = "TrainingError";
  readonly exitCode: number;
  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Throws a TrainingError that names the first failure, unless all went well. */
export function throwIfFailed({ outcome, failure, exitCode }: Result): void {
  if (outcome === "succeeded") return;
  const why = failure?.error?.message ?? failure?.stderrTail.join("\n") ?? outcome;
  throw new TrainingError(failure ? `rank ${failure.rank} failed: ${why}` : why, exitCode);
}
