/**
 * One piece of a mask, in global positions: row q of [q0, q1) sees the keys in
 * [ k0 + (type & 2 ? q − q0 : 0), k1 − (type & 1 ? q1 − 1 − q : 0) ), none when that is empty.
 * Source: the AttnSlice of MagiAttention; type 0 full, 1 causal (bottom-right aligned), 2 inverse causal (top-left), 3 both.
 */
export interface Slice {
  readonly q0: number;
  readonly q1: number;
  readonly k0: number;
  readonly k1: number;
  readonly type: 0 | 1 | 2 | 3;
}

/**
 * Which (query, key) pairs count: a rule that gives disjoint slices for sequences of given lengths. A mask of your own must
 * guarantee this, and attention verifies it (`resolveSlices`) before anything is sent, once for each pair of lengths:
 *
 * - the same lengths give the same slices, on every rank; `slices` is called once for them;
 * - q0, q1, k0 and k1 are whole numbers, 0 ≤ q0 ≤ q1 ≤ queries and 0 ≤ k0 ≤ k1 ≤ keys; the type is 0, 1, 2 or 3;
 * - no two slices cover the same pair: it would count twice.
 */
export interface Mask {
  readonly name: string;
  /** Slices over `queries` × `keys` positions. */
  slices(queries: number, keys: number): readonly Slice[];
}
