import { checkNumber } from "../arguments.ts";
import { expectValue } from "../errors.ts";

// What a mask is: `Mask` gives the list of slices, `Slice`, of an attention matrix. masks.ts makes masks, verify.ts checks them.

/**
 * Which borders of a slice's keys move by one with each row: none ("full"), the right one ("causal", aligned bottom right),
 * the left one ("inverseCausal", aligned top left) or both ("bidirectionalCausal"). MagiAttention's `attn_mask_type`.
 */
export type SliceType = keyof typeof sliceTypeCodes;

/** The numbers of slice types in kernels: bit 0 for a right border that moves, bit 1 for a left one. */
export const sliceTypeCodes = { full: 0, causal: 1, inverseCausal: 2, bidirectionalCausal: 3 } as const;

/** Whether the first visible key moves by one with each row. */
export function hasDiagonalStart(type: SliceType): boolean {
  return type === "inverseCausal" || type === "bidirectionalCausal";
}

/** Whether the last visible key moves by one with each row. */
export function hasDiagonalEnd(type: SliceType): boolean {
  return type === "causal" || type === "bidirectionalCausal";
}

/**
 * One piece of a mask, in global positions: row q of [q0, q1) sees the keys in
 * [ k0 + (hasDiagonalStart(type) ? q − q0 : 0), k1 − (hasDiagonalEnd(type) ? q1 − 1 − q : 0) ), none when that is empty.
 * Source: the AttnSlice of MagiAttention.
 */
export interface Slice {
  readonly q0: number;
  readonly q1: number;
  readonly k0: number;
  readonly k1: number;
  readonly type: SliceType;
}

/**
 * Which (query, key) pairs count: a rule that gives disjoint slices for sequences of given lengths. A mask of your own must
 * guarantee this, and attention verifies it (`resolveSlices`) before anything is sent, once for each pair of lengths:
 *
 * - the same lengths give the same slices, on every rank; `slices` is called once for them;
 * - q0, q1, k0 and k1 are integers, 0 ≤ q0 ≤ q1 ≤ queries and 0 ≤ k0 ≤ k1 ≤ keys; the type is one of `SliceType`;
 * - no two slices cover the same pair: it would count twice.
 */
export interface Mask {
  readonly name: string;
  /** Slices over `queries` × `keys` positions. */
  slices(queries: number, keys: number): readonly Slice[];
}

/** Throws an OptionError unless `slice` is one, of integers; not whether it lies within any sequence. */
export function checkSlice(where: string, slice: unknown): asserts slice is Slice {
  if (!isSlice(slice))
    expectValue(
      where,
      false,
      "a slice { q0, q1, k0, k1, type } with integer bounds and type full, causal, inverseCausal or bidirectionalCausal",
      slice,
    );
}

/** Throws an OptionError unless `slices` is an array of slices. */
export function checkSlices(where: string, slices: unknown): asserts slices is readonly Slice[] {
  expectValue(where, Array.isArray(slices), "an array of slices", slices);
  for (let i = 0; i < (slices as readonly unknown[]).length; i++) checkSlice(where, (slices as readonly unknown[])[i]);
}

function isSlice(value: unknown): value is Slice {
  if (typeof value !== "object" || value === null) return false;
  const { q0, q1, k0, k1, type } = value as Partial<Slice>;
  const isInteger =
    Number.isSafeInteger(q0) && Number.isSafeInteger(q1) && Number.isSafeInteger(k0) && Number.isSafeInteger(k1);
  return (
    isInteger && (type === "full" || type === "causal" || type === "inverseCausal" || type === "bidirectionalCausal")
  );
}

// The algebra of slices, after MagiAttention: a slice cut to a range of queries or keys is again slices.
// The left border of a row's keys moves right with each row if `hasDiagonalStart(type)`, the right border if `hasDiagonalEnd(type)`.

/** Keys [start, end) that row q of a slice sees; empty when start ≥ end. */
export function visibleKeyRange(slice: Slice, q: number): { readonly start: number; readonly end: number } {
  checkSlice("visibleKeyRange", slice);
  checkNumber("visibleKeyRange: q", q);
  return {
    start: slice.k0 + (hasDiagonalStart(slice.type) ? q - slice.q0 : 0),
    end: slice.k1 - (hasDiagonalEnd(slice.type) ? slice.q1 - 1 - q : 0),
  };
}

/**
 * How many (query, key) pairs a slice covers. Exact up to 2⁵³ pairs.
 *
 * @example
 * ```ts
 * import { sliceArea } from "@mosaic/core";
 * sliceArea({ q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" }); // => 10
 * ```
 */
