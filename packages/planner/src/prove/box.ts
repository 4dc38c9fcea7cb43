import type { Box } from "../symbolic/strided-layout.ts";

// Strided boxes [batch, heads, rows, D] of elements, and the position of one box in another. Elements are never visited
// one by one.

/** Origin of a part that begins where its view does. It is one object, so that it is recognized by identity. */
export const origin: readonly number[] = [0, 0, 0, 0];

export function volume(sizes: readonly number[]): number {
  return sizes[0]! * sizes[1]! * sizes[2]! * sizes[3]!;
}

export function createBox(offset: number, sizes: readonly number[], strides: readonly number[]): Box {
  let high = offset + 1;
  for (let i = 0; i < 4; i++) high += (sizes[i]! - 1) * strides[i]!;
  return { offset, sizes, strides, low: offset, high };
}

/** Returns the part of a box at a position in it. */
export function subBox({ offset, strides }: Box, start: readonly number[], sizes: readonly number[]): Box {
  let first = offset;
  for (let i = 0; i < 4; i++) first += start[i]! * strides[i]!;
  return createBox(first, sizes, strides);
}

/** Whether the elements of a box are contiguous. */
export function isDense({ low, high, sizes }: Box): boolean {
  return high - low === volume(sizes);
}

/** Whether two boxes are equal. */
export function areEqualBoxes(a: Box, b: Box): boolean {
  if (a === b) return true;
  if (a.offset !== b.offset) return false;
  for (let i = 0; i < 4; i++) {
    if (a.sizes[i] !== b.sizes[i] || (a.sizes[i]! > 1 && a.strides[i] !== b.strides[i])) return false;
  }
  return true;
}

/** Whether boxes differ only in offset and number of rows. */
export function haveEqualRowShapes(
  { sizes, strides }: Box,
  { sizes: otherSizes, strides: otherStrides }: Box,
): boolean {
  for (let i = 0; i < 4; i++) {
    if (i !== 2 && (sizes[i] !== otherSizes[i] || (sizes[i]! > 1 && strides[i] !== otherStrides[i]))) return false;
  }
  return strides[2] === otherStrides[2];
}

// Scratch arrays of `findOrigin`, which is called for millions of pairs of boxes, nearly all of them disjoint.
const axisIndex = new Int32Array(4);
const axisStride = new Float64Array(4);
const minCoordinate = new Float64Array(4);
const maxCoordinate = new Float64Array(4);
const coordinate = new Float64Array(4);

/**
 * Returns the coordinates of a box's origin in another box that overlaps it; undefined if they share no element or
 * differ in strides.
 */
export function findOrigin(box: Box, container: Box): number[] | undefined {
  let axes = 0;
  for (let i = 0; i < 4; i++) {
    coordinate[i] = 0;
    const [a, b] = [box.sizes[i]!, container.sizes[i]!];
    if (a === 1 && b === 1) continue;
    if (a > 1 && b > 1 && box.strides[i] !== container.strides[i]) return undefined;
    const step = b > 1 ? container.strides[i]! : box.strides[i]!;
    if (step <= 0) return undefined;
    // Largest stride first.
    let slot = axes++;
    for (; slot > 0 && axisStride[slot - 1]! < step; slot--) {
      axisIndex[slot] = axisIndex[slot - 1]!;
      axisStride[slot] = axisStride[slot - 1]!;
      minCoordinate[slot] = minCoordinate[slot - 1]!;
      maxCoordinate[slot] = maxCoordinate[slot - 1]!;
    }
    axisIndex[slot] = i;
    axisStride[slot] = step;
    minCoordinate[slot] = 1 - a;
    maxCoordinate[slot] = b - 1;
  }
  return solveCoordinates(0, axes, box.offset - container.offset)
    ? [coordinate[0]!, coordinate[1]!, coordinate[2]!, coordinate[3]!]
    : undefined;
}

/** Writes distance as Σ c·stride with every c in its range. Returns false if there is no solution. */
function solveCoordinates(depth: number, axes: number, distance: number): boolean {
  if (depth === axes) return distance === 0;
  const step = axisStride[depth]!;
  const low = Math.floor(distance / step);
  for (let c = low; c <= low + 1; c++) {
    if (c < minCoordinate[depth]! || c > maxCoordinate[depth]!) continue;
    coordinate[axisIndex[depth]!] = c;
    if (solveCoordinates(depth + 1, axes, distance - c * step)) return true;
  }
  return false;
}

