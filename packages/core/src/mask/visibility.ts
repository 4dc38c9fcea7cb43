import { checkIntegerSpan, checkIntegerSpans, type Span } from "../placement/span.ts";
import { sliceIntersectsUnchecked } from "./overlap.ts";
import { type SliceBox, getSliceIndex } from "./slice-index.ts";
import { checkSlice, checkSlices, hasDiagonalEnd, hasDiagonalStart, type Slice } from "./slice.ts";

// Exact numbers of visible pairs, for spans of any step, without looking at a single row: the keys that row q sees are
// those below one border less those below another, and a border moves with q or stands still.

/**
 * Pairs (query, key) of these positions that the slices show. Exact up to 2⁵³ pairs.
 *
 * @example
 * ```ts
 * import { masks, visiblePairs } from "@mosaic/core";
 * const striped = (start: number) => [{ start, length: 4, step: 2 }];
 * visiblePairs(striped(0), striped(1), masks.causal().slices(8, 8)); // => 6
 * ```
 * @throws OptionError for what are no spans, or no slices.
 */
export function visiblePairs(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): number {
  checkIntegerSpans("visiblePairs: queries", queries);
  checkIntegerSpans("visiblePairs: keys", keys);
  checkSlices("visiblePairs: slices", slices);
  return visiblePairsUnchecked(queries, keys, slices);
}

/** `visiblePairs`, of what was checked before: a proof counts the pairs of every tile. */
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

/** Visits a pair of spans, with the ranges between their ends, until `visit` returns true. Whether it did. */
function someSpanPair(
  queries: readonly Span[],
  keys: readonly Span[],
  visit: (q: Span, k: Span, ranges: SliceBox) => boolean,
): boolean {
  return queries.some((q) =>
    keys.some((k) => visit(q, k, { q0: q.start, q1: endPosition(q), k0: k.start, k1: endPosition(k) })),
  );
}

/** Pairs of two spans that one slice shows. */
function countSlicePairs(q: Span, k: Span, slice: Slice): number {
  if (q.length === 0 || slice.q1 <= q.start || lastPosition(q) < slice.q0) return 0;
  if (k.length === 0 || slice.k1 <= k.start || lastPosition(k) < slice.k0) return 0;
  if (coversSpanPair(slice, q, k)) return q.length * k.length;
  return isDisjoint(slice, q, k) ? 0 : countPairs(visibleRowsUnchecked(q, slice), k, slice);
}

/** The rows of a span that see anything in a slice: a stretch of them, for borders are straight. */
export function visibleRows(span: Span, slice: Slice): Span {
  checkIntegerSpan("visibleRows", span);
  checkSlice("visibleRows", slice);
  return visibleRowsUnchecked(span, slice);
}

/** `visibleRows`, of what was checked before. */
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

// A border that moves with q is tightest at one end of the rows: there two comparisons decide most tiles.

/** Whether every one of these queries sees every one of these keys. */
function coversSpanPair({ q0, q1, k0, k1, type }: Slice, q: Span, k: Span): boolean {
  const lastQuery = lastPosition(q);
  if (q.start < q0 || lastQuery >= q1) return false;
  const firstVisibleKey = hasDiagonalStart(type) ? k0 + lastQuery - q0 : k0;
  const endVisibleKey = hasDiagonalEnd(type) ? k1 - (q1 - 1 - q.start) : k1;
  return firstVisibleKey <= k.start && lastPosition(k) < endVisibleKey;
}

/** Whether all of these keys lie beyond what any of these queries sees. */
function isDisjoint({ q0, q1, k0, k1, type }: Slice, q: Span, k: Span): boolean {
  const firstQuery = Math.max(q.start, q0);
  const lastQuery = Math.min(lastPosition(q), q1 - 1);
  const firstVisibleKey = hasDiagonalStart(type) ? k0 + firstQuery - q0 : k0;
  const endVisibleKey = hasDiagonalEnd(type) ? k1 - (q1 - 1 - lastQuery) : k1;
  return lastPosition(k) < firstVisibleKey || endVisibleKey <= k.start;
}

/** Positions of a span before x. */
function countBelow({ start, length, step }: Span, x: number): number {
  return Math.min(length, Math.max(0, Math.ceil((x - start) / step)));
}

/** Σ over the rows q of the keys before q + shift. */
function countBelowDiagonal(rows: Span, keys: Span, shift: number): number {
  const gap = rows.start + shift - keys.start; // of row 0; row i has gap + i · step
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

/** Σ ⌊(a·i + b) / m⌋ for i < n, by Euclid's algorithm (Graham, Knuth, Patashnik, "Concrete Mathematics", 3.5); a, b ≥ 0. */
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
 * Whether any of these queries sees any of these keys; what a backend checks before it computes or sends a tile.
 * Exact, for spans of any step; of tiles of more than 2⁵³ pairs with a step above 1 only what lies between the first and the
 * last position counts, so that the answer may be true without need.
 *
 * @example
 * ```ts
 * import { isVisible, masks } from "@mosaic/core";
 * const span = (start: number) => [{ start, length: 4, step: 1 }];
 * const slices = masks.causal().slices(8, 8);
 * isVisible(span(0), span(4), slices); // => false
 * isVisible(span(4), span(0), slices); // => true
 * ```
 * @throws OptionError for what are no spans, or no slices.
 */
export function isVisible(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): boolean {
  checkIntegerSpans("isVisible: queries", queries);
  checkIntegerSpans("isVisible: keys", keys);
  checkSlices("isVisible: slices", slices);
  return isVisibleUnchecked(queries, keys, slices);
}

/** `isVisible`, of what was checked before: backends evaluate it for every pair of ranks. */
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

/** Whether a slice shows any pair of two spans, the first of which meets the slice's queries. */
function isSpanPairVisible(slice: Slice, q: Span, k: Span): boolean {
  const [q0, q1, k0, k1] = [q.start, endPosition(q), k.start, endPosition(k)];
  // Boxes first: of 10 000 documents nearly all lie elsewhere, and of a sequence of one nearly all are within.
  if (slice.q0 >= q1 || q0 >= slice.q1 || k0 >= k1 || slice.k0 >= k1 || k0 >= slice.k1) return false;
  if (!intersects(slice, { q0, q1, k0, k1 })) return false;
  const isDense = (q.step === 1 || q.length === 1) && (k.step === 1 || k.length === 1);
  return isDense || q.length * k.length > Number.MAX_SAFE_INTEGER || countSlicePairs(q, k, slice) > 0;
}

/** `sliceIntersectsUnchecked`, of boxes that meet: one slanted border is farthest out at one end of the rows. */
function intersects(slice: Slice, box: Omit<Slice, "type">): boolean {
  const { type } = slice;
  if (type === "full" || type === "bidirectionalCausal") return type === "full" || sliceIntersectsUnchecked(slice, box);
  const firstRow = Math.max(box.q0, slice.q0);
  const lastRow = Math.min(box.q1, slice.q1) - 1;
  const firstKey = type === "inverseCausal" ? slice.k0 + firstRow - slice.q0 : slice.k0;
  const endKey = type === "causal" ? slice.k1 - (slice.q1 - 1 - lastRow) : slice.k1;
  return Math.max(box.k0, firstKey) < Math.min(box.k1, endKey);
}

/** The position after the last; no more than the start of a span that has none. */
function endPosition({ start, length, step }: Span): number {
  return start + (length - 1) * step + 1;
}
