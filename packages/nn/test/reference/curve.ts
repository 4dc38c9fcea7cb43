import { join } from "node:path";
import type { Context } from "@mosaic/core";
import { AdamW, loadCheckpoint, saveCheckpoint } from "../../src/index.ts";
import { directory } from "./directory.ts";
import { Model, trainStep } from "./model.ts";
import { onMesh } from "./world.ts";

/** A segment of a training run: the number of ranks, and the step at which it ends. */
export type CurveSegment = readonly [ranks: number, untilStep: number];

/** Returns the losses of an uninterrupted training run on one mesh after the other, on ranks of one process. */
export async function computeLossCurve(...segments: readonly CurveSegment[]): Promise<number[]> {
  const path = join(directory(), "training.safetensors");
  const losses: number[] = [];
  for (const [ranks, untilStep] of segments) {
    const train = async (ctx: Context): Promise<number[]> => {
      using model = new Model(ctx);
      using optimizer = new AdamW(model, { lr: 2e-2 });
      if (losses.length > 0) await loadCheckpoint(ctx, path, { model, optimizer });
      const rankLosses: number[] = [];
      while (optimizer.steps < untilStep) rankLosses.push(await trainStep(ctx, { model, optimizer }));
      await saveCheckpoint(ctx, path, { model, optimizer });
      return rankLosses;
    };
    const [firstRankLosses] = await onMesh({ sp: ranks }, train);
    losses.push(...firstRankLosses!);
  }
  return losses;
}
