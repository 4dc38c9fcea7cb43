import type { Result } from "@mosaic/launcher";
import { type RankLaunchOptions, launchRanks } from "@mosaic/program";
import { formatArgs, type Settings } from "./settings.ts";

/** Report of rank 0 after each step. */
export interface StepReport {
  readonly step: number;
  readonly totalSteps: number;
  readonly loss: number;
}

/** Options for starting a training. */
export type TrainingLaunchOptions = RankLaunchOptions<StepReport>;

/**
 * Trains on `settings.ranks` processes. If one dies, all are restarted and continue from the last checkpoint. Resolves
 * to the result of the launch.
 */
export function launchTraining(settings: Settings, options: TrainingLaunchOptions = {}): Promise<Result> {
  const entry = new URL("../dist/rank.js", import.meta.url);
  return launchRanks({ entry, args: formatArgs(settings), ranks: settings.ranks }, options);
}