/** Whether strides differ, so that the boxes may share elements that do not form a box. */
export function haveDifferentStrides(a: Box, b: Box): boolean {
  for (let i = 0; i < 4; i++) {
    if (a.sizes[i]! > 1 && b.sizes[i]! > 1 && a.strides[i] !== b.strides[i]) return true;
  }
  return false;
}

/** Intersection of two boxes, with its origin in each. */
export interface Intersection {
  readonly originInFirst: readonly number[];
  readonly originInSecond: readonly number[];
  readonly sizes: readonly number[];
}

/** Returns the intersection of `first` with `second`, in which the origin of `first` has the coordinates `offset`. */
export function intersect(first: Box, second: Box, offset: readonly number[]): Intersection {
  const originInFirst = offset.map((c) => Math.max(0, -c));
  const sizes = offset.map((c, i) => Math.min(first.sizes[i]!, second.sizes[i]! - c) - originInFirst[i]!);
  return { originInFirst, originInSecond: originInFirst.map((c, i) => c + offset[i]!), sizes };
}

/** Origin and sizes of a part of a box. */
export interface BoxRange {
  readonly origin: readonly number[];
  readonly sizes: readonly number[];
}

/**
 * Returns the parts of a box within a range of elements: all of it, or a range of its outermost axis and parts of the
 * two adjacent slabs.
 */
export function clipToRange(box: Box, low: number, high: number): BoxRange[] {
  if (low <= box.low && box.high <= high) return [{ origin, sizes: box.sizes }];
  if (low >= box.high || box.low >= high || low >= high) return [];
  const axes = [0, 1, 2, 3].filter((i) => box.sizes[i]! > 1);
  const outerAxis = axes.reduce((best, i) => (box.strides[i]! > box.strides[best]! ? i : best), axes[0]!);
  const step = box.strides[outerAxis]!;
  const count = box.sizes[outerAxis]!;
  const innerExtent = box.high - box.low - (count - 1) * step;
  const first = Math.max(0, Math.ceil((low - box.low) / step));
  const end = Math.min(count, Math.floor((high - box.low - innerExtent) / step) + 1);
  const ranges: BoxRange[] =
    end > first ? [{ origin: origin.with(outerAxis, first), sizes: box.sizes.with(outerAxis, end - first) }] : [];
  const adjacentIndices = end > first ? [first - 1, end] : [Math.floor((low - box.low) / step), first];
  for (const slabIndex of new Set(adjacentIndices)) {
    if (slabIndex < 0 || slabIndex >= count) continue;
    const slabRange = { at: origin.with(outerAxis, slabIndex), sizes: box.sizes.with(outerAxis, 1) };
    for (const { origin: slabOrigin, sizes } of clipToRange(subBox(box, slabRange.at, slabRange.sizes), low, high)) {
      ranges.push({ origin: slabOrigin.with(outerAxis, slabIndex), sizes });
    }
  }
  return ranges;
}

/** Returns the parts of a box outside one of its parts. */
export function complement(sizes: readonly number[], excludedRange: BoxRange): BoxRange[] {
  const slabs: BoxRange[] = [];
  let remaining: BoxRange = { origin, sizes };
  for (let axisIndex = 0; axisIndex < 4; axisIndex++) {
    const first = excludedRange.origin[axisIndex]!;
    const end = first + excludedRange.sizes[axisIndex]!;
    if (first > 0) slabs.push(sliceAxis(remaining, axisIndex, 0, first));
    if (end < sizes[axisIndex]!) slabs.push(sliceAxis(remaining, axisIndex, end, sizes[axisIndex]!));
    remaining = sliceAxis(remaining, axisIndex, first, end);
  }
  return slabs;
}

// oxlint-disable-next-line max-params -- an axis and a range of it
function sliceAxis({ origin, sizes }: BoxRange, axisIndex: number, first: number, end: number): BoxRange {
  return { origin: origin.with(axisIndex, first), sizes: sizes.with(axisIndex, end - first) };
}
