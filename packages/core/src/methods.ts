import type { DType } from "./storage.ts";
import type { UnaryOp } from "./kernels/kernels.ts";
import { gated } from "./ops/gated.ts";
import { linear } from "./ops/linear.ts";
import { matmul } from "./ops/matmul.ts";
import { layerNorm, type NormOptions, rmsNorm, type RmsNormOptions } from "./ops/norm.ts";
import * as pointwise from "./ops/pointwise.ts";
import { max, mean, min, type ReduceOptions, sum } from "./ops/reduction.ts";
import { softmax } from "./ops/softmax.ts";
import type { Axes, Shape } from "./shape.ts";
import { Tensor } from "./tensor.ts";
import * as views from "./views.ts";

// Operations as methods: `x.add(y)` is `add(x, y)`. tensor.ts imports no operation; this file adds all of them to
// `Tensor`.

/**
 * The operations of a tensor. Each is the function of the same name with the tensor as its first argument. Views are
 * available only as methods.
 */
export interface TensorMethods {
  /**
   * Returns the same elements in row-major order with another shape; one length may be -1. Copies only if no strides
   * can represent the result.
   */
  reshape(shape: Shape): Tensor;
  /** Permutes the axes: axis i of the result is axis `axes[i]` of this tensor. */
  permute(axes: readonly number[]): Tensor;
  /** Swaps two axes. */
  transpose(a: number, b: number): Tensor;
  /**
   * Selects elements start, start + step, … before `end` along one axis. A negative start or end counts from the end.
   */
  slice(axis: number, start: number, end?: number, step?: number): Tensor;
  /** Selects one position along an axis, which the result does not have. A negative index counts from the end. */
  select(axis: number, index: number): Tensor;
  /**
   * Splits the tensor along an axis into parts of `sizes` elements, the last of which may be smaller, or into parts of
   * the given sizes, whose sum is the length of the axis.
   */
  split(sizes: number | readonly number[], axis: number): Tensor[];
  /** Removes all axes of length 1, or those of the given axes that have length 1. */
  squeeze(axes?: Axes): Tensor;
  /** Inserts an axis of length 1 with the index `axis`, which may be the number of axes. */
  unsqueeze(axis: number): Tensor;
  /** Repeats axes of length 1 and adds leading axes, without a copy. */
  expand(shape: Shape): Tensor;
  /** Returns a tensor with the same memory if it is contiguous, otherwise a contiguous copy. */
  contiguous(): Tensor;
  /** Converts to another dtype, rounding to nearest even. Shares memory if the dtype is the same. */
  to(dtype: DType): Tensor;

  /** this + other, a tensor or a number. Shapes broadcast as in NumPy; dtypes must agree. */
  add(other: Tensor | number): Tensor;
  /** this − other, with broadcasting. */
  sub(other: Tensor | number): Tensor;
  /** this · other element by element, with broadcasting. */
  mul(other: Tensor | number): Tensor;
  /** this / other element by element, with broadcasting. */
  div(other: Tensor | number): Tensor;
  /** this · factor. */
  scale(factor: number): Tensor;

  /** Matrix product [..,M,K] · [..,K,N] → [..,M,N]; leading axes broadcast. For a weight matrix use `linear`. */
  matmul(other: Tensor): Tensor;
  /**
   * activation(this · Wᵀ + b): this [..,in], weight [out,in], bias [out] or null → [..,out]; or activation(gate) ·
   * (this · Wᵀ + b).
   */
  linear(weight: Tensor, bias?: Tensor | null, activation?: UnaryOp | null, gate?: Tensor | null): Tensor;
  /** activation(gate) · this, rounded once. */
  gated(gate: Tensor, activation?: UnaryOp | null): Tensor;

