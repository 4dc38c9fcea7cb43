import type { AttentionState, KvBlock, QkvGrads, SavedRows } from "./attention/state.ts";
import type { Tile } from "./attention/tile.ts";
import type { Shape } from "./shape.ts";
import type { Tensor } from "./tensor.ts";

/** a op b; max is the larger of the two. */
export type BinaryOp = "add" | "sub" | "mul" | "div" | "max";
/** Functions of one element; gelu is the exact one, x · Φ(x). */
export type UnaryOp = "neg" | "exp" | "log" | "sqrt" | "rsqrt" | "tanh" | "sigmoid" | "relu" | "gelu" | "square";
/** How elements are combined into one. */
export type ReduceKind = "sum" | "max";

/**
 * What a device computes. Every kernel enqueues on the device's stream and returns at once.
 *
 * Operands may be views of any strides (0 broadcasts an input) and of any dtype; outputs come first, are the caller's,
 * and may be strided but never overlap themselves. Rows of q, k, v and dOut are dense: their last stride is 1. All arithmetic accumulates in float32 and rounds once.
 * Core checks shapes before it calls; a kernel may assume them.
 */
export interface Kernels {
  /**
   * Folds one block of keys into `state`: q [B,H,Sq,D], k and v [B,Hkv,Sk,D], out [B,H,Sq,D] and lse [B,H,Sq] float32.
   * Query head h reads key head floor(h·Hkv/H). Rows that see nothing stay as they are.
   * Online softmax: Milakov and Gimelshein 2018; blocks: FlashAttention-2 (Dao 2023), algorithm 1.
   */
  attend(state: AttentionState, q: Tensor, kv: KvBlock, tile: Tile): void;
  /** Adds to dq, dk, dv (float32) what this block of keys contributes; uses the global lse and delta. FlashAttention-2, algorithm 2. */
  attendBackward(grads: QkvGrads, q: Tensor, saved: SavedRows, kv: KvBlock, tile: Tile): void;
  /** into ← the state over the union of both (disjoint) key sets. */
  merge(into: AttentionState, from: AttentionState): void;
  /** out[…] ← Σ over the last axis of a·b, float32: delta = rowsum(dOut · out). */
  rowDot(out: Tensor, a: Tensor, b: Tensor): void;

  fill(out: Tensor, value: number): void;
  /** out ← x, converting dtype; x may broadcast. */
  copy(out: Tensor, x: Tensor): void;
  /** out ← a op b, with broadcasting; out may be a or b. */
  binary(op: BinaryOp, out: Tensor, a: Tensor, b: Tensor): void;
  /** out ← x op scalar. */
  scalar(op: BinaryOp, out: Tensor, x: Tensor, value: number): void;
  unary(op: UnaryOp, out: Tensor, x: Tensor): void;
  /** dx ← dy · op'(x). */
  unaryBackward(op: UnaryOp, dx: Tensor, x: Tensor, dy: Tensor): void;
  /** Reduces every axis on which out has length 1 and x has not. */
  reduce(kind: ReduceKind, out: Tensor, x: Tensor): void;
  /** out [..,M,N] ← a [..,M,K] · b [..,K,N] (+ out if `accumulate`); leading axes broadcast; transposes are strides. */
  matmul(out: Tensor, a: Tensor, b: Tensor, accumulate: boolean): void;
  /** Over the last axis; a row of −Infinity gives 0. */
  softmax(out: Tensor, x: Tensor): void;
  softmaxBackward(dx: Tensor, out: Tensor, dOut: Tensor): void;
  /** Over the last axis; weight and bias [E]; saves mean and rstd [..,1] float32 for the backward. */
  layerNorm(out: Tensor, x: Tensor, norm: NormParameters, stats: NormStats): void;
  /** dx is written; dWeight and dBias (float32, [E]) are added to. */
  layerNormBackward(grads: NormGrads, x: Tensor, dOut: Tensor, weight: Tensor | null, stats: NormStats): void;
  rmsNorm(out: Tensor, x: Tensor, norm: NormParameters, stats: NormStats): void;
  rmsNormBackward(grads: NormGrads, x: Tensor, dOut: Tensor, weight: Tensor | null, stats: NormStats): void;
  /** Philox4x32-10 (Salmon et al. 2011): element i depends on (seed, stream, i) alone, on any device and any mesh. */
  random(out: Tensor, spec: RandomSpec): void;
  /** out ← x / (1 − probability), or 0 where the number at the element's global index is below `probability`. */
  dropout(out: Tensor, x: Tensor, spec: DropoutSpec): void;
  /**
   * out [..,E] ← the rows of table [V,E] that index [..] names: whole numbers from 0 to V − 1, in any dtype. Another
   * number fails the stream with a DeviceError.
   */
  gatherRows(out: Tensor, table: Tensor, index: Tensor): void;
  /** into [V,E] (float32) += the rows x [..,E], each where index [..] says, in their order. */
  scatterAddRows(into: Tensor, x: Tensor, index: Tensor): void;
  /**
   * Of each row of logits x [..,C] and its class target [..]: the loss, the natural logarithm lse of Σ exp, and whether it
   * counts (1) or target is `ignored` (0, with loss 0). All float32 [..]. A target that is no class fails the stream.
   */
  crossEntropy(rows: CrossEntropyRows, x: Tensor, target: Tensor, spec: CrossEntropySpec): void;
  /** dx [..,C] ← dLoss [..] · (softmax(x) − what the target asks for); 0 for rows that do not count. */
  crossEntropyBackward(dx: Tensor, saved: CrossEntropySaved, dLoss: Tensor, spec: CrossEntropySpec): void;
  /** One step of an optimizer on one parameter, in place; all have one shape, `first` and `second` are float32. */
  adam(state: AdamState, gradient: Tensor, step: AdamStep): void;
}

