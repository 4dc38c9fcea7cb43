import type { Tensor } from "../tensor.ts";

// Shapes: B batch, H heads, Hkv key heads, S local sequence, D head size, Dv that of the values.

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
