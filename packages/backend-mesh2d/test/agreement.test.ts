import { createHash } from "node:crypto";
import { onWorld, placements } from "@mosaic/conformance";
import { causal, type Context, emptyState, layoutOf, local, randn, spansLength } from "@mosaic/core";
import { expect, test } from "vitest";
import { formOf } from "../src/form.ts";
import type { Grid } from "../src/grid.ts";
import { needOf, shardsAlong } from "../src/need.ts";
import { backwardTiling, forwardTiling, type Pass, type Site, type Tile } from "../src/pass.ts";
import { Plans } from "../src/plans.ts";
import { makeWorld } from "./world.ts";

const grid: Grid = { rows: 2, columns: 3 };
const length = 29;

/** A forward and a backward of one rank, whose shards are of other lengths than its neighbours'; keys in three parts. */
function tilesOf(ctx: Context): { readonly pass: Pass; readonly tile: Tile }[] {
  const [, , , ragged] = placements();
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], placement: ragged!, length });
  const at = ctx.mesh.coordinate;
  const rows = spansLength(layout.spans(at));
  const q = randn(ctx, [1, 4, rows, 8]);
  const kv = randn(ctx, [1, 2, rows, 8]);
  const { out, lse } = emptyState(q);
  const call = { q, at, scale: 1, mask: causal().slices(length, length), queries: layout, keys: layout };
  const keys = { k: kv, v: kv, from: at };
  const need = needOf(grid, at.sp!, shardsAlong("sp", 6, call, at));
  const site: Site = { ctx, axis: "sp", inner: local(), label: "test", grid, needs: [need, need, need] };
  const forward = forwardTiling(site, call, { out, lse });
  const backward = backwardTiling(site, { ...call, dOut: q, lse, delta: lse }, { dq: out });
  return site.needs.flatMap((_, i) => [
    { pass: forward.pass, tile: forward.tile(i, keys) },
    { pass: backward.pass, tile: backward.tile(i, { ...keys, dk: kv, dv: kv }) },
  ]);
}

test("every rank makes the same plans, and chooses the same forms, however unequal the shards", async () => {
  const found = await onWorld(makeWorld, { size: 6 }, async (ctx) => {
    const tiles = tilesOf(ctx);
    const lengths = tiles[0]!.pass.queries.inputs.map(({ shape }) => shape[2]);
    const made = ([1, 2] as const).flatMap((channels) => {
      const plans = new Plans({ channels, computeToTransfer: 0.7, links: [1, 3] });
      return tiles.map(({ pass, tile }) => {
        const plan = plans.planOf(pass, tile);
        const queries = { chunks: grid.columns, rows: pass.queries.rows };
        return {
          plan,
          form: formOf({ plan, queries, keys: { chunks: grid.rows, rows: tile.keys.rows }, halfSpeedRows: 8 }),
        };
      });
    });
    await ctx.device.stream.synchronize();
    return { lengths, plans: made.length, digest: createHash("sha256").update(JSON.stringify(made)).digest("hex") };
  });
  expect(new Set(found.map(({ lengths }) => lengths.join())).size).toBeGreaterThan(1);
  expect(found.every(({ plans }) => plans === 12)).toBe(true);
  expect(new Set(found.map(({ digest }) => digest)).size).toBe(1);
});
