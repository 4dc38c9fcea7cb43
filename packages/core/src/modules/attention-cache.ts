import type { AttentionBackend } from "../attention/backend.ts";
import * as option from "../option.ts";
import type { Mask } from "../mask/slice.ts";
import type { Layout } from "../placement/placement.ts";
import type { Tensor } from "../tensor.ts";

/** How an attention module attends with a cache. */
export interface CachedAttentionCall {
  /** Which earlier keys each new token sees: over the new tokens × all tokens so far, and so bottom-right aligned. */
  readonly mask: Mask;
  /** Factor on q·k. */
  readonly scale: number;
  /** Scores become softcap · tanh(score / softcap); undefined: they stay as they are. */
  readonly softcap: number | undefined;
  /** [H], a logit of each head beside its scores; null: none. */
  readonly sinks: Tensor | null;
  /** The module's. */
  readonly backend: AttentionBackend;
  /** Where the new tokens lie: cut along the backend's axes if the cache is `sharded`, else all of them on every rank. */
  readonly layout: Layout;
}

/**
 * The keys and values of earlier tokens in one layer, of a batch of sequences, as an attention module's `forward` takes them: those of
 * `KvCache` of @mosaic/nn, or your own.
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
  /** The position of the first new token of each sequence: as many as the cache holds of it. */
  readonly starts: readonly number[];
  /** Whether the new tokens are cut into shards, as in training, rather than whole on every rank. */
  readonly sharded: boolean;
  /**
   * Stores k and v [B,Hkv,T,D] of the new tokens, and returns the attention of q [B,H,T,D] to these and all earlier ones, [B,H,T,D], in
   * memory as [B,T,H,D].
   */
  forward(q: Tensor, k: Tensor, v: Tensor, call: CachedAttentionCall): Tensor;
}

const hasForward = option.hasMethods<AttentionCache>("forward");

/** Keys and values of earlier tokens. */
export const cacheOption = option.custom(
  "an AttentionCache, such as cache.layer(0, sequences)",
  (value): value is AttentionCache => hasForward(value) && Array.isArray(value.starts),
  { optional: true },
);
