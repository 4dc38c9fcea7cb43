import type { Context, Coordinate } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { AdamW, linearWarmup, type Optimizer, ScheduleFreeAdamW } from "../src/index.ts";
import { Model, trainStep } from "./reference/model.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const steps = 60;

async function trainModel(ctx: Context, createOptimizer: (model: Model) => Optimizer): Promise<number[]> {
  using model = new Model(ctx);
  using optimizer = createOptimizer(model);
  const losses: number[] = [];
  while (optimizer.steps < steps) losses.push(await trainStep(ctx, { model, optimizer }));
  return losses;
}

const meshes: readonly Coordinate[] = [
  { sp: 2 },
  { sp: 4 },
  { dp: 2, sp: 1 },
  { dp: 2, sp: 2 },
  { dp_replicate: 2, dp_shard: 2, sp: 2 },
];
const optimizers = {
  AdamW: (model: Model) => new AdamW(model, { lr: 2e-2, schedule: linearWarmup(5) }),
  ScheduleFreeAdamW: (model: Model) => new ScheduleFreeAdamW(model, { lr: 2e-2, warmupSteps: 5 }),
};

describe.each(Object.entries(optimizers))("%s", (_, createOptimizer) => {
  test("learns with the same loss curve on every mesh", async () => {
    const [expected] = await onMesh({ sp: 1 }, (ctx) => trainModel(ctx, createOptimizer));
    expect(expected!.at(-1)!).toBeLessThan(0.7 * expected![0]!);
    for (const mesh of meshes) {
      const ranks = await onMesh(mesh, (ctx) => trainModel(ctx, createOptimizer));
      for (const losses of ranks) {
        expect(losses).toEqual(ranks[0]);
        const maxRelativeError = Math.max(...losses.map((loss, i) => Math.abs(loss - expected![i]!) / expected![i]!));
        expect(maxRelativeError, JSON.stringify(mesh)).toBeLessThan(1e-5);
      }
    }
  });
});

test("training steps do not increase device memory", () =>
  onOneRank(async (ctx) => {
    using model = new Model(ctx);
    using optimizer = new AdamW(model);
    const lossesAfter: number[] = [];
    while (optimizer.steps < 12) {
      await trainStep(ctx, { model, optimizer });
      lossesAfter.push(ctx.device.memory().allocated);
    }
    // The first steps create the tables of the rotary embedding.
    expect(new Set(lossesAfter.slice(2)).size).toBe(1);
  }));
