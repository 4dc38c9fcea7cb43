import { checkDType } from "./arguments.ts";
import { isRecorded } from "./autograd/node.ts";
import type { DType } from "./storage.ts";
import { formatValue, ShapeError } from "./errors.ts";
import { moveSharding, reshapedAxis } from "./placement/sharding.ts";
import {
  type Axes,
  checkNumberArray,
  contiguousStrides,
  formatShape,
  normalizeAxis,
  type Shape,
  numel,
  viewStrides,
} from "./shape.ts";
import type { Tensor } from "./tensor.ts";

// The views of a tensor, each with its gradient. They are documented at the methods in methods.ts. They are recorded on
// the tape but save no tensors, because their gradients depend only on shapes.

/** Positions start, start + step, … before `end`. Negative positions count from the end. */
export interface SliceRange {
  readonly start: number;
  readonly end?: number | undefined;
  readonly step?: number | undefined;
}

/** Records a view. `backward` maps the gradient of the view to that of x. */
function recordView(out: Tensor, x: Tensor, name: string, backward: (dOut: Tensor) => Tensor): Tensor {
  if (!isRecorded(x)) return out;
  return out.record([x], { name, backward: (dOut) => [backward(dOut)], free: () => {} });
}

export function reshape(x: Tensor, targetShape: Shape): Tensor {
  x.assertNotDisposed("reshape");
  checkNumberArray("reshape", targetShape);
  const shape = inferShape(x.shape, targetShape);
  const strides = viewStrides(x.shape, x.strides, shape);
  const out = strides ? x.view({ shape, strides }) : contiguousCopy(x, x.dtype, shape);
  const inputShape = x.shape;
  if (x.sharding) out.sharding = moveSharding(x.sharding, (axis) => reshapedAxis(axis, inputShape, shape));
  return recordView(out, x, "reshape", (dOut) => reshape(dOut, inputShape));
}

/** Returns the shape with the length -1, if any, replaced by the inferred one. */
function inferShape(inputShape: Shape, targetShape: Shape): number[] {
  const size = numel(inputShape);
  const shape = targetShape.slice();
  let [knownSize, numInferredAxes, inferredAxis] = [1, 0, -1];
  for (let axis = 0; axis < targetShape.length; axis++) {
    if (targetShape[axis] === -1) [numInferredAxes, inferredAxis] = [numInferredAxes + 1, axis];
    else knownSize *= targetShape[axis]!;
  }
  if (numInferredAxes === 1) shape[inferredAxis] = size / knownSize;
  if (numInferredAxes <= 1 && isShape(shape) && numel(shape) === size) return shape;
  throw new ShapeError({
    where: "reshape",
    expected: `a shape with ${size} elements, as in ${formatShape(inputShape)}`,
    received: formatShape(targetShape),
    remedy: "keep the number of elements; one length may be -1",
  });
}

function isShape(lengths: Shape): boolean {
  for (let axis = 0; axis < lengths.length; axis++) {
    if (!Number.isInteger(lengths[axis]) || lengths[axis]! < 0) return false;
  }
  return true;
}

export function permute(x: Tensor, axes: readonly number[]): Tensor {
  x.assertNotDisposed("permute");
  checkNumberArray("permute", axes);
  const shape: number[] = [];
  const strides: number[] = [];
  const order: number[] = [];
  let isPermutation = axes.length === x.rank;
  for (let i = 0; i < axes.length; i++) {
    const axis = normalizeAxis(axes[i]!, x.rank, "permute");
    isPermutation &&= !order.includes(axis);
    order.push(axis);
    shape.push(x.shape[axis]!);
    strides.push(x.strides[axis]!);
  }
  if (!isPermutation) {
    throw new ShapeError({
      where: "permute",
      expected: `a permutation of the ${x.rank} axes`,
      received: formatShape(axes),
    });
  }
  const out = x.view({ shape, strides });
  if (x.sharding) out.sharding = moveSharding(x.sharding, (axis) => order.indexOf(axis));
  if (!isRecorded(x)) return out;
  const inverse = order.map((_, axis) => order.indexOf(axis));
  return recordView(out, x, "permute", (dOut) => permute(dOut, inverse));
}

export function transpose(x: Tensor, a: number, b: number): Tensor {
  const firstAxis = normalizeAxis(a, x.rank, "transpose");
  const secondAxis = normalizeAxis(b, x.rank, "transpose");
  const order = x.shape.map((_, axis) => (axis === firstAxis ? secondAxis : axis === secondAxis ? firstAxis : axis));
  return permute(x, order);
}