/** [E] each, or null for 1 and 0; epsilon is added under the root. */
export interface NormParameters {
  readonly weight: Tensor | null;
  readonly bias: Tensor | null;
  readonly epsilon: number;
}
/** `mean` is null for RMSNorm. */
export interface NormStats {
  readonly mean: Tensor | null;
  readonly rstd: Tensor;
}
/** dWeight and dBias are null where nobody wants them. */
export interface NormGrads {
  readonly dx: Tensor;
  readonly dWeight: Tensor | null;
  readonly dBias: Tensor | null;
}
/** uniform: in [low, high); normal: mean and standard deviation. `stream` tells tensors of one seed apart. */
export type RandomSpec =
  | {
      readonly kind: "uniform";
      readonly low: number;
      readonly high: number;
      readonly seed: number;
      readonly stream: number;
    }
  | {
      readonly kind: "normal";
      readonly mean: number;
      readonly std: number;
      readonly seed: number;
      readonly stream: number;
    };

/** The numbers are `random`'s, uniform in [0, 1): element [i, j, …] has the one of index offset + i · strides[0] + j · strides[1] + …. */
export interface DropoutSpec {
  /** Of an element to become 0: in [0, 1). */
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  readonly offset: number;
  readonly strides: Shape;
}

/** What crossEntropy computes of each row. */
export interface CrossEntropyRows {
  readonly loss: Tensor;
  readonly lse: Tensor;
  readonly counted: Tensor;
}
/** What crossEntropyBackward needs of the forward. */
export interface CrossEntropySaved {
  readonly x: Tensor;
  readonly target: Tensor;
  readonly lse: Tensor;
}
/** The target asks for 1 − smoothing of its class, and smoothing / C of every class (Szegedy et al. 2016). */
export interface CrossEntropySpec {
  readonly smoothing: number;
  /** Rows with this target do not count. */
  readonly ignored: number;
}

/** adamW: the running means of g and g². scheduleFree: z, and the running mean of g²; the parameter is y. */
export interface AdamState {
  readonly parameter: Tensor;
  readonly first: Tensor;
  readonly second: Tensor;
}
/**
 * With g the gradient, v = second ← β₂ v + (1 − β₂) g² and n = √(v / correction2) + ε:
 *
 * adamW (Loshchilov and Hutter 2019): p ← (1 − rate · decay) p; m = first ← m + (1 − β₁)(g − m);
 * p ← p − rate / correction1 · m / n.
 *
 * scheduleFree (Defazio et al. 2024): u = g / n + decay · y; y ← y + mix (z − y) + rate (β₁ (1 − mix) − 1) u; z ← z − rate · u.
 */
export interface AdamStep {
  readonly kind: "adamW" | "scheduleFree";
  readonly rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly decay: number;
  /** 1 − β₁ᵗ; scheduleFree has no use for it. */
  readonly correction1: number;
  /** 1 − β₂ᵗ. */
  readonly correction2: number;
  /** The weight of z in the average that x is; adamW has no use for it. */
  readonly mix: number;
}
