import { type DType, masks, type Slice, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { type CpuDevice } from "../src/index.ts";
import { createGenerator, dtypes, onEveryIsa } from "./sample.ts";

const [heads, length, headDim] = [8, 520, 32];
const spans = [{ start: 0, length, step: 1 }];

/**
 * Groups of rows attend to different keys of the same blocks, in descending and in ascending order. Each half of the rows
 * attends to keys of the first and of the last block, so that copies of the keys are kept.
 */
const parts: Slice[] = (
  [
    [0, 10, 0, 4],
    [100, 110, 508, 512],
    [256, 270, 0, 2],
    [300, 310, 500, 512],
    [0, 150, 40, 50],
    [150, 256, 280, 300],
    [256, 350, 10, 20],
    [340, 400, 60, 64],
    [400, 500, 200, 220],
    [384, 520, 510, 520],
  ] as const
).map(([q0, q1, k0, k1]) => ({ q0, q1, k0, k1, type: "full" }));

const maskCases: readonly (readonly [string, readonly Slice[]])[] = [
  ["full", masks.full().slices(length, length)],
  ["causal", masks.causal().slices(length, length)],
  ["sparse", parts],
];

interface Layout {
  readonly order: readonly number[];
}
/** Memory [B, H, S, D], [B, S, H, D] and [B, H, D, S] of tensors [B, H, S, D]. Each order is its own inverse. */
const contiguous: Layout = { order: [0, 1, 2, 3] };
const layoutCases: readonly (readonly [string, Layout])[] = [
  ["[B, S, H, D]", { order: [0, 2, 1, 3] }],
  ["[B, H, D, S]", { order: [0, 1, 3, 2] }],
];

function createTensor(device: CpuDevice, layout: Layout, dtype: DType, values: Float32Array): Tensor {
  const shape = [1, heads, length, headDim];
  using base = device.empty(
    layout.order.map((axis) => shape[axis]!),
    dtype,
  );
  const x = base.permute(layout.order);
  device.write(x, values);
  return x;
}

const random = createGenerator(1);
const [qValues, kValues, vValues, dOutValues, dqValues, dkValues, dvValues] = Array.from({ length: 7 }, () =>
  Float32Array.from({ length: heads * length * headDim }, random),
) as [Float32Array, Float32Array, Float32Array, Float32Array, Float32Array, Float32Array, Float32Array];

/** Returns dq, dk and dv, which are added to random values. */
async function computeGradients(device: CpuDevice, mask: readonly Slice[], dtype: DType, layout: Layout) {
  using q = createTensor(device, contiguous, dtype, qValues);
  using k = createTensor(device, layout, dtype, kValues);
  using v = createTensor(device, layout, dtype, vValues);
  using dOut = createTensor(device, contiguous, dtype, dOutValues);
  using dq = createTensor(device, contiguous, "float32", dqValues);
  using dk = createTensor(device, layout, "float32", dkValues);
  using dv = createTensor(device, layout, "float32", dvValues);
  using out = device.empty([1, heads, length, headDim], "float32");
  using lse = device.empty([1, heads, length], "float32");
  using delta = device.empty([1, heads, length], "float32");
  device.kernels.fill(lse, Number.NEGATIVE_INFINITY);
  device.kernels.fill(delta, 0.25);
  const tile = { q: spans, k: spans, mask, scale: 0.125 };
  device.kernels.attend({ out, lse }, q, { k, v }, tile);
  device.kernels.attendBackward({ dq, dk, dv }, q, { dOut, lse, delta }, { k, v }, tile);
  return { dq: await dq.read(), dk: await dk.read(), dv: await dv.read() };
}

// Several groups of rows share the keys of a task. Copies of rows that are far apart must not change a bit.
onEveryIsa("attention backward with strided keys", (device) => {
  const cases = dtypes.flatMap((dtype) => maskCases.map(([maskName, mask]) => ({ dtype, maskName, mask })));
  test.each(cases)("has the bits of contiguous keys: $dtype, $maskName mask", async ({ dtype, mask }) => {
    const expected = await computeGradients(device(), mask, dtype, contiguous);
    for (const [memory, layout] of layoutCases) {
      const actual = await computeGradients(device(), mask, dtype, layout);
      for (const name of ["dq", "dk", "dv"] as const) {
        expect(expected[name].every(Number.isFinite)).toBe(true);
        const order = Buffer.compare(Buffer.from(actual[name].buffer), Buffer.from(expected[name].buffer));
        expect(order, `${name} from memory ${memory}`).toBe(0);
      }
    }
  });
});
