import { expectValue, formatValue, ShapeError } from "./errors.ts";

/** Sizes or strides, in elements, outermost axis first. */
export type Shape = readonly number[];
/** One axis, several, or all if omitted. Negative axes count from the end. */
export type Axes = number | readonly number[];

/** Throws a ShapeError unless `shape` is an array of numbers. */
export function checkNumberArray(where: string, shape: unknown): void {
  if (Array.isArray(shape)) {
    let i = 0;
    while (i < shape.length && typeof shape[i] === "number") i++;
    if (i === shape.length) return;
  }
  throw createNumberArrayError(where, shape);
}

function createNumberArrayError(where: string, shape: unknown): ShapeError {
  return new ShapeError({ where, expected: "an array of numbers, such as [2, 3]", received: formatValue(shape) });
}

/**
 * Returns the number of elements: 1 for the empty shape (a scalar).
 *
 * @example
 * ```ts
 * import { numel } from "@mosaic/core";
 * [numel([2, 3]), numel([])]; // => [6, 1]
 * ```
 * @throws ShapeError unless it is an array of numbers.
 */
export function numel(shape: Shape): number {
  let size = 1;
  if (!Array.isArray(shape)) throw createNumberArrayError("numel", shape);
  for (let axis = 0; axis < shape.length; axis++) {
    const length: unknown = shape[axis];
    if (typeof length !== "number") throw createNumberArrayError("numel", shape);
    size *= length;
  }
  return size;
}

/**
 * Returns the row-major strides of a contiguous tensor, in elements.
 *
 * @example
 * ```ts
 * import { contiguousStrides } from "@mosaic/core";
 * contiguousStrides([2, 3, 4]); // => [12, 4, 1]
 * ```
 * @throws ShapeError unless it is an array of numbers.
 */
export function contiguousStrides(shape: Shape): number[] {
  checkNumberArray("contiguousStrides", shape);
  const strides = shape.slice();
  let stride = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= shape[axis]!;
  }
  return strides;
}

/**
 * Returns whether elements are contiguous in row-major order. Strides of axes of length 1 are ignored, and empty
 * tensors are contiguous.
 *
 * @example
 * ```ts
 * import { isContiguous } from "@mosaic/core";
 * [isContiguous([2, 3], [3, 1]), isContiguous([2, 3], [1, 2])]; // => [true, false]
 * ```
 * @throws ShapeError unless both are arrays of numbers.
 */
export function isContiguous(shape: Shape, strides: Shape): boolean {
  checkNumberArray("isContiguous: shape", shape);
  checkNumberArray("isContiguous: strides", strides);
  let isDense = true;
  let stride = 1;
  // Does not allocate, because every collective checks its operands.
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const length = shape[axis]!;
    if (length === 0) return true;
    if (length !== 1 && strides[axis] !== stride) isDense = false;
    stride *= length;
  }
  return isDense;
}

/**
 * Formats a shape for error messages, as `[2,8,100]`. Any other value is formatted by `formatValue`.
 *
 * @example
 * ```ts
 * import { formatShape } from "@mosaic/core";
 * formatShape([2, 8, 100]); // => "[2,8,100]"
 * ```
 */
export function formatShape(shape: Shape): string {
  if (!Array.isArray(shape)) return formatValue(shape);
  for (let axis = 0; axis < shape.length; axis++) if (typeof shape[axis] !== "number") return formatValue(shape);
  return `[${shape.join(",")}]`;
}

/**
 * Returns whether two shapes have the same lengths in the same order.
 *
 * @example
 * ```ts
 * import { sameShape } from "@mosaic/core";
 * [sameShape([2, 3], [2, 3]), sameShape([2, 3], [3, 2])]; // => [true, false]
 * ```
 * @throws ShapeError unless both are arrays of numbers.
 */
export function sameShape(a: Shape, b: Shape): boolean {
  checkNumberArray("sameShape", a);
  checkNumberArray("sameShape", b);
  return equalNumbers(a, b);
}

function equalNumbers(a: Shape, b: Shape): boolean {
  if (a === b) return true;
  if (a.length !== b.length) return false;
  for (let axis = 0; axis < a.length; axis++) if (a[axis] !== b[axis]) return false;
  return true;
}

/**
 * Returns the axis as a number from 0 to rank − 1; a negative one counts from the end. `where` is the caller's name in
 * the error.
 *
 * @example
 * ```ts
 * import { normalizeAxis } from "@mosaic/core";
 * normalizeAxis(-1, 3, "sum"); // => 2
 * normalizeAxis(3, 3, "sum"); // throws sum: expected an axis from -3 to 2, received 3
 * ```
 * @throws ShapeError that names the valid range.
 */
