import type { Slice } from "../mask/slice.ts";
import type { Span } from "../placement/span.ts";
import type { Tensor } from "../tensor.ts";

// Shapes: B batch, H heads, Hkv KV heads, S local sequence, D head size, Dv head size of the values.

/**
 * Attention over some set of keys: out [B,H,S,Dv] and lse [B,H,S], float32; lse is −Infinity in rows without any
 * visible key so far.
 */
export interface AttentionState {
  readonly out: Tensor;
  readonly lse: Tensor;
}

/** Keys k [B,Hkv,S,D] and values v [B,Hkv,S,Dv]. Dv ≠ D requires a device with the feature `valueHeadDim`. */
export interface KvBlock {
  readonly k: Tensor;
  readonly v: Tensor;
}

/** Inputs of the backward beside q, k and v: dOut [B,H,S,Dv], lse [B,H,S] and delta = rowsum(dOut·out) [B,H,S]. */
export interface SavedRows {
  readonly dOut: Tensor;
  readonly lse: Tensor;
  readonly delta: Tensor;
}

/** Gradient accumulators, float32: dq [B,H,Sq,D], dk [B,Hkv,Sk,D], dv [B,Hkv,Sk,Dv]. */
export interface QkvGrads {
  readonly dq: Tensor;
  readonly dk: Tensor;
  readonly dv: Tensor;
}

/**
 * Features of an attention call beyond plain attention. Each is off if absent. A call that uses a feature is rejected
 * on a device that does not have it (`Device.features`). All features refer to global indices, so that they mean the
 * same on every mesh.
 */
export interface AttentionModifiers {
  /**
   * Replaces scores by softcap · tanh(score / softcap), after `scale` and before slopes. Greater than 0. Gemma 2
   * (2024).
   */
  readonly softcap?: number | undefined;
  /**
   * ALiBi (Press et al. 2022): subtracts slope · |query − key| from scores. Slopes [H], float32, of all heads of the
   * model.
   */
  readonly slopes?: Tensor | null | undefined;
  readonly dropout?: AttentionDropout | null | undefined;
  /**
   * For each sample, the slices that are visible in addition to the call's mask. They are disjoint from each other and
   * from the mask. Indexed by global sample: batch element b of a call has index `origin.batch` + b, or b without an
   * origin.
   */
  readonly sampleMasks?: readonly (readonly Slice[])[] | undefined;
  /** Global index of the call's first sample and first head. Not 0 if heads or samples are distributed over ranks. */
  readonly origin?: HeadOrigin | undefined;
}

/**
 * Dropout of attention weights after the softmax. Weights that are kept are scaled by 1 / (1 − probability); lse
 * includes all weights. Which weights are kept is a function of seed, stream and the global batch, head, query and key,
 * so that it is the same on every mesh.
 *
 * Random bits come from Philox4x32-10 (Salmon et al. 2011), applied twice. With the counter (stream mod 2³², stream /
 * 2³², 0, 0) and the key (seed mod 2³², seed / 2³²), output words 0 and 1 are the key of the call. With the counter (⌊j
 * / 4⌋, i, b, h) and the key of the call, output word j mod 4 belongs to key j and query i of sample b and query head
 * h: the weight is dropped if the word's upper 24 bits are less than probability · 2²⁴.
 */
export interface AttentionDropout {
  /** Probability that a weight is dropped, in [0, 1). */
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  /** Number of samples on the preceding data-parallel ranks, if there are several. Added to `origin.batch`. */
  readonly batchOffset: number;
}

/** Global index of a call's first batch element and of its first query head. */
export interface HeadOrigin {
  readonly batch: number;
  readonly head: number;
}

/**
 * Everything that a kernel needs of a block of queries and keys beyond their values. Kernels mask by global position.
 */
export interface Tile {
  /** Global positions of the rows of q, in order; lengths sum to Sq. */
  readonly q: readonly Span[];
  /** Global positions of the rows of k and v, in order; lengths sum to Sk. */
  readonly k: readonly Span[];
  /** Disjoint slices. */
  readonly mask: readonly Slice[];
  /** Factor on q·k before the softmax. */
  readonly scale: number;
  readonly modifiers?: AttentionModifiers | undefined;
}
