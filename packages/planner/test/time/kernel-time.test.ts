import { add, matmul, zeros } from "@mosaic/core";
import { expect, test } from "vitest";
import { attentionSeconds } from "../../src/time/kernel-time.ts";
import { listTimes, runScript, toyProfile } from "./toy.ts";

/** Returns the toy profile with other speeds of kernels: operations and bytes per second, and seconds per launch. */
const profileWithKernels = (kernels: { matmul?: number; bandwidth?: number; launch?: number }) => ({
  ...toyProfile,
  kernels: { ...toyProfile.kernels, ...kernels },
});

test("a matrix product takes the time of its operations, whatever its bytes", () => {
  const simulation = runScript({ sp: 1 }, profileWithKernels({ matmul: 24 }), ({ ctx }) => {
    using a = zeros(ctx, [2, 3]);
    using b = zeros(ctx, [3, 4]);
    matmul(a, b).dispose();
  });
  // 2 · 2 · 4 · 3 operations.
  expect(listTimes(simulation, 0, "matmul")).toEqual([[0, 2]]);
});

test("another kernel takes the time of its launch and of the bytes that it reads and writes", () => {
  const simulation = runScript({ sp: 1 }, profileWithKernels({ bandwidth: 24, launch: 0.5 }), ({ ctx }) => {
    using a = zeros(ctx, [2, 3]);
    using b = zeros(ctx, [2, 3]);
    add(a, b).dispose();
  });
  // Two tensors of 24 bytes are read, and one is written.
  expect(listTimes(simulation, 0, "binary").map(([start, end]) => end - start)).toEqual([expect.closeTo(3.5, 8)]);
});

test("attention takes the time of its launch and of the operations on its pairs, rows and keys", () => {
  const speed = { flops: 8, halfSpeedRows: 2, halfSpeedKeys: 7, halfSpeedHeadDim: 6, interleaved: 1.5 };
  const kernels = { ...toyProfile.kernels, launch: 1, attend: { float32: speed }, attendBackward: { float32: speed } };
  const work = { dtype: "float32", headDim: 4, pairs: 10, rows: 3, keys: 5, numHeads: 2 } as const;
  // On each of 2 heads, 10 pairs, 7 for each row and 2 for each key, with the operations of 4 + 6 elements.
  const elements = 2 * (10 + 7 * 3 + 2 * 5) * (4 + 6);
  expect(attentionSeconds(kernels, "attend", work)).toBeCloseTo(1 + (4 * elements) / 8, 9);
  expect(attentionSeconds(kernels, "attendBackward", work)).toBeCloseTo(1 + (10 * elements) / 8, 9);
  expect(attentionSeconds(kernels, "attend", { ...work, interleaved: true })).toBeCloseTo(1 + (6 * elements) / 8, 9);
  // 2 heads with 3 rows are 4 blocks of 2 rows. They take two waves on 3 units, of which 4 / 6 are used.
  const kernelsWithWaves = { ...kernels, waves: { rows: 2, units: 3 } };
  expect(attentionSeconds(kernelsWithWaves, "attend", work)).toBeCloseTo(1 + (4 * elements) / 8 / (4 / 6), 9);
  for (const nothing of [{ pairs: 0 }, { numHeads: 0 }])
    expect(attentionSeconds(kernelsWithWaves, "attend", { ...work, ...nothing })).toBe(1);
});
