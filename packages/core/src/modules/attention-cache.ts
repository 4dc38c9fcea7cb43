import type { AttentionBackend } from "../attention/backend.ts";
import * as option from "../option.ts";
import type { Mask } from "../mask/slice.ts";
import type { Layout } from "../placement/placement.ts";
import type { Tensor } from "../tensor.ts";

/** Arguments with which an attention module calls `AttentionCache.forward`. */
export interface CachedAttentionCall {
  /** Mask over the new tokens × all tokens so far, and therefore bottom-right aligned. */
  readonly mask: Mask;
  /** Factor on q·k. */
  readonly scale: number;
  /** Replaces scores by softcap · tanh(score / softcap); undefined: none. */
  readonly softcap: number | undefined;
  /** Attention sinks [H], one logit per query head; null: none. */
  readonly sinks: Tensor | null;
  /** The module's backend. */
  readonly backend: AttentionBackend;
  /**
   * Layout of the new tokens: sharded along the backend's axes if the cache is `sharded`, otherwise all of them on
   * every rank.
   */
  readonly layout: Layout;
}

/**
 * A cache of the keys and values of earlier tokens in one layer, for a batch of sequences. It is passed to `forward` of
 * an attention module. Implemented by `KvCache` of @mosaic/nn, or custom.
 *
 * @example
 * ```ts
 * import { type AttentionCache, attention, init, masks, MultiAxisAttention, randn, type Tensor } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new MultiAxisAttention(ctx, { embedDim: 32, numHeads: 4, attentionAxis: 1, causal: true });
 * // Stores nothing, as before the first token.
 * const empty: AttentionCache = {
 *   starts: [0, 0],
 *   sharded: false,
 *   forward: (q, k, v, { mask, scale }): Tensor => attention(ctx, q, k, v, { mask, scale }),
 * };
 * using x = randn(ctx, [2, 3, 32]);
 * using out = attn.forward(x, { cache: empty });
 * out.shape; // => [2, 3, 32]
 * ```
 */
export interface AttentionCache {
  /** The position of the first new token of each sequence, which is the number of its cached tokens. */
  readonly starts: readonly number[];
  /** Whether the new tokens are sharded, as in training, or complete on every rank. */
  readonly sharded: boolean;
  /**
   * Stores k and v [B,Hkv,T,D] of the new tokens. Returns the attention of q [B,H,T,D] to these and all earlier keys,
   * [B,H,T,D] in the memory order [B,T,H,D].
   */
  forward(q: Tensor, k: Tensor, v: Tensor, call: CachedAttentionCall): Tensor;
}

const hasForward = option.hasMethods<AttentionCache>("forward");

/** The option for a cache of keys and values. */
export const cacheOption = option.custom(
  "an AttentionCache, such as cache.layer(0, sequences)",
  (value): value is AttentionCache => hasForward(value) && Array.isArray(value.starts),
  { optional: true },
);
