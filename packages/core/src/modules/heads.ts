import type { Context } from "../context.ts";
import type { Layout } from "../placement/layout.ts";
import type { Tensor } from "../tensor.ts";
import type { PositionEncoding } from "./attention-options.ts";

// For the scope of an attention module: what lies between the steps is released when that ends.

/** Heads `first` to `first + count` of the features: [B,S,n·D] → [B,count,S,D], a view. */
export function splitHeads(x: Tensor, heads: { first: number; count: number; size: number }): Tensor {
  const { first, count, size } = heads;
  const [b, s] = x.shape as [number, number, number];
  return x
    .slice(-1, first * size, (first + count) * size)
    .reshape([b, s, count, size])
    .permute([0, 2, 1, 3]);
}

/** x [B,H,S,D] with the position encoding of its rows, if the module has one. */
export function applyPositionEncoding(
  ctx: Context,
  x: Tensor,
  { positions, layout }: { positions: PositionEncoding | null; layout: Layout },
): Tensor {
  return positions ? positions.encode(x, layout.spans(ctx.mesh.coordinate)) : x;
}

/** [B,H,S,D] → [B,S,H·D]; a view of what `attention` returns. */
export function mergeHeads(x: Tensor): Tensor {
  const [b, h, s, d] = x.shape as [number, number, number, number];
  return x.permute([0, 2, 1, 3]).reshape([b, s, h * d]);
}
