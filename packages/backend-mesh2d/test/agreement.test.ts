import { createHash } from "node:crypto";
import { onWorld, placements } from "@mosaic/conformance";
import { causal, type Context, emptyState, layoutOf, local, randn, spansLength } from "@mosaic/core";
import { expect, test } from "vitest";
import { formOf } from "../src/form.ts";
import type { Grid } from "../src/grid.ts";
import { needOf, shardsAlong } from "../src/need.ts";
import { backwardPass, forwardPass, type Pass, type Site } from "../src/pass.ts";
import { Plans } from "../src/plans.ts";
import { makeWorld } from "./world.ts";

const grid: Grid = { rows: 2, columns: 3 };
const length = 29;

/** A forward and a backward of one rank, whose shards are of other lengths than its neighbours'. */
function passes(ctx: Context): Pass[] {
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
  const site: Site = { ctx, axis: "sp", inner: local(), label: "test", need };
  const saved = { ...call, dOut: q, lse, delta: lse };
  return [forwardPass(site, call, { out, lse }, keys), backwardPass(site, saved, { dq: out, dk: kv, dv: kv }, keys)];
}

test("every rank makes the same plans, and chooses the same forms, however unequal the shards", async () => {
  const found = await onWorld(makeWorld, { size: 6 }, async (ctx) => {
    const both = passes(ctx);
    const lengths = both[0]!.queries.inputs.map(({ shape }) => shape[2]);
    const made = ([1, 2] as const).flatMap((channels) => {
      const plans = new Plans({ channels, computeToTransfer: 0.7, links: [1, 3] });
      return both.map((pass) => {
        const plan = plans.planOf(pass, grid);
        const queries = { chunks: grid.columns, rows: pass.queries.rows };
        return {
          plan,
          form: formOf({ plan, queries, keys: { chunks: grid.rows, rows: pass.keys.rows }, halfSpeedRows: 8 }),
        };
      });
    });
    await ctx.device.stream.synchronize();
    return { lengths, plans: made.length, digest: createHash("sha256").update(JSON.stringify(made)).digest("hex") };
  });
  expect(new Set(found.map(({ lengths }) => lengths.join())).size).toBeGreaterThan(1);
  expect(found.every(({ plans }) => plans === 4)).toBe(true);
  expect(new Set(found.map(({ digest }) => digest)).size).toBe(1);
});
