import { checkIntegerSpan, checkIntegerSpans, type Span } from "../placement/span.ts";
import { sliceIntersectsUnchecked } from "./overlap.ts";
import { type SliceBox, getSliceIndex } from "./slice-index.ts";
import { checkSlice, checkSlices, hasDiagonalEnd, hasDiagonalStart, type Slice } from "./slice.ts";

// Exact counts of visible pairs for spans of any step, without iterating over rows: the number of visible keys of row q
// is the number below the right border minus the number below the left border, and a border is constant or diagonal.

/**
 * Returns the number of visible (query, key) pairs of these positions under the slices. Exact up to 2⁵³ pairs.
 *
 * @example
 * ```ts
 * import { masks, visiblePairs } from "@mosaic/core";
 * const striped = (start: number) => [{ start, length: 4, step: 2 }];
 * visiblePairs(striped(0), striped(1), masks.causal().slices(8, 8)); // => 6
 * ```
 * @throws OptionError for invalid spans or slices.
 */
export function visiblePairs(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): number {
  checkIntegerSpans("visiblePairs: queries", queries);
  checkIntegerSpans("visiblePairs: keys", keys);
  checkSlices("visiblePairs: slices", slices);
  return visiblePairsUnchecked(queries, keys, slices);
}

/** `visiblePairs` without checks of the arguments, because a proof counts the pairs of every tile. */
export function visiblePairsUnchecked(
  queries: readonly Span[],
  keys: readonly Span[],
  slices: readonly Slice[],
): number {
  const index = getSliceIndex(slices);
  let pairs = 0;
  if (index) {
    someSpanPair(queries, keys, (q, k, ranges) =>
      index.someCandidate(ranges, (slice) => {
        pairs += countSlicePairs(q, k, slice);
        return false;
      }),
    );
    return pairs;
  }
  for (const slice of slices) {
    for (const q of queries) {
      if (slice.q1 <= q.start || lastPosition(q) < slice.q0) continue;
      for (const k of keys) pairs += countSlicePairs(q, k, slice);
    }
  }
  return pairs;
}

/** Visits each pair of spans, with their enclosing ranges, until `visit` returns true. Returns whether it did. */
function someSpanPair(
  queries: readonly Span[],
  keys: readonly Span[],
  visit: (q: Span, k: Span, ranges: SliceBox) => boolean,
): boolean {
  return queries.some((q) =>
    keys.some((k) => visit(q, k, { q0: q.start, q1: endPosition(q), k0: k.start, k1: endPosition(k) })),
  );
}

/** Returns the number of pairs of two spans that one slice covers. */
function countSlicePairs(q: Span, k: Span, slice: Slice): number {
  if (q.length === 0 || slice.q1 <= q.start || lastPosition(q) < slice.q0) return 0;
  if (k.length === 0 || slice.k1 <= k.start || lastPosition(k) < slice.k0) return 0;
  if (coversSpanPair(slice, q, k)) return q.length * k.length;
  return isDisjoint(slice, q, k) ? 0 : countPairs(visibleRowsUnchecked(q, slice), k, slice);
}

/**
 * Returns the rows of a span that have visible keys in a slice. They are contiguous within the span, because the
 * borders are lines.
 *
 * @example
 * ```ts
 * import { visibleRows } from "@mosaic/core";
 * const slice = { q0: 2, q1: 6, k0: 0, k1: 4, type: "causal" } as const;
 * visibleRows({ start: 0, length: 4, step: 1 }, slice); // => { start: 2, length: 2, step: 1 }
 * ```
 * @throws OptionError for an invalid span or slice.
 */
export function visibleRows(span: Span, slice: Slice): Span {
  checkIntegerSpan("visibleRows", span);
  checkSlice("visibleRows", slice);
  return visibleRowsUnchecked(span, slice);
}

