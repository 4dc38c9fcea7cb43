import { checkWholeSpan, checkWholeSpans, type Span } from "../placement/span.ts";
import { checkSlice, checkSlices, type Slice, slantsLeft, slantsRight } from "./slice.ts";

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
  checkWholeSpans("visiblePairs: queries", queries);
  checkWholeSpans("visiblePairs: keys", keys);
  checkSlices("visiblePairs: slices", slices);
  let pairs = 0;
  for (const slice of slices) {
    for (const q of queries) {
      if (slice.q1 <= q.start || lastOf(q) < slice.q0) continue;
      for (const k of keys) pairs += pairsWithin(q, k, slice);
    }
  }
  return pairs;
}

/** Pairs of two spans that one slice shows. */
export function pairsWithin(q: Span, k: Span, slice: Slice): number {
  if (q.length === 0 || slice.q1 <= q.start || lastOf(q) < slice.q0) return 0;
  if (k.length === 0 || slice.k1 <= k.start || lastOf(k) < slice.k0) return 0;
  if (coversAll(slice, q, k)) return q.length * k.length;
  return isBeside(slice, q, k) ? 0 : pairsOf(rowsSeeing(q, slice), k, slice);
}

/** The rows of a span that see anything in a slice: a stretch of them, for borders are straight. */
export function rowsWithin(span: Span, slice: Slice): Span {
  checkWholeSpan("rowsWithin", span);
  checkSlice("rowsWithin", slice);
  return rowsSeeing(span, slice);
}

function rowsSeeing({ start, length, step }: Span, { q0, q1, k0, k1, type }: Slice): Span {
  let low = q0;
  let high = q1;
  if (type === "bidirectionalCausal") {
    if (k1 - k0 < q1 - q0) high = low;
  } else if (type === "causal") low = Math.max(low, k0 - k1 + q1);
  else if (type === "inverseCausal") high = Math.min(high, k1 - k0 + q0);
  else if (k1 <= k0) high = low;
  const first = Math.max(0, Math.ceil((low - start) / step));
  const end = Math.min(length, Math.ceil((high - start) / step));
  return { start: start + first * step, length: Math.max(0, end - first), step };
}

function pairsOf(rows: Span, keys: Span, { q0, q1, k0, k1, type }: Slice): number {
  if (rows.length === 0) return 0;
  const end = slantsRight(type) ? belowSlant(rows, keys, k1 - q1 + 1) : rows.length * below(keys, k1);
  const start = slantsLeft(type) ? belowSlant(rows, keys, k0 - q0) : rows.length * below(keys, k0);
  return end - start;
}

function lastOf({ start, length, step }: Span): number {
  return start + (length - 1) * step;
}

// A border that moves with q is tightest at one end of the rows: there two comparisons decide most tiles.

/** Whether every one of these queries sees every one of these keys. */
function coversAll({ q0, q1, k0, k1, type }: Slice, q: Span, k: Span): boolean {
  const last = lastOf(q);
  if (q.start < q0 || last >= q1) return false;
  const left = slantsLeft(type) ? k0 + last - q0 : k0;
  const right = slantsRight(type) ? k1 - (q1 - 1 - q.start) : k1;
  return left <= k.start && lastOf(k) < right;
}

/** Whether all of these keys lie beyond what any of these queries sees. */
function isBeside({ q0, q1, k0, k1, type }: Slice, q: Span, k: Span): boolean {
  const first = Math.max(q.start, q0);
  const last = Math.min(lastOf(q), q1 - 1);
  const left = slantsLeft(type) ? k0 + first - q0 : k0;
  const right = slantsRight(type) ? k1 - (q1 - 1 - last) : k1;
  return lastOf(k) < left || right <= k.start;
}

/** Positions of a span before x. */
function below({ start, length, step }: Span, x: number): number {
  return Math.min(length, Math.max(0, Math.ceil((x - start) / step)));
}

/** Σ over the rows q of the keys before q + shift. */
function belowSlant(rows: Span, keys: Span, shift: number): number {
  const gap = rows.start + shift - keys.start; // of row 0; row i has gap + i · step
  const first = gap > 0 ? 0 : Math.min(rows.length, Math.floor(-gap / rows.step) + 1);
  const all = Math.floor(((keys.length - 1) * keys.step - gap) / rows.step) + 1;
  const end = Math.min(rows.length, Math.max(first, all));
  const some = floorSum(end - first, keys.step, rows.step, gap + first * rows.step + keys.step - 1);
  return some + (rows.length - end) * keys.length;
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
