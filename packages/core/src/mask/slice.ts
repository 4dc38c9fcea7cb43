import { checkNumber } from "../arguments.ts";
import { expectValue } from "../errors.ts";

// Types of masks: a `Mask` returns the list of slices (`Slice`) of an attention matrix. masks.ts creates masks,
// verify.ts verifies them.

/**
 * Borders of a slice's key range that move by one key per row: none ("full"), the right border ("causal", bottom-right
 * aligned), the left border ("inverseCausal", top-left aligned) or both ("bidirectionalCausal"). MagiAttention's
 * `attn_mask_type`.
 */
export type SliceType = keyof typeof sliceTypeCodes;

/** Codes of slice types in kernels: bit 0 is set if the right border is diagonal, bit 1 if the left border is. */
export const sliceTypeCodes = { full: 0, causal: 1, inverseCausal: 2, bidirectionalCausal: 3 } as const;

/**
 * Returns whether the first visible key moves by one with each row.
 *
 * @example
 * ```ts
 * import { hasDiagonalStart } from "@mosaic/core";
 * [hasDiagonalStart("causal"), hasDiagonalStart("inverseCausal")]; // => [false, true]
 * ```
 */
export function hasDiagonalStart(type: SliceType): boolean {
  return type === "inverseCausal" || type === "bidirectionalCausal";
}

/**
 * Returns whether the last visible key moves by one with each row.
 *
 * @example
 * ```ts
 * import { hasDiagonalEnd } from "@mosaic/core";
 * [hasDiagonalEnd("causal"), hasDiagonalEnd("inverseCausal")]; // => [true, false]
 * ```
 */
export function hasDiagonalEnd(type: SliceType): boolean {
  return type === "causal" || type === "bidirectionalCausal";
}

/**
 * One rectangle of a mask, in global positions. The visible keys of row q in [q0, q1) are [ k0 +
 * (hasDiagonalStart(type) ? q − q0 : 0), k1 − (hasDiagonalEnd(type) ? q1 − 1 − q : 0) ), none if this range is empty.
 * Source: AttnSlice of MagiAttention.
 */
export interface Slice {
  readonly q0: number;
  readonly q1: number;
  readonly k0: number;
  readonly k1: number;
  readonly type: SliceType;
}

/**
 * The visible (query, key) pairs: a function from sequence lengths to disjoint slices. A custom mask must satisfy the
 * following contract, which attention verifies (`resolveSlices`) before anything is sent, once for each pair of
 * lengths:
 *
 * - equal lengths yield equal slices on every rank; `slices` is called once for each pair of lengths;
 * - q0, q1, k0 and k1 are integers, 0 ≤ q0 ≤ q1 ≤ queries and 0 ≤ k0 ≤ k1 ≤ keys; the type is one of `SliceType`;
 * - no two slices cover the same pair, because it would be counted twice.
 */
export interface Mask {
  readonly name: string;
  /** Returns the slices for `queries` × `keys` positions. */
  slices(queries: number, keys: number): readonly Slice[];
}

/**
 * Checks an argument that must be a slice with integer bounds. Does not check that it is within a sequence. `where` is
 * the caller's name in errors.
 *
 * @example
 * ```ts
 * import { checkSlice } from "@mosaic/core";
 * checkSlice("myMask", { q0: 0, q1: 4 }); // throws myMask: expected a slice { q0, q1, k0, k1, type }
 * ```
 * @throws OptionError unless it is one.
 */
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

// The algebra of slices, after MagiAttention: clipping a slice to a range of queries or keys yields slices. The left
// border of the keys moves right by one per row if `hasDiagonalStart(type)`, the right border if
// `hasDiagonalEnd(type)`.

/**
 * Returns the keys [start, end) of a slice that are visible to row q, which must be one of its rows. The range is empty
 * if start ≥ end.
 *
 * @example
 * ```ts
 * import { visibleKeyRange } from "@mosaic/core";
 * visibleKeyRange({ q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" }, 1); // => { start: 0, end: 2 }
 * ```
 * @throws OptionError unless the slice has integer bounds, and q is a number.
 */
export function visibleKeyRange(slice: Slice, q: number): { readonly start: number; readonly end: number } {
  checkSlice("visibleKeyRange", slice);
  checkNumber("visibleKeyRange: q", q);
  return {
    start: slice.k0 + (hasDiagonalStart(slice.type) ? q - slice.q0 : 0),
    end: slice.k1 - (hasDiagonalEnd(slice.type) ? slice.q1 - 1 - q : 0),
  };
}

/**
 * Returns the number of (query, key) pairs that a slice covers. Exact up to 2⁵³ pairs.
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
  // One of the factors is even, and is halved so that the result is exact.
  const parallelSidesSum = 2 * width - rows + 1;
  return rows % 2 === 0 ? (rows / 2) * parallelSidesSum : rows * (parallelSidesSum / 2);
}

/**
 * Clips a slice to queries [from, to). Returns undefined if no pair remains.
 *
 * @example
 * ```ts
 * import { clipQueries } from "@mosaic/core";
 * const slice = { q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" } as const;
 * clipQueries(slice, 2, 8); // => { q0: 2, q1: 4, k0: 0, k1: 4, type: "causal" }
 * ```
 * @throws OptionError unless the slice has integer bounds, and from and to are numbers.
 */
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
 * Clips a slice to keys [from, to). Returns at most three slices. In rows before `left`, a diagonal left border is less
 * than `from`, so the left border of the result is constant there. In rows from `right` on, a diagonal right border
 * exceeds `to`.
 *
 * @example
 * ```ts
 * import { clipKeys } from "@mosaic/core";
 * const slices = clipKeys({ q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" }, 0, 2);
 * slices.map(({ q0, q1, type }) => [q0, q1, type]); // => [[0, 2, "causal"], [2, 4, "full"]]
 * ```
 * @throws OptionError unless the slice has integer bounds, and from and to are numbers.
 */
export function clipKeys(slice: Slice, from: number, to: number): Slice[] {
  checkClip("clipKeys", slice, from, to);
  const { q0, q1, k0, k1, type } = slice;
  const clampQuery = (q: number) => Math.min(q1, Math.max(q0, q));
  const left = hasDiagonalStart(type) ? clampQuery(q0 + from - k0) : q1;
  const right = hasDiagonalEnd(type) ? clampQuery(q1 - k1 + to) : q0;
  // Rows [q0, left) start at `from`, later rows at the diagonal. Rows [q0, right) end at the diagonal, later rows at
  // `to`.
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

/** Clips rows [a, b), which are on one side of both `left` and `right`. Rows without visible keys are removed. */
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

/** Returns the slice type with these borders. */
export function sliceTypeFor(isStartDiagonal: boolean, isEndDiagonal: boolean): SliceType {
  if (isStartDiagonal) return isEndDiagonal ? "bidirectionalCausal" : "inverseCausal";
  return isEndDiagonal ? "causal" : "full";
}