/** `visibleRows` without checks of the arguments. */
export function visibleRowsUnchecked({ start, length, step }: Span, { q0, q1, k0, k1, type }: Slice): Span {
  let low = q0;
  let high = q1;
  if (type === "bidirectionalCausal") {
    if (k1 - k0 < q1 - q0) high = low;
  } else if (type === "causal") low = Math.max(low, k0 - k1 + q1);
  else if (type === "inverseCausal") high = Math.min(high, k1 - k0 + q0);
  else if (k1 <= k0) high = low;
  const firstVisibleRow = Math.max(0, Math.ceil((low - start) / step));
  const end = Math.min(length, Math.ceil((high - start) / step));
  return { start: start + firstVisibleRow * step, length: Math.max(0, end - firstVisibleRow), step };
}

function countPairs(rows: Span, keys: Span, { q0, q1, k0, k1, type }: Slice): number {
  if (rows.length === 0) return 0;
  const end = hasDiagonalEnd(type) ? countBelowDiagonal(rows, keys, k1 - q1 + 1) : rows.length * countBelow(keys, k1);
  const start = hasDiagonalStart(type) ? countBelowDiagonal(rows, keys, k0 - q0) : rows.length * countBelow(keys, k0);
  return end - start;
}

function lastPosition({ start, length, step }: Span): number {
  return start + (length - 1) * step;
}

// A diagonal border is tightest at the first or last row, where two comparisons decide most tiles.

/** Returns whether a slice covers all pairs of these queries and keys. */
function coversSpanPair({ q0, q1, k0, k1, type }: Slice, q: Span, k: Span): boolean {
  const lastQuery = lastPosition(q);
  if (q.start < q0 || lastQuery >= q1) return false;
  const firstVisibleKey = hasDiagonalStart(type) ? k0 + lastQuery - q0 : k0;
  const endVisibleKey = hasDiagonalEnd(type) ? k1 - (q1 - 1 - q.start) : k1;
  return firstVisibleKey <= k.start && lastPosition(k) < endVisibleKey;
}

/** Returns whether all of these keys are before the first or after the last key visible to any of these queries. */
function isDisjoint({ q0, q1, k0, k1, type }: Slice, q: Span, k: Span): boolean {
  const firstQuery = Math.max(q.start, q0);
  const lastQuery = Math.min(lastPosition(q), q1 - 1);
  const firstVisibleKey = hasDiagonalStart(type) ? k0 + firstQuery - q0 : k0;
  const endVisibleKey = hasDiagonalEnd(type) ? k1 - (q1 - 1 - lastQuery) : k1;
  return lastPosition(k) < firstVisibleKey || endVisibleKey <= k.start;
}

/** Returns the number of positions of a span that are less than x. */
function countBelow({ start, length, step }: Span, x: number): number {
  return Math.min(length, Math.max(0, Math.ceil((x - start) / step)));
}

/** Returns the sum over rows q of the number of keys less than q + shift. */
function countBelowDiagonal(rows: Span, keys: Span, shift: number): number {
  const gap = rows.start + shift - keys.start; // gap of row 0; that of row i is gap + i · step
  const firstPositiveRow = gap > 0 ? 0 : Math.min(rows.length, Math.floor(-gap / rows.step) + 1);
  const firstFullRow = Math.floor(((keys.length - 1) * keys.step - gap) / rows.step) + 1;
  const end = Math.min(rows.length, Math.max(firstPositiveRow, firstFullRow));
  const partialRowPairs = floorSum(
    end - firstPositiveRow,
    keys.step,
    rows.step,
    gap + firstPositiveRow * rows.step + keys.step - 1,
  );
  return partialRowPairs + (rows.length - end) * keys.length;
}

/**
 * Computes Σ ⌊(a·i + b) / m⌋ for 0 ≤ i < n by Euclid's algorithm (Graham, Knuth, Patashnik, "Concrete Mathematics",
 * 3.5); a, b ≥ 0.
 */
