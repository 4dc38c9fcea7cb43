import { expectValue } from "../errors.ts";

/**
 * Which borders of a slice's keys move by one with each row: none ("full"), the right one ("causal", aligned bottom right),
 * the left one ("inverseCausal", aligned top left) or both ("bidirectionalCausal"). MagiAttention's `attn_mask_type`.
 */
export type SliceType = keyof typeof sliceTypeCodes;

/** The numbers of slice types in kernels: bit 0 for a right border that moves, bit 1 for a left one. */
export const sliceTypeCodes = { full: 0, causal: 1, inverseCausal: 2, bidirectionalCausal: 3 } as const;

/** Whether the first visible key moves by one with each row. */
export function slantsLeft(type: SliceType): boolean {
  return type === "inverseCausal" || type === "bidirectionalCausal";
}

/** Whether the last visible key moves by one with each row. */
export function slantsRight(type: SliceType): boolean {
  return type === "causal" || type === "bidirectionalCausal";
}

/**
 * One piece of a mask, in global positions: row q of [q0, q1) sees the keys in
 * [ k0 + (slantsLeft(type) ? q − q0 : 0), k1 − (slantsRight(type) ? q1 − 1 − q : 0) ), none when that is empty.
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
 * - q0, q1, k0 and k1 are whole numbers, 0 ≤ q0 ≤ q1 ≤ queries and 0 ≤ k0 ≤ k1 ≤ keys; the type is one of `SliceType`;
 * - no two slices cover the same pair: it would count twice.
 */
export interface Mask {
  readonly name: string;
  /** Slices over `queries` × `keys` positions. */
  slices(queries: number, keys: number): readonly Slice[];
}

/** Throws an OptionError unless `slice` is one, of whole numbers; not whether it lies within any sequence. */
export function checkSlice(where: string, slice: unknown): asserts slice is Slice {
  if (!isSlice(slice)) expectValue(where, false, `a slice { q0, q1, k0, k1, type } of whole numbers`, slice);
}

/** Throws an OptionError unless `slices` is an array of slices. */
export function checkSlices(where: string, slices: unknown): asserts slices is readonly Slice[] {
  expectValue(where, Array.isArray(slices), "an array of slices", slices);
  for (let i = 0; i < (slices as readonly unknown[]).length; i++) checkSlice(where, (slices as readonly unknown[])[i]);
}

function isSlice(value: unknown): value is Slice {
  if (typeof value !== "object" || value === null) return false;
  const { q0, q1, k0, k1, type } = value as Partial<Slice>;
  const isWhole =
    Number.isSafeInteger(q0) && Number.isSafeInteger(q1) && Number.isSafeInteger(k0) && Number.isSafeInteger(k1);
  return (
    isWhole && (type === "full" || type === "causal" || type === "inverseCausal" || type === "bidirectionalCausal")
  );
}