export function sliceArea(slice: Slice): number {
  checkSlice("sliceArea", slice);
  const height = Math.max(0, slice.q1 - slice.q0);
  const width = Math.max(0, slice.k1 - slice.k0);
  if (slice.type === "full") return height * width;
  if (slice.type === "bidirectionalCausal") return height * Math.max(0, width - height + 1);
  const rows = Math.min(height, width);
  // A factor is even, so that the product is halved exactly.
  const parallelSidesSum = 2 * width - rows + 1;
  return rows % 2 === 0 ? (rows / 2) * parallelSidesSum : rows * (parallelSidesSum / 2);
}

/** The rows of a slice in [from, to), or undefined if there are none. */
export function clipQueries(slice: Slice, from: number, to: number): Slice | undefined {
  checkClip("clipQueries", slice, from, to);
  const q0 = Math.max(slice.q0, from);
  const q1 = Math.min(slice.q1, to);
  const k0 = slice.k0 + (hasDiagonalStart(slice.type) ? q0 - slice.q0 : 0);
  const k1 = slice.k1 - (hasDiagonalEnd(slice.type) ? slice.q1 - q1 : 0);
  if (q0 >= q1 || k0 >= k1 || (slice.type === "bidirectionalCausal" && k1 - k0 < q1 - q0)) return undefined;
  return { q0, q1, k0, k1, type: slice.type };
}

/**
 * The keys of a slice in [from, to): at most three slices. Above `left` the slanted left border lies before `from`, so
 * that the cut is straight there; from `right` on, the slanted right border lies beyond `to`.
 */
export function clipKeys(slice: Slice, from: number, to: number): Slice[] {
  checkClip("clipKeys", slice, from, to);
  const { q0, q1, k0, k1, type } = slice;
  const clampQuery = (q: number) => Math.min(q1, Math.max(q0, q));
  const left = hasDiagonalStart(type) ? clampQuery(q0 + from - k0) : q1;
  const right = hasDiagonalEnd(type) ? clampQuery(q1 - k1 + to) : q0;
  // Rows [q0, left) start at `from`, later ones at the slant; rows [q0, right) end at the slant, later ones at `to`.
  const borders = [q0, Math.min(left, right), Math.max(left, right), q1];
  const bands: Slice[] = [];
  for (let i = 0; i < 3; i++) {
    const [a, b] = [borders[i]!, borders[i + 1]!];
    const band = a < b ? clipBand(slice, { a, b }, { from, to, left, right }) : undefined;
    if (band) bands.push(band);
  }
  return bands;
}

// oxlint-disable-next-line max-params -- the arguments that it checks
function checkClip(where: string, slice: Slice, from: number, to: number): void {
  checkSlice(where, slice);
  checkNumber(`${where}: from`, from);
  checkNumber(`${where}: to`, to);
}

interface ClipRange {
  readonly from: number;
  readonly to: number;
  readonly left: number;
  readonly right: number;
}

/** Rows [a, b) lie on one side of both `left` and `right`; rows that see nothing are dropped. */
function clipBand(slice: Slice, { a, b }: { a: number; b: number }, clipRange: ClipRange): Slice | undefined {
  const isDiagonalStartKept = hasDiagonalStart(slice.type) && a >= clipRange.left;
  const isDiagonalEndKept = hasDiagonalEnd(slice.type) && a < clipRange.right;
  const k0 = isDiagonalStartKept ? slice.k0 + a - slice.q0 : Math.max(slice.k0, clipRange.from);
  const k1 = isDiagonalEndKept ? slice.k1 - (slice.q1 - b) : Math.min(slice.k1, clipRange.to);
  const width = k1 - k0;
  if (width <= 0 || (isDiagonalStartKept && isDiagonalEndKept && width < b - a)) return undefined;
  const q1 = isDiagonalStartKept && !isDiagonalEndKept ? Math.min(b, a + width) : b;
  const q0 = isDiagonalEndKept && !isDiagonalStartKept ? Math.max(a, b - width) : a;
  return { q0, q1, k0, k1, type: sliceTypeFor(isDiagonalStartKept, isDiagonalEndKept) };
}

/** The type of a slice whose borders move as stated. */
export function sliceTypeFor(isStartDiagonal: boolean, isEndDiagonal: boolean): SliceType {
  if (isStartDiagonal) return isEndDiagonal ? "bidirectionalCausal" : "inverseCausal";
  return isEndDiagonal ? "causal" : "full";
}
