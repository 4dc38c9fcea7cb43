import { onWorld } from "@mosaic/conformance";
import {
  attention,
  type AttentionBackend,
  type Context,
  emptyState,
  layoutOf,
  local,
  randn,
  type Slice,
  type Tensor,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { ulysses } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

const earlier: Slice = { q0: 0, q1: 24, k0: 0, k1: 11, type: "full" };
const later: Slice = { q0: 0, q1: 24, k0: 11, k1: 24, type: "full" };

/** Attention of this rank's 8 of 24 rows over some keys after others. */
async function folded(ctx: Context, masks: readonly (readonly Slice[])[]): Promise<Float32Array> {
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 24 });
  const make = (stream: number): Tensor => randn(ctx, [1, 5, 8, 4], { seed: ctx.rank, stream });
  const [q, k, v] = [make(0), make(1), make(2)];
  const at = ctx.mesh.coordinate;
  const state = emptyState(q);
  for (const mask of masks) {
    const call = { q, at, scale: 0.5, mask, queries: layout, keys: layout };
    ulysses().attend(ctx, call, state, { k, v, from: at });
  }
  return state.out.read();
}

test("keys are folded into what a state holds already", async () => {
  const close = async (ctx: Context) => {
    const [whole, inParts] = [await folded(ctx, [[earlier, later]]), await folded(ctx, [[later], [earlier]])];
    for (const [i, value] of whole.entries()) expect(inParts[i]).toBeCloseTo(value, 5);
    return whole.length;
  };
  expect(await onWorld(makeWorld, { size: 3 }, close)).toEqual([160, 160, 160]);
});

test("the inner backend gets all rows of a rank's heads, and is not asked where there are none", async () => {
  const seen = await onWorld(makeWorld, { size: 4 }, async (ctx) => {
    const calls: unknown[] = [];
    const { attend, ...rest } = local();
    const inner: AttentionBackend = {
      ...rest,
      attend(on, call, state, keys) {
        calls.push({ q: call.q.shape, k: keys.k.shape, at: call.at, from: keys.from });
        attend(on, call, state, keys);
      },
    };
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 24 });
    using x = randn(ctx, [1, 3, 6, 4]);
    using out = attention(ctx, x, x, x, { backend: ulysses({ inner }), queries: layout, keys: layout });
    await out.read();
    return calls;
  });
  const one = [{ q: [1, 1, 24, 4], k: [1, 1, 24, 4], at: {}, from: {} }];
  expect(seen).toEqual([one, one, one, []]);
});
