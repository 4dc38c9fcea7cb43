import fc from "fast-check";
import { hasDiagonalEnd, hasDiagonalStart, type Slice, type SliceType } from "../../src/mask/slice.ts";

/**
 * Lists every (query, key) pair that slices cover, by their definition. A pair is listed once for each slice that
 * covers it.
 */
export function listPairs(...slices: readonly Slice[]): string[] {
  const pairs: string[] = [];
  for (const { q0, q1, k0, k1, type } of slices) {
    for (let q = q0; q < q1; q++) {
      const start = k0 + (hasDiagonalStart(type) ? q - q0 : 0);
      const end = k1 - (hasDiagonalEnd(type) ? q1 - 1 - q : 0);
      for (let k = start; k < end; k++) pairs.push(`${q},${k}`);
    }
  }
  return pairs.toSorted();
}

/** Lists the pairs of a grid for which `visible` returns true. */
export function pairsWhere(queries: number, keys: number, visible: (q: number, k: number) => boolean): string[] {
  const pairs: string[] = [];
  for (let q = 0; q < queries; q++) for (let k = 0; k < keys; k++) if (visible(q, k)) pairs.push(`${q},${k}`);
  return pairs.toSorted();
}

const range = fc.tuple(fc.nat(9), fc.integer({ min: 1, max: 9 }));

/** Generates slices of all types and proportions that are small enough to enumerate. */
export const anySlice: fc.Arbitrary<Slice> = fc
  .tuple(range, range, fc.constantFrom<SliceType>("full", "causal", "inverseCausal", "bidirectionalCausal"))
  .map(([[q0, h], [k0, w], type]) => ({ q0, q1: q0 + h, k0, k1: k0 + w, type }));

/** Generates a range that may be beside a slice, inside it or around it. */
export const anyRange: fc.Arbitrary<[from: number, to: number]> = range.map(([from, length]) => [from, from + length]);
