import { runBackendOnRank, runOnWorld, type Trial } from "@mosaic/conformance";
import type { Context } from "@mosaic/core";
import { expect, test } from "vitest";
import { type Mesh2DOptions, mesh2d } from "../src/index.ts";
import { chooseSchedule, greedySchedule, type ScheduleName } from "../src/schedule.ts";
import { createEvenTrial } from "./shapes.ts";
import { makeWorld } from "../../../vitest.world.ts";

/**
 * Chooses a schedule for a square grid and chunks of `rows` rows, if compute takes `ratio` times as long as transfers.
 */
function chooseForSquare(side: number, rows: number, { ratio = 1, halfSpeedRows = 24 } = {}): ScheduleName {
  const transfer = (side - 1) * 4;
  const costs = { q: 1, kv: 2, out: 1, dkv: 0, block: ((transfer || 1) * ratio) / side ** 2 };
  const schedule = greedySchedule({ queries: side, keys: side, backward: false, channels: 1, costs });
  const sideChunks = { chunks: side, rows };
  return chooseSchedule({ schedule, queries: sideChunks, keys: sideChunks, halfSpeedRows });
}

test("the fused schedule is chosen for small chunks, and the overlapped one for large chunks", () => {
  expect([1, 8, 32, 128, 1024].map((rows) => chooseForSquare(4, rows))).toEqual([
    "fused",
    "fused",
    "fused",
    "overlapped",
    "overlapped",
  ]);
  // A device that requires larger calls for full utilization.
  expect(chooseForSquare(4, 128, { halfSpeedRows: 512 })).toBe("fused");
  expect(chooseForSquare(4, 4096, { halfSpeedRows: 512 })).toBe("overlapped");
  expect(chooseForSquare(4, 1, { halfSpeedRows: 0 })).toBe("overlapped");
});

test("the fused schedule is chosen if compute takes much longer than transfers", () => {
  const rows = 64;
  expect([0.02, 1, 50].map((ratio) => chooseForSquare(4, rows, { ratio }))).toEqual([
    "overlapped",
    "overlapped",
    "fused",
  ]);
});

test("the fused schedule is chosen for a single rank", () => {
  expect(chooseForSquare(1, 1000)).toBe("fused");
});

/** Returns the number of batches that a rank posts in a forward and a backward. */
async function countBatches(ctx: Context, options: Mesh2DOptions, trial: Trial): Promise<number> {
  ctx.world.startTrace();
  await runBackendOnRank(ctx, mesh2d(options), trial);
  return (await ctx.world.stopTrace()).length;
}

test("auto runs the schedule that its costs select, on every rank", async () => {
  const trial = createEvenTrial(4, { rows: 8 });
  await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
    const numFusedBatches = await countBatches(ctx, { shape: [2, 2], schedule: "fused" }, trial);
    const numOverlappedBatches = await countBatches(ctx, { shape: [2, 2], schedule: "overlapped" }, trial);
    expect([numFusedBatches, numOverlappedBatches]).toEqual([4, 7]);
    expect(await countBatches(ctx, { shape: [2, 2] }, trial)).toBe(numFusedBatches);
    expect(await countBatches(ctx, { shape: [2, 2], schedule: "auto", halfSpeedRows: 0 }, trial)).toBe(
      numOverlappedBatches,
    );
  });
});
