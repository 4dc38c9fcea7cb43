import { checkTensor } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import type { DType } from "../storage.ts";
import { ShapeError } from "../errors.ts";
import type { ReduceKind } from "../kernels/kernels.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { checkSequenceUnsharded } from "../placement/sharding.ts";
import { type Axes, formatShape, normalizeAxis, type Shape, numel } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { neg } from "./pointwise.ts";

export const reduceOptions = defineOptions("reduce", {
  /** Keep reduced axes with length 1. Default false. */
  keepDims: option.boolean({ default: false }),
});
/** Options of reductions. */
export type ReduceOptions = OptionsOf<typeof reduceOptions>;

/** The shape with reduced axes kept at length 1, and the shape of the result. */
interface ReductionShapes {
  readonly keepdimShape: Shape;
  readonly shape: Shape;
}

// oxlint-disable-next-line max-params -- what every reduction is called with, and its name
function reductionShapes(
  where: string,
  x: Tensor,
  axes: Axes | undefined,
  options: ReduceOptions | undefined,
): ReductionShapes {
  checkTensor(where, x);
  const { keepDims } = reduceOptions.parse(options, where);
  const axisList = axes === undefined ? x.shape.map((_, axis) => axis) : [axes].flat();
  const reducedAxes = new Set(axisList.map((axis) => normalizeAxis(axis, x.rank, where)));
  if (reducedAxes.size < axisList.length) {
    throw new ShapeError({ where, expected: "distinct axes", received: `${formatShape(axisList)} of ${x.rank} axes` });
  }
  // A sum of a rank's rows is its part of the sum of all rows.
  if (where !== "sum") {
    for (const axis of reducedAxes) checkSequenceUnsharded(where, x, axis);
  }
  const keepdimShape = x.shape.map((length, axis) => (reducedAxes.has(axis) ? 1 : length));
  return { keepdimShape, shape: keepDims ? keepdimShape : x.shape.filter((_, axis) => !reducedAxes.has(axis)) };
}

// oxlint-disable-next-line max-params -- a kind, of what, to which shape, in which dtype
function reduce(kind: ReduceKind, x: Tensor, { keepdimShape, shape }: ReductionShapes, dtype: DType = x.dtype): Tensor {
  using out = x.device.empty(keepdimShape, dtype);
  if (x.size === 0) x.device.kernels.fill(out, kind === "sum" ? 0 : -Infinity);
  else if (out.size === x.size) x.device.kernels.copy(out, x);
  else x.device.kernels.reduce(kind, out, x);
  return out.reshape(shape);
}

const sumOp = defineOp({
  name: "sum",
  forward([x]: [Tensor], shapes: ReductionShapes) {
    return { output: reduce("sum", x, shapes), saved: { keepdimShape: shapes.keepdimShape, inputShape: x.shape } };
  },
  backward({ keepdimShape, inputShape }, dOut) {
    using keepdimGradient = dOut.reshape(keepdimShape);
    const dx = dOut.device.empty(inputShape, dOut.dtype);
    if (dx.size > 0) dOut.device.kernels.copy(dx, keepdimGradient);
    return [dx];
  },
});

/**
 * Returns the sum over some axes, or all. Accumulates in float32 and rounds once.
 *
 * @example
 * ```ts
 * import { fromArray, sum } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using rows = sum(x, -1);
 * Array.from(await rows.read()); // => [3, 7]
 * ```
 * @throws ShapeError for an axis out of range, and for an axis that occurs twice.
 */
export function sum(x: Tensor, axes?: Axes, options?: ReduceOptions): Tensor {
  return sumOp([x], reductionShapes("sum", x, axes, options));
}

const meanOp = defineOp({
  name: "mean",
  forward([x]: [Tensor], shapes: ReductionShapes) {
    const factor = numel(shapes.keepdimShape) / x.size;
    // float32, because the sum of 16-bit numbers may overflow 16 bits.
    using total = reduce("sum", x, shapes, "float32");
    const output = x.device.empty(shapes.shape, x.dtype);
    x.device.kernels.scalar("mul", output, total, factor);
    return { output, saved: { keepdimShape: shapes.keepdimShape, inputShape: x.shape, factor } };
  },
  backward({ keepdimShape, inputShape, factor }, dOut) {
    using keepdimGradient = dOut.reshape(keepdimShape);
    using expandedGradient = keepdimGradient.expand(inputShape);
    const dx = dOut.device.empty(inputShape, dOut.dtype);
    if (dx.size > 0) dOut.device.kernels.scalar("mul", dx, expandedGradient, factor);
    return [dx];
  },
});

/**
 * Returns the mean over some axes, or all. Accumulates in float32 and rounds once. NaN if there are no elements.
 *
 * @example
 * ```ts
 * import { fromArray, mean } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using columns = mean(x, 0, { keepDims: true });
 * columns.shape; // => [1, 2]
 * Array.from(await columns.read()); // => [2, 3]
 * ```
 * @throws ShapeError for an axis out of range, for an axis that occurs twice, and for an axis whose rows are known to
 * be sharded, unless along data-parallel mesh axes: as a loss, the mean of a rank's rows would have gradients that are
 * too large by the number of ranks.
 */
