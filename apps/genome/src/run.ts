import { existsSync } from "node:fs";
import { join } from "node:path";
import { type Context } from "@mosaic/attention";
import { loadCheckpoint, saveCheckpoint } from "@mosaic/attention/nn";
import { createDirectory } from "@mosaic/launcher";
import { multiplyAddsPerStep } from "./cost.ts";
import { LearningCurve } from "@mosaic/program";
import type { CurvePoint } from "./curve.ts";
import { evaluate } from "./evaluation.ts";
import type { Settings } from "./settings.ts";
import { Trainer } from "./trainer.ts";

/** Returns the file paths of a training's output directory. */
export const trainingFilePaths = (directory: string): { curve: string; checkpoint: string } => ({
  curve: join(directory, "curve.jsonl"),
  checkpoint: join(directory, "model.safetensors"),
});

/** Totals that a checkpoint contains in addition to the weights. */
interface RunningTotals {
  readonly bytes: number;
  readonly work: number;
}

/**
 * Trains on each rank to the last step, from the checkpoint in the output directory if there is one. Rank 0 writes the
 * curve. `onProgress` is called for every step.
 */
export async function train(
  ctx: Context,
  settings: Settings,
  onProgress: (step: number, loss: number) => void,
): Promise<Trainer> {
  const { steps, checkpointEvery, evaluateEvery, outputDir } = settings;
  const { curve: curvePath, checkpoint: checkpointPath } = trainingFilePaths(outputDir);
  const trainer = new Trainer(ctx, settings);
  const { model, optimizer } = trainer;
  let runningTotals: RunningTotals = { bytes: 0, work: 0 };
  if (ctx.rank === 0) createDirectory(outputDir);
  if (existsSync(checkpointPath))
    runningTotals = (await loadCheckpoint(ctx, checkpointPath, { model, optimizer })).data as RunningTotals;
  const curve = ctx.rank === 0 ? new LearningCurve<CurvePoint>(curvePath) : undefined;
  curve?.truncateAfter(optimizer.steps);
  while (optimizer.steps < steps) {
    const work = runningTotals.work + multiplyAddsPerStep(optimizer.steps, settings);
    const { loss, bytes } = await trainer.step();
    runningTotals = { bytes: runningTotals.bytes + bytes, work };
    const step = optimizer.steps;
    const isEvaluationStep = step % evaluateEvery === 0 || step === steps;
    const evaluationFields = isEvaluationStep ? { held: await evaluate(trainer) } : {};
    curve?.append({ step, loss, ...runningTotals, ...evaluationFields });
    if (step % checkpointEvery === 0 || step === steps) {
      await saveCheckpoint(ctx, checkpointPath, { model, optimizer, data: runningTotals });
    }
    onProgress(step, loss);
  }
  return trainer;
}

/** Loads the model of a completed training from its checkpoint, on any number of ranks. */
export async function loadTrainer(ctx: Context, settings: Settings): Promise<Trainer> {
  const trainer = new Trainer(ctx, { ...settings, ranks: ctx.size });
  const { model, optimizer } = trainer;
  await loadCheckpoint(ctx, trainingFilePaths(settings.outputDir).checkpoint, { model, optimizer });
  return trainer;
}