function floorSum(count: number, modulus: number, slope: number, offset: number): number {
  let [n, m, a, b] = [count, modulus, slope, offset];
  let sum = 0;
  while (n > 0) {
    sum += ((n * (n - 1)) / 2) * Math.floor(a / m) + n * Math.floor(b / m);
    a %= m;
    b %= m;
    const top = a * n + b;
    if (top < m) break;
    [n, m, a, b] = [Math.floor(top / m), a, m, top % m];
  }
  return sum;
}

/**
 * Returns whether any of these keys is visible to any of these queries. Backends check it before they compute or send a
 * tile. Exact for spans of any step, except for tiles of more than 2⁵³ pairs with a step above 1: these are treated as
 * if all positions between the first and the last were present, so that the result may be true although no pair is
 * visible.
 *
 * @example
 * ```ts
 * import { isVisible, masks } from "@mosaic/core";
 * const span = (start: number) => [{ start, length: 4, step: 1 }];
 * const slices = masks.causal().slices(8, 8);
 * isVisible(span(0), span(4), slices); // => false
 * isVisible(span(4), span(0), slices); // => true
 * ```
 * @throws OptionError for invalid spans or slices.
 */
export function isVisible(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): boolean {
  checkIntegerSpans("isVisible: queries", queries);
  checkIntegerSpans("isVisible: keys", keys);
  checkSlices("isVisible: slices", slices);
  return isVisibleUnchecked(queries, keys, slices);
}

/** `isVisible` without checks of the arguments, because backends evaluate it for every pair of ranks. */
export function isVisibleUnchecked(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): boolean {
  const index = getSliceIndex(slices);
  if (index) {
    return someSpanPair(queries, keys, (q, k, ranges) => {
      if (ranges.q0 >= ranges.q1 || ranges.k0 >= ranges.k1) return false;
      return index.someCandidate(ranges, (slice) => isSpanPairVisible(slice, q, k));
    });
  }
  for (const slice of slices) {
    if (slice.q0 >= slice.q1 || slice.k0 >= slice.k1) continue;
    for (const q of queries) {
      const [q0, q1] = [q.start, endPosition(q)];
      if (q0 >= q1 || slice.q0 >= q1 || q0 >= slice.q1) continue;
      for (const k of keys) if (isSpanPairVisible(slice, q, k)) return true;
    }
  }
  return false;
}

/** Returns whether a slice covers any pair of two spans. */
function isSpanPairVisible(slice: Slice, q: Span, k: Span): boolean {
  const [q0, q1, k0, k1] = [q.start, endPosition(q), k.start, endPosition(k)];
  // Compares bounding boxes first, because nearly all of 10 000 documents are outside, and with a single document
  // nearly all spans are inside.
  if (slice.q0 >= q1 || q0 >= slice.q1 || k0 >= k1 || slice.k0 >= k1 || k0 >= slice.k1) return false;
  if (!intersects(slice, { q0, q1, k0, k1 })) return false;
  const isDense = (q.step === 1 || q.length === 1) && (k.step === 1 || k.length === 1);
  return isDense || q.length * k.length > Number.MAX_SAFE_INTEGER || countSlicePairs(q, k, slice) > 0;
}

/**
 * `sliceIntersectsUnchecked` for boxes that intersect. A single diagonal border is farthest out in the first or last
 * row.
 */
function intersects(slice: Slice, box: Omit<Slice, "type">): boolean {
  const { type } = slice;
  if (type === "full" || type === "bidirectionalCausal") return type === "full" || sliceIntersectsUnchecked(slice, box);
  const firstRow = Math.max(box.q0, slice.q0);
  const lastRow = Math.min(box.q1, slice.q1) - 1;
  const firstKey = type === "inverseCausal" ? slice.k0 + firstRow - slice.q0 : slice.k0;
  const endKey = type === "causal" ? slice.k1 - (slice.q1 - 1 - lastRow) : slice.k1;
  return Math.max(box.k0, firstKey) < Math.min(box.k1, endKey);
}

/** Returns the position after the last one; at most `start` for an empty span. */
function endPosition({ start, length, step }: Span): number {
  return start + (length - 1) * step + 1;
}