export function mean(x: Tensor, axes?: Axes, options?: ReduceOptions): Tensor {
  return meanOp([x], reductionShapes("mean", x, axes, options));
}

const maxOp = defineOp({
  name: "max",
  forward([x]: [Tensor], shapes: ReductionShapes) {
    const output = reduce("max", x, shapes);
    return { output, saved: { x, output, keepdimShape: shapes.keepdimShape } };
  },
  backward({ x, output, keepdimShape }, dOutput) {
    const { device } = x;
    const { kernels } = device;
    using maxValues = output.reshape(keepdimShape);
    using dOut = dOutput.reshape(keepdimShape);
    using maxIndicator = createMaxIndicator(x, maxValues);
    using gradientPerMaximum = device.empty(keepdimShape, "float32");
    if (gradientPerMaximum.size === maxIndicator.size) kernels.copy(gradientPerMaximum, maxIndicator);
    else kernels.reduce("sum", gradientPerMaximum, maxIndicator);
    using nanOrZero = createNanOrZero(maxValues);
    kernels.binary("add", gradientPerMaximum, gradientPerMaximum, nanOrZero);
    kernels.binary("div", gradientPerMaximum, dOut, gradientPerMaximum);
    const dx = device.empty(x.shape, x.dtype);
    kernels.binary("mul", dx, maxIndicator, gradientPerMaximum);
    return [dx];
  },
});

/**
 * Returns 1 where x equals the maximum, else 0. Computed in float32, in which the difference of two distinct numbers is
 * never 0, and that of equal infinities is NaN. The derivative of relu is 0 for numbers ≤ 0, and 1 for NaN.
 */
function createMaxIndicator(x: Tensor, maxValues: Tensor): Tensor {
  const { device, shape } = x;
  using difference = device.empty(shape, "float32");
  using one = device.empty([], "float32");
  using ones = one.expand(shape);
  device.kernels.fill(one, 1);
  device.kernels.binary("sub", difference, x, maxValues);
  const maxIndicator = device.empty(shape, "float32");
  // 1 for equal infinities.
  device.kernels.unaryBackward("relu", maxIndicator, difference, ones);
  device.kernels.scalar("mul", difference, difference, -1);
  // 0 for equal finite numbers.
  device.kernels.unaryBackward("relu", difference, difference, ones);
  device.kernels.binary("sub", maxIndicator, maxIndicator, difference);
  device.kernels.scalar("add", maxIndicator, maxIndicator, 1);
  return maxIndicator;
}

/** Returns NaN where x is NaN, else 0. */
function createNanOrZero(x: Tensor): Tensor {
  const { device, shape } = x;
  const out = device.empty(shape, "float32");
  device.kernels.unary("tanh", out, x); // finite, also for infinities
  device.kernels.scalar("mul", out, out, 0);
  return out;
}

/**
 * Returns the maximum over some axes, or all. The gradient is distributed equally among elements that equal the
 * maximum, as for PyTorch's amax.
 *
 * @example
 * ```ts
 * import { fromArray, max } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [3, 1, 3, 2], [2, 2]);
 * x.requiresGrad = true;
 * using largest = max(x);
 * largest.backward();
 * Array.from(await x.grad!.read()); // => [0.5, 0, 0.5, 0]
 * ```
 * @throws ShapeError for an axis out of range, for an axis that occurs twice, for an axis whose rows are known to be
 * sharded, unless along data-parallel mesh axes, and for an axis without elements.
 */
export function max(x: Tensor, axes?: Axes, options?: ReduceOptions): Tensor {
  const shapes = reductionShapes("max", x, axes, options);
  checkNotEmpty("max", x, shapes);
  return maxOp([x], shapes);
}

/** Throws a ShapeError if a reduced axis is empty. A result without elements, as of an empty shard, is permitted. */
function checkNotEmpty(where: string, { shape }: Tensor, { keepdimShape }: ReductionShapes): void {
  const emptyAxis = shape.findIndex((length, axis) => length === 0 && keepdimShape[axis] === 1);
  if (emptyAxis < 0) return;
  const expected = `at least one element along axis ${emptyAxis}`;
  throw new ShapeError({ where, expected, received: formatShape(shape) });
}

/**
 * Returns the minimum over some axes, or all, as −max(−x). The gradient is distributed equally among elements that equal
 * the minimum, as for PyTorch's amin.
 *
 * @example
 * ```ts
 * import { fromArray, min } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [3, 1, 2, 1], [2, 2]);
 * x.requiresGrad = true;
 * using smallest = min(x);
 * smallest.backward();
 * await smallest.item(); // => 1
 * Array.from(await x.grad!.read()); // => [0, 0.5, 0, 0.5]
 * ```
 * @throws ShapeError for an axis out of range, for an axis that occurs twice, for an axis whose rows are known to be
 * sharded, unless along data-parallel mesh axes, and for an axis without elements.
 */
export function min(x: Tensor, axes?: Axes, options?: ReduceOptions): Tensor {
  const shapes = reductionShapes("min", x, axes, options);
  checkNotEmpty("min", x, shapes);
  using negated = neg(x);
  using negatedMinimum = maxOp([negated], shapes);
  return neg(negatedMinimum);
}
