import type { Tensor } from "@mosaic/core";

/** The gradients that a backward works on: [B,H,S,D] each, of keys and values [B,Hkv,S,D], and the rows' dot products [B,H,S]. */
export interface Gradients {
  /** Of the combined output, and of that over own chunks alone if there is a gate. */
  readonly dCombined: Tensor;
  readonly dOwn: Tensor | null;
  /** rowsum(dCombined · combined). */
  readonly delta: Tensor;
  /** To add to, float32. */
  readonly dq: Tensor;
  readonly dk: Tensor;
  readonly dv: Tensor;
  /** [B,c,N]. */
  readonly dRouter: Tensor;
}