export function slice(x: Tensor, axis: number, range: SliceRange): Tensor {
  x.assertNotDisposed("slice");
  const normalizedAxis = normalizeAxis(axis, x.rank, "slice");
  const { start, count, step } = resolveRange(range, x.shape[normalizedAxis]!);
  const out = x.view({
    shape: x.shape.with(normalizedAxis, count),
    strides: x.strides.with(normalizedAxis, x.strides[normalizedAxis]! * step),
    offset: x.offset + (count > 0 ? start * x.strides[normalizedAxis]! : 0),
  });
  // Which rows of a sharded axis are selected depends on the rank.
  if (x.sharding) out.sharding = moveSharding(x.sharding, (each) => (each === normalizedAxis ? -1 : each));
  if (!isRecorded(x)) return out;
  const inputShape = x.shape;
  const isEmpty = out.size === 0;
  const end = start + count * step;
  const write = (dOut: Tensor, gradient: Tensor, isAdded: boolean): void => {
    if (isEmpty) return;
    using part = slice(gradient, normalizedAxis, { start, end, step });
    if (isAdded) part.device.kernels.binary("add", part, part, dOut);
    else part.device.kernels.copy(part, dOut);
  };
  return out.record([x], {
    name: "slice",
    backward(dOut) {
      const dx = dOut.device.empty(inputShape, dOut.dtype);
      dOut.device.kernels.fill(dx, 0);
      write(dOut, dx, false);
      return [dx];
    },
    part: { axis: normalizedAxis, range: step === 1 ? { start, end } : null, write },
    free() {},
  });
}

/** Resolves a range as Python does: positions outside are clamped, and negative positions count from the end. */
function resolveRange(range: SliceRange, length: number): { start: number; count: number; step: number } {
  const { step = 1 } = range;
  const [requestedStart, requestedEnd] = [range.start, range.end ?? length];
  if (!Number.isInteger(step) || step < 1 || !Number.isInteger(requestedStart) || !Number.isInteger(requestedEnd)) {
    throw new ShapeError({
      where: "slice",
      expected: "integers start, end and step with step ≥ 1",
      received: `start ${formatValue(range.start)}, end ${formatValue(range.end)}, step ${formatValue(step)}`,
    });
  }
  const clampPosition = (position: number): number =>
    Math.min(length, Math.max(0, position < 0 ? position + length : position));
  const start = clampPosition(requestedStart);
  return { start, count: Math.max(0, Math.ceil((clampPosition(requestedEnd) - start) / step)), step };
}

/** Removes axes of length 1: all of them, or those of `axes` that have length 1, as torch.squeeze. */
export function squeeze(x: Tensor, axes?: Axes): Tensor {
  x.assertNotDisposed("squeeze");
  const axisList = axes === undefined ? x.shape.map((_, axis) => axis) : [axes].flat();
  const squeezedAxes = new Set(axisList.map((axis) => normalizeAxis(axis, x.rank, "squeeze")));
  if (squeezedAxes.size < axisList.length) {
    throw new ShapeError({
      where: "squeeze",
      expected: "distinct axes",
      received: `${formatShape(axisList)} of ${x.rank} axes`,
    });
  }
  const isKept = (axis: number): boolean => x.shape[axis] !== 1 || !squeezedAxes.has(axis);
  const shape = x.shape.filter((_, axis) => isKept(axis));
  const out = x.view({ shape, strides: x.strides.filter((_, axis) => isKept(axis)) });
  if (x.sharding) {
    const keptAxes = x.shape.map((_, axis) => axis).filter((axis) => isKept(axis));
    out.sharding = moveSharding(x.sharding, (axis) => keptAxes.indexOf(axis));
  }
  const inputShape = x.shape;
  return recordView(out, x, "squeeze", (dOut) => reshape(dOut, inputShape));
}

/** Inserts an axis of length 1, which has the index `axis` in the result. */
export function unsqueeze(x: Tensor, axis: number): Tensor {
  x.assertNotDisposed("unsqueeze");
  const normalizedAxis = normalizeAxis(axis, x.rank + 1, "unsqueeze");
  const out = x.view({
    shape: x.shape.toSpliced(normalizedAxis, 0, 1),
    // As if the tensor were contiguous along the axis.
    strides: x.strides.toSpliced(normalizedAxis, 0, (x.shape[normalizedAxis] ?? 1) * (x.strides[normalizedAxis] ?? 1)),
  });
  if (x.sharding) out.sharding = moveSharding(x.sharding, (each) => (each < normalizedAxis ? each : each + 1));
  const inputShape = x.shape;
  return recordView(out, x, "unsqueeze", (dOut) => reshape(dOut, inputShape));
}

/** Selects one position along an axis, which the result does not have. A negative index counts from the end. */
export function select(x: Tensor, axis: number, index: number): Tensor {
  x.assertNotDisposed("select");
  const normalizedAxis = normalizeAxis(axis, x.rank, "select");
  const length = x.shape[normalizedAxis]!;
  if (!Number.isInteger(index) || index < -length || index >= length) {
    throw new ShapeError({
      where: "select",
      expected: length === 0 ? "an axis with at least one element" : `an index from ${-length} to ${length - 1}`,
      received: length === 0 ? formatShape(x.shape) : formatValue(index),
    });
  }
  const start = index < 0 ? index + length : index;
  using position = slice(x, normalizedAxis, { start, end: start + 1 });
  return squeeze(position, normalizedAxis);
}

/**
 * Splits a tensor along an axis into views: of `sizes` elements each, the last of which may be smaller, or of the given
 * sizes, whose sum is the length of the axis.
 */