export function normalizeAxis(axis: number, rank: number, where: string): number {
  if (!Number.isInteger(axis) || typeof rank !== "number") throw createAxisError(axis, rank, where);
  const nonNegativeAxis = axis < 0 ? axis + rank : axis;
  if (nonNegativeAxis >= 0 && nonNegativeAxis < rank) return nonNegativeAxis;
  throw createAxisError(axis, rank, where);
}

function createAxisError(axis: unknown, rank: number, where: string): ShapeError {
  expectValue(`${formatValue(where)}: rank`, Number.isSafeInteger(rank), "an integer", rank);
  const expected = rank === 0 ? "a tensor of rank ≥ 1" : `an axis from ${-rank} to ${rank - 1}`;
  return new ShapeError({ where, expected, received: rank === 0 ? "a scalar" : formatValue(axis) });
}

/** Returns the broadcast shape by NumPy's rule: trailing axes must be equal or 1. May return one of the arguments. */
export function broadcastShapes(a: Shape, b: Shape, where: string): Shape {
  checkNumberArray(where, a);
  checkNumberArray(where, b);
  if (equalNumbers(a, b)) return a;
  const rank = Math.max(a.length, b.length);
  return Array.from({ length: rank }, (_, axis) => {
    const x = a[axis - rank + a.length] ?? 1;
    const y = b[axis - rank + b.length] ?? 1;
    if (x === y || y === 1) return x;
    if (x === 1) return y;
    throw new ShapeError({
      where,
      expected: "shapes that broadcast",
      received: `${formatShape(a)} and ${formatShape(b)}`,
    });
  });
}

/**
 * Returns the strides of a view with another shape, or undefined if a copy is required. Iterates over both shapes from
 * the innermost axis: adjacent axes that are contiguous with each other form a chunk, and each chunk must be filled
 * exactly by new axes.
 */
export function viewStrides(shape: Shape, strides: Shape, targetShape: Shape): number[] | undefined {
  for (const each of [shape, strides, targetShape]) checkNumberArray("viewStrides", each);
  expectValue("viewStrides: strides", strides.length === shape.length, `${shape.length} strides`, strides);
  if (numel(shape) === 0 || shape.length === 0) return contiguousStrides(targetShape);
  const result = new Array<number>(targetShape.length);
  let nextAxis = targetShape.length - 1;
  let chunk = { stride: strides.at(-1)!, size: 1, filled: 1 };
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    chunk.size *= shape[axis]!;
    const isDense = axis > 0 && (shape[axis - 1] === 1 || strides[axis - 1] === chunk.size * chunk.stride);
    if (isDense) continue;
    for (; nextAxis >= 0 && (chunk.filled < chunk.size || targetShape[nextAxis] === 1); nextAxis--) {
      result[nextAxis] = chunk.filled * chunk.stride;
      chunk.filled *= targetShape[nextAxis]!;
    }
    if (chunk.filled !== chunk.size) return undefined;
    chunk = { stride: strides[axis - 1] ?? 1, size: 1, filled: 1 };
  }
  return nextAxis === -1 ? result : undefined;
}

/** Geometry of a view within its storage, in elements. */
export interface StridedView {
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
}

/** Throws a ShapeError unless a view is within the `size` elements of the storage. */
export function checkViewBounds(view: StridedView, size: number): void {
  const { shape, strides, offset } = view ?? {};
  checkNumberArray("view: shape", shape);
  checkNumberArray("view: strides", strides);
  expectValue("view", typeof offset === "number" && typeof size === "number", "a numeric offset", offset);
  let minOffset = offset;
  let maxOffset = offset;
  let isValid = shape.length === strides.length && Number.isInteger(offset);
  let isEmpty = false;
  for (let axis = 0; isValid && axis < shape.length; axis++) {
    const length = shape[axis]!;
    const stride = strides[axis]!;
    isValid = Number.isInteger(length) && length >= 0 && Number.isInteger(stride);
    isEmpty ||= length === 0;
    if (stride < 0) minOffset += (length - 1) * stride;
    else maxOffset += (length - 1) * stride;
  }
  if (isValid && (isEmpty || (minOffset >= 0 && maxOffset < size))) return;
  throw new ShapeError({
    where: "view",
    expected: `a view within the ${size} elements of the tensor's storage`,
    received: `${formatShape(shape)} with strides ${formatShape(strides)} from element ${formatValue(offset)}`,
  });
}