  /** −this. */
  neg(): Tensor;
  /** eˣ. */
  exp(): Tensor;
  /** Natural logarithm. */
  log(): Tensor;
  /** √x. */
  sqrt(): Tensor;
  /** 1 / √x. */
  rsqrt(): Tensor;
  /** Hyperbolic tangent. */
  tanh(): Tensor;
  /** 1 / (1 + e⁻ˣ). */
  sigmoid(): Tensor;
  /** max(x, 0); the derivative at 0 is 0. */
  relu(): Tensor;
  /**
   * x · Φ(x), where Φ is the normal cumulative distribution function: Hendrycks and Gimpel 2016. Same option as
   * PyTorch.
   */
  gelu(options?: pointwise.GeluOptions): Tensor;
  /** x · sigmoid(x), also called swish: Elfwing et al. 2017. */
  silu(): Tensor;
  /** x². */
  square(): Tensor;

  /** Softmax along one axis, the last by default. A row of −Infinity yields 0. */
  softmax(axis?: number): Tensor;
  /** (x − mean) / √(variance + ε) · weight + bias over the last axis. Ba, Kiros and Hinton 2016. ε defaults to 1e-5. */
  layerNorm(weight?: Tensor | null, bias?: Tensor | null, options?: NormOptions): Tensor;
  /** x / √(mean of x² + ε) · (weight + weightOffset) over the last axis. Zhang and Sennrich 2019. ε defaults to 1e-6. */
  rmsNorm(weight?: Tensor | null, options?: RmsNormOptions): Tensor;

  /** Sum over some axes, or all; float32 accumulation, one rounding. */
  sum(axes?: Axes, options?: ReduceOptions): Tensor;
  /** Mean over some axes, or all; float32 accumulation, one rounding. NaN if there are no elements. */
  mean(axes?: Axes, options?: ReduceOptions): Tensor;
  /** Maximum over some axes, or all. The gradient is distributed equally among elements that equal the maximum. */
  max(axes?: Axes, options?: ReduceOptions): Tensor;
  /** Minimum over some axes, or all. The gradient is distributed equally among elements that equal the minimum. */
  min(axes?: Axes, options?: ReduceOptions): Tensor;
}

declare module "./tensor.ts" {
  interface Tensor extends TensorMethods {}
}

/** Converts `operation(x, …)` to a method of x. */
function toMethod<Rest extends readonly unknown[], Result>(
  operation: (x: Tensor, ...rest: Rest) => Result,
): (this: Tensor, ...rest: Rest) => Result {
  return function (...rest) {
    return operation(this, ...rest);
  };
}

const methods: TensorMethods = {
  reshape: toMethod(views.reshape),
  permute: toMethod(views.permute),
  transpose: toMethod(views.transpose),
  slice: toMethod((x, axis: number, start: number, end?: number, step?: number) =>
    views.slice(x, axis, { start, end, step }),
  ),
  select: toMethod(views.select),
  split: toMethod(views.split),
  squeeze: toMethod(views.squeeze),
  unsqueeze: toMethod(views.unsqueeze),
  expand: toMethod(views.expand),
  contiguous: toMethod(views.contiguous),
  to: toMethod(views.to),
  add: toMethod(pointwise.add),
  sub: toMethod(pointwise.sub),
  mul: toMethod(pointwise.mul),
  div: toMethod(pointwise.div),
  scale: toMethod(pointwise.scale),
  matmul: toMethod(matmul),
  linear: toMethod(linear),
  gated: toMethod(gated),
  neg: toMethod(pointwise.neg),
  exp: toMethod(pointwise.exp),
  log: toMethod(pointwise.log),
  sqrt: toMethod(pointwise.sqrt),
  rsqrt: toMethod(pointwise.rsqrt),
  tanh: toMethod(pointwise.tanh),
  sigmoid: toMethod(pointwise.sigmoid),
  relu: toMethod(pointwise.relu),
  gelu: toMethod(pointwise.gelu),
  silu: toMethod(pointwise.silu),
  square: toMethod(pointwise.square),
  softmax: toMethod(softmax),
  layerNorm: toMethod(layerNorm),
  rmsNorm: toMethod(rmsNorm),
  sum: toMethod(sum),
  mean: toMethod(mean),
  max: toMethod(max),
  min: toMethod(min),
};

for (const [name, value] of Object.entries(methods)) {
  Object.defineProperty(Tensor.prototype, name, { value, configurable: true, writable: true });
}
