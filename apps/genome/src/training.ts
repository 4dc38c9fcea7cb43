import type { Result } from "@mosaic/launcher";
import { type RankLaunchOptions, launchRanks } from "@mosaic/program";
import { formatArgs, type Settings } from "./settings.ts";

/** What a rank reports while it trains. */
export interface StepReport {
  readonly step: number;
  readonly totalSteps: number;
  readonly loss: number;
}

/** How a training is started. */
export type TrainingLaunchOptions = RankLaunchOptions<StepReport>;

/**
 * Trains on `settings.ranks` processes. If one dies all are started again, and go on from the last checkpoint. Resolves to how
 * that ended.
 */
export function launchTraining(settings: Settings, options: TrainingLaunchOptions = {}): Promise<Result> {
  const entry = new URL("../dist/rank.js", import.meta.url);
  return launchRanks({ entry, args: formatArgs(settings), ranks: settings.ranks }, options);
}
