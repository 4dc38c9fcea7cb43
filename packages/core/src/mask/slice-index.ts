import type { Slice } from "./slice.ts";

// A tile intersects only few of thousands of documents. One interval tree along the queries and one along the keys find
// these.

/** Minimum number of slices for an index. Shorter lists are searched linearly. */
const MIN_INDEXED_SLICES = 32;

/** Immutable lists returned by `resolveSlices`, each with its index, or null until the index is first requested. */
const indexCache = new WeakMap<readonly Slice[], SliceIndex | null>();

/** Allows `getSliceIndex` to index a list, which must not change any more. */
export function enableIndexing(slices: readonly Slice[]): void {
  if (slices.length >= MIN_INDEXED_SLICES && !indexCache.has(slices)) indexCache.set(slices, null);
}

/** Returns the index of an immutable list with many slices; undefined for other lists. */
export function getSliceIndex(slices: readonly Slice[]): SliceIndex | undefined {
  const cachedIndex = indexCache.get(slices);
  if (cachedIndex !== null) return cachedIndex;
  const index = new SliceIndex(slices);
  indexCache.set(slices, index);
  return index;
}

/** A range of queries and one of keys. */
export type SliceBox = Omit<Slice, "type">;

class SliceIndex {
  readonly #byQuery: IntervalTree;
  readonly #byKey: IntervalTree;

  constructor(slices: readonly Slice[]) {
    this.#byQuery = new IntervalTree(
      slices,
      ({ q0 }) => q0,
      ({ q1 }) => q1,
    ); // prettier-ignore
    this.#byKey = new IntervalTree(
      slices,
      ({ k0 }) => k0,
      ({ k1 }) => k1,
    ); // prettier-ignore
  }

  /**
   * Visits the slices that intersect the range of queries or those that intersect the range of keys, whichever are
   * fewer, until `visit` returns true. This includes every slice that intersects both. Returns whether `visit` returned
   * true.
   */
  someCandidate({ q0, q1, k0, k1 }: SliceBox, visit: (slice: Slice) => boolean): boolean {
    const [queryOverlapCount, keyOverlapCount] = [this.#byQuery.count(q0, q1), this.#byKey.count(k0, k1)];
    return queryOverlapCount <= keyOverlapCount
      ? queryOverlapCount > 0 && this.#byQuery.someOverlapping(q0, q1, visit)
      : keyOverlapCount > 0 && this.#byKey.someOverlapping(k0, k1, visit);
  }
}

/**
 * An interval tree of slices by one of their ranges: a balanced tree over the starts, with the maximum end of each
 * subtree.
 */
class IntervalTree {
  readonly #slices: readonly Slice[];
  readonly #starts: Float64Array;
  readonly #ends: Float64Array;
  readonly #sortedEnds: Float64Array;
  readonly #subtreeMaxEnds: Float64Array;

  constructor(slices: readonly Slice[], getStart: (slice: Slice) => number, getEnd: (slice: Slice) => number) {
    this.#slices = slices.filter((slice) => getStart(slice) < getEnd(slice)).sort((a, b) => getStart(a) - getStart(b));
    this.#starts = Float64Array.from(this.#slices, getStart);
    this.#ends = Float64Array.from(this.#slices, getEnd);
    this.#sortedEnds = this.#ends.toSorted();
    this.#subtreeMaxEnds = new Float64Array(this.#slices.length);
    this.#buildTree(0, this.#slices.length);
  }

  #buildTree(low: number, high: number): number {
    if (low >= high) return Number.NEGATIVE_INFINITY;
    const middle = (low + high) >> 1;
    const subtreeMaxEnd = Math.max(
      this.#ends[middle]!,
      this.#buildTree(low, middle),
      this.#buildTree(middle + 1, high),
    );
    this.#subtreeMaxEnds[middle] = subtreeMaxEnd;
    return subtreeMaxEnd;
  }

  /**
   * Returns the number of ranges that intersect [start, end): those that start before `end`, minus those that end at or
   * before `start`.
   */
  count(start: number, end: number): number {
    return start < end ? lowerBound(this.#starts, end) - lowerBound(this.#sortedEnds, start + 1) : 0;
  }

  /** Visits the slices whose ranges intersect [start, end) until `visit` returns true. Returns whether it did. */
  someOverlapping(start: number, end: number, visit: (slice: Slice) => boolean): boolean {
    return this.#someInSubtree(0, this.#slices.length, { start, end, visit });
  }

  #someInSubtree(
    low: number,
    high: number,
    query: { start: number; end: number; visit(slice: Slice): boolean },
  ): boolean {
    if (low >= high) return false;
    const middle = (low + high) >> 1;
    if (this.#subtreeMaxEnds[middle]! <= query.start) return false;
    if (this.#someInSubtree(low, middle, query)) return true;
    if (this.#starts[middle]! >= query.end) return false;
    if (this.#ends[middle]! > query.start && query.visit(this.#slices[middle]!)) return true;
    return this.#someInSubtree(middle + 1, high, query);
  }
}

/** Returns the number of values less than x in an ascending array. */
function lowerBound(values: Float64Array, x: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! < x) low = middle + 1;
    else high = middle;
  }
  return low;
}
