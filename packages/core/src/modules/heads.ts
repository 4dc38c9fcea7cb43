import type { Context } from "../context.ts";
import type { Layout } from "../placement/layout.ts";
import type { Tensor } from "../tensor.ts";
import type { PositionEncoding } from "./attention-options.ts";

/** Heads `first` to `first + count` of the features: [B,S,n·D] → [B,count,S,D], a view. */
export function splitHeads(x: Tensor, heads: { first: number; count: number; size: number }): Tensor {
  const { first, count, size } = heads;
  using own = x.slice(-1, first * size, (first + count) * size);
  using apart = own.reshape([x.shape[0]!, x.shape[1]!, count, size]);
  return apart.permute([0, 2, 1, 3]);
}

/** x [B,H,S,D] turned by where its rows stand, if anything turns it; takes x. */
export function placedHeads(
  ctx: Context,
  x: Tensor,
  { positions, layout }: { positions: PositionEncoding | null; layout: Layout },
): Tensor {
  if (!positions) return x;
  using plain = x;
  const placed = positions.encode(plain, layout.spans(ctx.mesh.coordinate));
  return placed === plain ? plain.reshape(plain.shape) : placed;
}

/** [B,H,S,D] → [B,S,H·D]; a view of what `attention` returns. */
export function mergeHeads(x: Tensor): Tensor {
  const [b, h, s, d] = x.shape;
  using rows = x.permute([0, 2, 1, 3]);
  return rows.reshape([b!, s!, h! * d!]);
}
