import { runOnWorld } from "@mosaic/conformance";
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

const firstSlice: Slice = { q0: 0, q1: 24, k0: 0, k1: 11, type: "full" };
const secondSlice: Slice = { q0: 0, q1: 24, k0: 11, k1: 24, type: "full" };

/** Folds the keys of one mask after another into the state of this rank's 8 of 24 rows. Returns the output. */
async function foldMasks(ctx: Context, masks: readonly (readonly Slice[])[]): Promise<Float32Array> {
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 24 });
  const createTensor = (stream: number): Tensor => randn(ctx, [1, 5, 8, 4], { seed: ctx.rank, stream });
  const [q, k, v] = [createTensor(0), createTensor(1), createTensor(2)];
  const at = ctx.mesh.coordinate;
  const state = emptyState(q);
  for (const mask of masks) {
    const call = { q, at, scale: 0.5, mask, queries: layout, keys: layout };
    ulysses().attend(ctx, call, state, { k, v, from: at });
  }
  return state.out.read();
}

test("keys are folded into an existing state", async () => {
  const compareFolds = async (ctx: Context) => {
    const [wholeOut, partsOut] = [
      await foldMasks(ctx, [[firstSlice, secondSlice]]),
      await foldMasks(ctx, [[secondSlice], [firstSlice]]),
    ];
    for (const [i, value] of wholeOut.entries()) expect(partsOut[i]).toBeCloseTo(value, 5);
    return wholeOut.length;
  };
  expect(await runOnWorld(makeWorld, { size: 3 }, compareFolds)).toEqual([160, 160, 160]);
});

test("the inner backend receives all rows of a rank's heads, and is not called on ranks without heads", async () => {
  const callsByRank = await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
    const calls: unknown[] = [];
    const { attend, ...otherFields } = local();
    const inner: AttentionBackend = {
      ...otherFields,
      attend(attendCtx, call, state, keys) {
        calls.push({ q: call.q.shape, k: keys.k.shape, at: call.at, from: keys.from });
        attend(attendCtx, call, state, keys);
      },
    };
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 24 });
    using x = randn(ctx, [1, 3, 6, 4]);
    using out = attention(ctx, x, x, x, { backend: ulysses({ inner }), queries: layout, keys: layout });
    await out.read();
    return calls;
  });
  const oneCall = [{ q: [1, 1, 24, 4], k: [1, 1, 24, 4], at: {}, from: {} }];
  expect(callsByRank).toEqual([oneCall, oneCall, oneCall, []]);
});
