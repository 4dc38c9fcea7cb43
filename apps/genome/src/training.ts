import { fileURLToPath } from "node:url";
import { type LaunchEvent, type Result, launch } from "@mosaic/launcher";
import { formatArgs, type Settings } from "./settings.ts";

/** What a rank reports while it trains. */
export interface StepReport {
  readonly step: number;
  readonly totalSteps: number;
  readonly loss: number;
}

/** How a training is started. */
export interface TrainingLaunchOptions {
  /** Called with how far it is. */
  readonly progress?: (report: StepReport) => void;
  /** Called for every event. */
  readonly onEvent?: (event: LaunchEvent) => void;
  readonly maxRestarts?: number;
  readonly restartBackoffMs?: number;
  readonly minUptimeMs?: number;
  readonly abort?: AbortSignal;
}

/**
 * Trains on `settings.ranks` processes. If one dies all are started again, and go on from the last checkpoint. Resolves to how
 * that ended.
 */
export function startTraining(
  settings: Settings,
  { progress, onEvent, ...options }: TrainingLaunchOptions = {},
): Promise<Result> {
  return launch({
    maxRestarts: 3,
    ...options,
    entry: fileURLToPath(new URL("../dist/rank.js", import.meta.url)),
    args: formatArgs(settings),
    nprocPerNode: settings.ranks,
    onEvent(event) {
      onEvent?.(event);
      if (event.type !== "line") return;
      const report = event.rank === 0 && event.stream === "stdout" ? parseReport(event.text) : undefined;
      if (report) progress?.(report);
      else process.stderr.write(`[${event.rank}] ${event.text}\n`);
    },
  });
}

function parseReport(line: string): StepReport | undefined {
  if (!line.startsWith('{"step":')) return undefined;
  return JSON.parse(line) as StepReport;
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
