import * as mosaic from "@mosaic/attention";
import { spansLength } from "@mosaic/attention/core";
import { now } from "./case.ts";

/** Attention over a sequence that is sharded across ranks, with batch 1 and as many KV heads as query heads. */
export interface SharedAttention {
  readonly backend: mosaic.AttentionBackend;
  readonly mask: mosaic.Mask;
  readonly placement: mosaic.Placement | mosaic.PlacementName;
  /** Length of the whole sequence. */
  readonly length: number;
  readonly numHeads: number;
  readonly headDim: number;
  readonly dtype: mosaic.DType;
}

/**
 * Runs `steps` steps of attention, forward and backward, after one warm-up step. Returns when they began and ended on
 * this rank.
 */
export async function timeSteps(
  ctx: mosaic.Context,
  { backend, mask, placement, length, numHeads, headDim, dtype }: SharedAttention,
  steps: number,
): Promise<{ begin: number; end: number }> {
  const layout = mosaic.layoutOf({ mesh: ctx.mesh.shape, axes: backend.axes, placement, length });
  const rows = spansLength(layout.spans(ctx.mesh.coordinate));
  const drawTensor = (): mosaic.Tensor => mosaic.randn(ctx, [1, numHeads, rows, headDim], { dtype });
  using q = drawTensor();
  using k = drawTensor();
  using v = drawTensor();
  using dOut = drawTensor();
  const inputs = [q, k, v];
  for (const input of inputs) input.requiresGrad = true;
  const step = async (): Promise<void> => {
    using out = mosaic.attention(ctx, q, k, v, { backend, mask, queries: layout, keys: layout });
    out.backward(dOut);
    await ctx.device.stream.synchronize();
    for (const input of inputs) {
      input.grad?.dispose();
      input.grad = null;
    }
  };
  await step();
  ctx.world.barrier().wait();
  await ctx.device.stream.synchronize();
  const begin = now();
  for (let i = 0; i < steps; i++) await step();
  return { begin, end: now() };
}
