import type { Slice } from "../mask/slice.ts";
import type { Span } from "../placement/span.ts";
import type { Tensor } from "../tensor.ts";

// Shapes: B batch, H heads, Hkv KV heads, S local sequence, D head size, Dv that of the values.

/** Attention over some set of keys: out [B,H,S,Dv] and lse [B,H,S], float32; lse is −Infinity where nothing was seen yet. */
export interface AttentionState {
  readonly out: Tensor;
  readonly lse: Tensor;
}

/** Keys k [B,Hkv,S,D] and values v [B,Hkv,S,Dv]. Where Dv is not D, it takes a device with the feature `valueHeadSize`. */
export interface KvBlock {
  readonly k: Tensor;
  readonly v: Tensor;
}

/** What the backward needs of the finished forward: dOut [B,H,S,Dv], lse [B,H,S] and delta = rowsum(dOut·out) [B,H,S]. */
export interface SavedRows {
  readonly dOut: Tensor;
  readonly lse: Tensor;
  readonly delta: Tensor;
}

/** Gradients to add to, float32: dq [B,H,Sq,D], dk [B,Hkv,Sk,D], dv [B,Hkv,Sk,Dv]. */
export interface QkvGrads {
  readonly dq: Tensor;
  readonly dk: Tensor;
  readonly dv: Tensor;
}

/**
 * Features of an attention call beyond plain attention. Each is off if absent, and is a feature that a device may not have
 * (`Device.features`): then the call is rejected. All of it refers to global indices, so that it means the same on every mesh.
 */
export interface AttentionModifiers {
  /** Scores become softcap · tanh(score / softcap), after `scale` and before slopes; > 0. Gemma 2 (2024). */
  readonly softcap?: number | undefined;
  /** ALiBi (Press et al. 2022): scores lose slope · |query − key|. Slopes [H], float32, of all heads of the model. */
  readonly slopes?: Tensor | null | undefined;
  readonly dropout?: AttentionDropout | null | undefined;
  /**
   * What each sample sees beside what the call's mask shows to all: disjoint slices, and disjoint from the mask. By global
   * sample: batch element b of a call has number `origin.batch` + b, without an origin b.
   */
  readonly sampleMasks?: readonly (readonly Slice[])[] | undefined;
  /** Where the batch and the heads of this call begin among all: with heads or samples shared out, not at 0. */
  readonly origin?: HeadOrigin | undefined;
}

/**
 * Dropout of attention weights, after the softmax: those kept count 1 / (1 − probability), lse stays that of all. Which are
 * kept follows from seed, stream and the global batch, head, query and key: it is the same on every mesh.
 *
 * Philox4x32-10 (Salmon et al. 2011), twice. The words 0 and 1 that (stream mod 2³², stream / 2³², 0, 0) gives under the key (seed mod 2³², seed / 2³²)
 * are the key of the call. Under it word j mod 4 of what (⌊j / 4⌋, i, b, h) gives belongs to key j and query i of sample b and query head h: the weight
 * is dropped if the word's upper 24 bits are less than probability · 2²⁴.
 */
export interface AttentionDropout {
  /** Of a weight to become 0: in [0, 1). */
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  /** Samples before those of the whole call, which other ranks have: where samples are cut along "dp". Beside `origin.batch`. */
  readonly batchOffset: number;
}

/** The global index of a call's first batch element and of its first query head. */
export interface HeadOrigin {
  readonly batch: number;
  readonly head: number;
}

/** What a kernel must know of a block of queries and keys beyond their values. Kernels mask by global position. */
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
