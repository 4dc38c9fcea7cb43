import { add, matmul, zeros } from "@mosaic/core";
import { expect, test } from "vitest";
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
