import { existsSync } from "node:fs";
import { join } from "node:path";
import { type Context } from "@mosaic/attention";
import { loadCheckpoint, saveCheckpoint } from "@mosaic/attention/nn";
import { createDirectory } from "@mosaic/launcher";
import { multiplyAddsPerStep } from "./cost.ts";
import { LearningCurve } from "./curve.ts";
import { evaluate } from "./evaluation.ts";
import type { Settings } from "./settings.ts";
import { Trainer } from "./trainer.ts";

/** What a training's folder holds. */
export const trainingFiles = (folder: string): { curve: string; checkpoint: string } => ({
  curve: join(folder, "curve.jsonl"),
  checkpoint: join(folder, "model.safetensors"),
});

/** What is remembered beside the weights. */
interface RunningTotals {
  readonly bytes: number;
  readonly work: number;
}

/**
 * What each rank does: trains to the last step, from the checkpoint in the folder if there is one. Rank 0 writes the curve.
 * `progress` is called for every step.
 */
export async function train(
  ctx: Context,
  settings: Settings,
  progress: (step: number, loss: number) => void,
): Promise<Trainer> {
  const { steps, checkpointEvery, evaluateEvery, folder } = settings;
  const { curve: curvePath, checkpoint } = trainingFiles(folder);
  const trainer = new Trainer(ctx, settings);
  const { model, optimizer } = trainer;
  let sums: RunningTotals = { bytes: 0, work: 0 };
  if (ctx.rank === 0) createDirectory(folder);
  if (existsSync(checkpoint))
    sums = (await loadCheckpoint(ctx, checkpoint, { model, optimizer })).data as RunningTotals;
  const curve = ctx.rank === 0 ? new LearningCurve(curvePath) : undefined;
  curve?.truncateAfter(optimizer.steps);
  while (optimizer.steps < steps) {
    const work = sums.work + multiplyAddsPerStep(optimizer.steps, settings);
    const { loss, bytes } = await trainer.step();
    sums = { bytes: sums.bytes + bytes, work };
    const step = optimizer.steps;
    const isJudged = step % evaluateEvery === 0 || step === steps;
    const held = isJudged ? { held: await evaluate(trainer) } : {};
    curve?.append({ step, loss, ...sums, ...held });
    if (step % checkpointEvery === 0 || step === steps) {
      await saveCheckpoint(ctx, checkpoint, { model, optimizer, data: sums });
    }
    progress(step, loss);
  }
  return trainer;
}

/** A finished training's model, from its checkpoint, on however many ranks this context has. */
export async function loadTrained(ctx: Context, settings: Settings): Promise<Trainer> {
  const trainer = new Trainer(ctx, { ...settings, ranks: ctx.size });
  const { model, optimizer } = trainer;
  await loadCheckpoint(ctx, trainingFiles(settings.folder).checkpoint, { model, optimizer });
  return trainer;
}
