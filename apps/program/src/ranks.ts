import { fileURLToPath } from "node:url";
import { type Failure, type LaunchEvent, type Result, launch } from "@mosaic/launcher";

/** How ranks are started. */
export interface RankLaunchOptions<Report> {
  /** Called with what rank 0 reports: each line of its output that is an object in JSON. */
  readonly onReport?: (report: Report) => void;
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

/** Starts ranks, which are restarted if one dies. Other output than reports goes to stderr. */
export function launchRanks<Report>(
  { entry, args, ranks }: RankProgram,
  { onReport, onEvent, ...options }: RankLaunchOptions<Report> = {},
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
      if (report) onReport?.(report);
      else process.stderr.write(`[${event.rank}] ${event.text}\n`);
    },
  });
}

function parseReport<Report>(line: string): Report | undefined {
  if (!line.startsWith('{"')) return undefined;
  try {
    return JSON.parse(line) as Report;
  } catch {
    return undefined;
  }
}

/** Ranks have failed; `exitCode` is what the program should end with. */
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
