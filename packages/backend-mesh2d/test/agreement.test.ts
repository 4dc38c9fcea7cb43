import { createHash } from "node:crypto";
import { runOnWorld, placements } from "@mosaic/conformance";
import { type Context, emptyState, layoutOf, local, masks, randn, spansLength } from "@mosaic/core";
import { expect, test } from "vitest";
import { dependencyTable } from "@mosaic/core/context-parallel";
import { createBackwardPass, type ExecutionContext, createForwardPass, type Pass, type Tile } from "../src/pass.ts";
import { chooseSchedule, ScheduleCache } from "../src/schedule.ts";
import { type Grid, createTile } from "../src/tile.ts";
import { makeWorld } from "../../../vitest.world.ts";

const grid: Grid = { rows: 2, columns: 3 };
const length = 29;

/** Returns the tiles of a forward and a backward of one rank, with keys in three parts. Shards have unequal lengths. */
function listTiles(ctx: Context): { readonly pass: Pass; readonly tile: Tile }[] {
  const [, , , raggedPlacement] = placements();
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], placement: raggedPlacement!, length });
  const at = ctx.mesh.coordinate;
  const rows = spansLength(layout.spans(at));
  const q = randn(ctx, [1, 4, rows, 8]);
  const kv = randn(ctx, [1, 2, rows, 8]);
  const { out, lse } = emptyState(q);
  const call = { q, at, scale: 1, mask: masks.causal().slices(length, length), queries: layout, keys: layout };
  const block = { k: kv, v: kv, from: at };
  const tile = createTile(grid, at.sp!, dependencyTable({ axis: "sp", size: 6 }, call, at));
  const context: ExecutionContext = { ctx, axis: "sp", inner: local(), label: "test", grid, tiles: [tile, tile, tile] };
  const forward = createForwardPass(context, call, { out, lse });
  const backward = createBackwardPass(context, { ...call, dOut: q, lse, delta: lse }, { dq: out });
  return context.tiles.flatMap((_, i) => [
    { pass: forward, tile: forward.tile(i, block) },
    { pass: backward, tile: backward.tile(i, { ...block, dk: kv, dv: kv }) },
  ]);
}

test("every rank computes the same schedules and choices, even if shards have different lengths", async () => {
  const digests = await runOnWorld(makeWorld, { size: 6 }, async (ctx) => {
    const tiles = listTiles(ctx);
    const lengths = tiles[0]!.pass.queries.inputs.map(({ shape }) => shape[2]);
    const choices = ([1, 2] as const).flatMap((channels) => {
      const schedules = new ScheduleCache({ channels, computeToTransfer: 0.7, links: [1, 3] });
      return tiles.map(({ pass, tile }) => {
        const schedule = schedules.get(pass, tile);
        const queries = { chunks: grid.columns, rows: pass.queries.meanRows };
        const keys = { chunks: grid.rows, rows: tile.keys.meanRows };
        return { schedule, name: chooseSchedule({ schedule, queries, keys, halfSpeedRows: 8 }) };
      });
    });
    await ctx.device.stream.synchronize();
    return {
      lengths,
      schedules: choices.length,
      digest: createHash("sha256").update(JSON.stringify(choices)).digest("hex"),
    };
  });
  expect(new Set(digests.map(({ lengths }) => lengths.join())).size).toBeGreaterThan(1);
  expect(digests.every(({ schedules }) => schedules === 12)).toBe(true);
  expect(new Set(digests.map(({ digest }) => digest)).size).toBe(1);
});