export function split(x: Tensor, sizes: number | readonly number[], axis: number): Tensor[] {
  x.assertNotDisposed("split");
  const normalizedAxis = normalizeAxis(axis, x.rank, "split");
  let start = 0;
  return resolveSplitSizes(sizes, x.shape[normalizedAxis]!).map((size) =>
    slice(x, normalizedAxis, { start, end: (start += size) }),
  );
}

function resolveSplitSizes(sizes: number | readonly number[], length: number): readonly number[] {
  if (typeof sizes === "number") {
    if (!Number.isSafeInteger(sizes) || sizes < 1) throw createSplitError("a size that is an integer ≥ 1", sizes);
    // An empty axis is one empty part.
    const count = Math.max(1, Math.ceil(length / sizes));
    return Array.from({ length: count }, (_, i) => Math.min(sizes, length - i * sizes));
  }
  const isList = Array.isArray(sizes) && sizes.every((size) => Number.isSafeInteger(size) && size >= 0);
  if (!isList) throw createSplitError("a size, or an array of sizes that are integers ≥ 0", sizes);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  if (sizes.length > 0 && total === length) return sizes;
  throw createSplitError(`at least one size, with the sum ${length}, the length of the axis`, sizes);
}

function createSplitError(expected: string, sizes: unknown): ShapeError {
  return new ShapeError({ where: "split", expected, received: formatValue(sizes) });
}

export function expand(x: Tensor, shape: Shape): Tensor {
  x.assertNotDisposed("expand");
  checkNumberArray("expand", shape);
  const numAddedAxes = shape.length - x.rank;
  const isValidShape = shape.every((length) => Number.isInteger(length) && length >= 0);
  const isBroadcastable =
    numAddedAxes >= 0 && x.shape.every((length, axis) => length === 1 || length === shape[axis + numAddedAxes]);
  if (!isValidShape || !isBroadcastable) {
    throw new ShapeError({
      where: "expand",
      expected: `a shape to which ${formatShape(x.shape)} broadcasts`,
      received: formatShape(shape),
      remedy: "expand only axes of length 1, or add leading axes",
    });
  }
  const strides = shape.map((length, axis) => {
    const inputAxis = axis - numAddedAxes;
    return inputAxis >= 0 && x.shape[inputAxis] === length ? x.strides[inputAxis]! : 0;
  });
  const inputShape = x.shape;
  const out = x.view({ shape: [...shape], strides });
  if (x.sharding) {
    const toAxis = (axis: number): number =>
      inputShape[axis] === shape[axis + numAddedAxes] ? axis + numAddedAxes : -1;
    out.sharding = moveSharding(x.sharding, toAxis);
  }
  return recordView(out, x, "expand", (dOut) => sumToSize(dOut, inputShape));
}

/** Sums over broadcast axes, which yields the gradient of a broadcast operand. Always returns a new handle. */
export function sumToSize(x: Tensor, shape: Shape): Tensor {
  const numAddedAxes = x.rank - shape.length;
  const reducedShape = x.shape.map((length, axis) =>
    axis < numAddedAxes ? 1 : shape[axis - numAddedAxes] === length ? length : 1,
  );
  if (numel(reducedShape) === x.size) return reshape(x, shape);
  using sum = x.device.empty(reducedShape, x.dtype);
  if (x.size === 0) x.device.kernels.fill(sum, 0);
  else x.device.kernels.reduce("sum", sum, x);
  return reshape(sum, shape);
}

export function contiguous(x: Tensor): Tensor {
  x.assertNotDisposed("contiguous");
  const out = x.isContiguous ? x.view({ strides: contiguousStrides(x.shape) }) : contiguousCopy(x, x.dtype, x.shape);
  out.sharding = x.sharding;
  return recordView(out, x, "contiguous", (dOut) => dOut.detach());
}

/** Returns whether the elements of every row, along the last axis, are contiguous. */
export function hasContiguousRows(x: Tensor): boolean {
  return x.strides.at(-1) === 1 || x.shape.at(-1) === 1;
}

/**
 * Returns a view of x if the elements of every row, along the last axis, are contiguous, otherwise a contiguous copy.
 */
export function contiguousRows(x: Tensor): Tensor {
  return hasContiguousRows(x) ? recordView(x.detach(), x, "contiguousRows", (dOut) => dOut.detach()) : contiguous(x);
}

export function to(x: Tensor, dtype: DType): Tensor {
  x.assertNotDisposed("to");
  checkDType("to", dtype);
  const out = x.dtype === dtype ? x.view({}) : contiguousCopy(x, dtype, x.shape);
  out.sharding = x.sharding;
  const inputDType = x.dtype;
  return recordView(out, x, "to", (dOut) => to(dOut, inputDType));
}

function contiguousCopy(x: Tensor, dtype: DType, shape: Shape): Tensor {
  const out = x.device.empty(shape, dtype);
  if (x.size === 0) return out;
  using target = out.view({ shape: x.shape, strides: contiguousStrides(x.shape) });
  x.device.kernels.copy(target, x);
  return out;
}
