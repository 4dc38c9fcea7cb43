import type { Linear, Tensor } from "@mosaic/core";
import type { Qkv } from "./attend/attending.ts";
import type { Chunks } from "./chunks.ts";
import type { ResolvedOptions } from "./settings.ts";

/** Queries, keys and values with history, to be disposed together. */
export interface Projected extends Qkv, Disposable {}

/** What stands between x and its queries, keys and values. */
export interface QkvProjection {
  readonly qkvProjection: Linear;
  readonly settings: ResolvedOptions;
  readonly chunks: Chunks;
}

/** x [B,S,E] → q [B,H,S,D], k and v [B,Hkv,S,D]; q and k turned by where their rows stand, if anything turns them. */
export function project(x: Tensor, { qkvProjection, settings, chunks }: QkvProjection): Projected {
  const { numHeads, numKvHeads, headDim: size, positions } = settings;
  using qkv = qkvProjection.forward(x);
  const part = (first: number, count: number): Tensor => headsOf(qkv, { first, count, size });
  const placed = (numHeads: Tensor): Tensor => {
    if (!positions) return numHeads;
    using plain = numHeads;
    const turned = positions.encode(plain, chunks.shards[chunks.rank]!);
    if (turned.strides.at(-1) === 1) return turned;
    using strided = turned;
    return strided.contiguous();
  };
  const q = placed(part(0, numHeads));
  const k = placed(part(numHeads, numKvHeads));
  const v = part(numHeads + numKvHeads, numKvHeads);
  return { q, k, v, [Symbol.dispose]: () => [q, k, v].forEach((each) => each.dispose()) };
}

/** Heads `first` to `first + count` of the features: [B,S,n·D] → [B,count,S,D], a view. */
function headsOf(x: Tensor, { first, count, size }: { first: number; count: number; size: number }): Tensor {
  using own = x.slice(-1, first * size, (first + count) * size);
  using apart = own.reshape([x.shape[0]!, x.shape[1]!, count, size]);
  return apart.permute([0, 2, 1, 3]);
}
