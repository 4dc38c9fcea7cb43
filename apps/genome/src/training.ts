import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createDirectory, type Result } from "@mosaic/launcher";
import { type RankLaunchOptions, launchRanks, toOptionName, UsageError } from "@mosaic/program";
import { trainingFilePaths } from "./run.ts";
import { formatArgs, type Settings } from "./settings.ts";

/** Report of rank 0 after each step. */
export interface StepReport {
  readonly step: number;
  readonly totalSteps: number;
  readonly loss: number;
}

/** Options for starting a training. */
export type TrainingLaunchOptions = RankLaunchOptions<StepReport>;

/** Settings that must not change when a training is resumed, because the weights depend on them. */
const FIXED_SETTINGS = ["task", "method", "embedDim", "heads", "layers", "chunkLength", "seed"] as const;

function readSettings(path: string): Settings {
  try {
    return JSON.parse(readFileSync(path, "utf8")) as Settings;
  } catch (cause) {
    throw new UsageError(
      `--output-dir: expected the settings of a training in ${path}, received a file that is not JSON; remove it if the settings are those of the checkpoint, or pass a different --output-dir`,
      { cause },
    );
  }
}

/** Compares the settings with those of the training in the output directory, or writes them there for a new one. */
function checkResumedSettings(settings: Settings): void {
  const { outputDir } = settings;
  const path = join(outputDir, "settings.json");
  if (existsSync(trainingFilePaths(outputDir).checkpoint)) {
    if (!existsSync(path)) return; // a training that was started on its ranks, or by an earlier version
    const previousSettings = readSettings(path);
    const name = FIXED_SETTINGS.find((each) => settings[each] !== previousSettings[each]);
    if (name === undefined) return;
    throw new UsageError(
      `--${toOptionName(name)}: expected ${previousSettings[name]}, the value of the training in ${outputDir}, received ${settings[name]}; pass the same value, or a different --output-dir`,
    );
  }
  try {
    createDirectory(outputDir);
    writeFileSync(path, `${JSON.stringify(settings)}\n`);
  } catch (cause) {
    const received = (cause as Error).message;
    throw new UsageError(`--output-dir: expected a folder that can be written, received ${outputDir}: ${received}`, {
      cause,
    });
  }
}

/**
 * Trains on `settings.ranks` processes. If one dies, all are restarted and continue from the last checkpoint. Resolves
 * to the result of the launch.
 *
 * @throws UsageError if the output directory has a checkpoint of a training with other settings, or cannot be written.
 */
export async function launchTraining(settings: Settings, options: TrainingLaunchOptions = {}): Promise<Result> {
  checkResumedSettings(settings);
  const entry = new URL("../dist/rank.js", import.meta.url);
  return launchRanks({ entry, args: formatArgs(settings), ranks: settings.ranks }, options);
}
