import { runsOnGpu } from "./emulated.ts";
import { masks } from "@mosaic/core";
import { afterEach, expect, test } from "vitest";
import { cuda } from "../src/index.ts";
import { checkTrial, createTrial } from "./trials.ts";

// A grid is limited to 65 535 blocks along y and z; there may be more heads and batch elements.

afterEach(() => {
  delete process.env.MOSAIC_EMULATED_GRID;
  delete process.env.MOSAIC_EMULATED_CAPABILITY;
});

test.each([
  { gpu: "Ampere", capability: "80", dtype: "float32" },
  { gpu: "Ampere", capability: "80", dtype: "bfloat16" },
  { gpu: "Hopper", capability: "90", dtype: "float16" },
] as const)(
  "attention supports more heads and samples than a grid's limits: $dtype on $gpu",
  async ({ capability, dtype }) => {
    process.env.MOSAIC_EMULATED_CAPABILITY = capability;
    process.env.MOSAIC_EMULATED_GRID = "4";
    using device = cuda();
    const trial = createTrial(64, dtype, [30, 40]); // one block of rows, because the number of heads matters here
    await checkTrial(device, { ...trial, batch: 2, numHeads: 9, numKvHeads: 9 });
    await checkTrial(device, { ...trial, batch: 5, numHeads: 6, numKvHeads: 3 });
    await checkTrial(device, { ...trial, batch: 1, numHeads: 10, numKvHeads: 2 }); // more than four heads share keys
    // More samples than the grid's depth, each with its own mask: sample indices continue in the second grid.
    const sampleMasks = [5, 10, 15, 20, 30, 25].map((length) => masks.causal().slices(length, length));
    const maskMod = (q: number, k: number, sample = 0) => k <= q && q < sampleMasks[sample]![0]!.q1;
    await checkTrial(device, { ...trial, mask: [], modifiers: { sampleMasks }, maskMod, batch: 6 });
  },
);

test("attention supports two heads more than a grid's limit", async () => {
  if (!runsOnGpu) process.env.MOSAIC_EMULATED_GRID = "4";
  using device = cuda();
  const heads = runsOnGpu ? 65_537 : 6;
  using x = device.empty([1, heads, 1, 4], "float32");
  device.write(
    x,
    Float32Array.from({ length: x.size }, (_, i) => i),
  );
  using out = device.empty(x.shape, "float32");
  using lse = device.empty([1, heads, 1], "float32");
  device.kernels.fill(lse, Number.NEGATIVE_INFINITY);
  const row = [{ start: 0, length: 1, step: 1 }];
  const tile = { q: row, k: row, mask: masks.full().slices(1, 1), scale: 1e-9 };
  device.kernels.attend({ out, lse }, x, { k: x, v: x }, tile);
  expect(await out.read()).toEqual(await x.read()); // with a single key, out equals v
});
