import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { world } from "@mosaic/collectives-local";
import { attention, type AttentionBackend, type Context, layoutOf, masks, randn, zigzag } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { prove, record } from "../src/index.ts";

// Every tensor fills whole lines of 64 bytes, which is the unit of the CPU's allocator.
const sizes = { tokens: 96, numHeads: 4, numKvHeads: 2, headDim: 16, batch: 1, dtype: "bfloat16" } as const;
const mesh = { sp: 6 };
const arrangement = { mask: masks.causal(), placement: zigzag() };

/** Runs what `record` records, on a device that computes. Returns the peak allocated bytes. */
function measurePeakBytes(ctx: Context, backend: AttentionBackend): number {
  const { tokens, numHeads, numKvHeads, headDim, batch, dtype } = sizes;
  const layout = layoutOf({ mesh, axes: ["sp"], placement: arrangement.placement, length: tokens });
  const createTensor = (heads: number) => randn(ctx, [batch, heads, tokens / mesh.sp, headDim], { dtype });
  using q = createTensor(numHeads);
  using k = createTensor(numKvHeads);
  using v = createTensor(numKvHeads);
  using dOut = createTensor(numHeads);
  for (const x of [q, k, v]) x.requiresGrad = true;
  ctx.device.resetPeakMemory();
  using out = attention(ctx, q, k, v, { backend, mask: arrangement.mask, queries: layout, keys: layout });
  out.backward(dOut);
  const { peak } = ctx.device.memory();
  for (const { grad } of [q, k, v]) grad!.dispose();
  return peak;
}

test.each([
  ["ring", ring()],
  ["overlapped mesh2d", mesh2d({ shape: [3, 2], schedule: "overlapped" })],
  ["fused mesh2d", mesh2d({ shape: [3, 2], schedule: "fused" })],
])("the proved peak memory of a %s equals that of the CPU's allocator", async (_, backend) => {
  const { violations, peakBytes } = prove(record({ backend, mesh, ...sizes, ...arrangement }));
  expect(violations).toEqual([]);
  const contexts = await world(mesh.sp, { mesh, device: () => cpu({ threads: 1 }) });
  try {
    const peaks = contexts.map((ctx) => measurePeakBytes(ctx, backend));
    await Promise.all(contexts.map(({ device }) => device.stream.synchronize()));
    expect(peaks).toEqual(peakBytes);
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
});
