import type { Slice } from "@mosaic/core";
import type { Sees } from "./attention.ts";
import { integer, uniforms } from "./numbers.ts";

/** The definition of a slice, pair by pair: the only one in this package, independent of core's code. */
export function sees(slice: Slice, query: number, key: number): boolean {
  if (query < slice.q0 || query >= slice.q1) return false;
  const from = slice.k0 + (slice.type & 2 ? query - slice.q0 : 0);
  const to = slice.k1 - (slice.type & 1 ? slice.q1 - 1 - query : 0);
  return key >= from && key < to;
}

/** What a list of slices lets through. */
export function seesAny(slices: readonly Slice[]): Sees {
  return (query, key) => slices.some((slice) => sees(slice, query, key));
}

/** A random list of disjoint slices, of all four types and some of them empty: bands of rows, each with up to two slices. */
export function randomSlices(queries: number, keys: number, seed: number): Slice[] {
  const next = uniforms(seed);
  const slices: Slice[] = [];
  for (let q0 = 0; q0 < queries; ) {
    const q1 = Math.min(queries, q0 + 1 + integer(next, Math.ceil(queries / 2)));
    const cuts = Array.from({ length: 4 }, () => integer(next, keys + 1)).toSorted((a, b) => a - b);
    for (let piece = integer(next, 3); piece > 0; piece--) {
      const [k0, k1] = [cuts[2 * piece - 2]!, cuts[2 * piece - 1]!];
      slices.push({ q0, q1, k0, k1, type: integer(next, 4) as Slice["type"] });
    }
    q0 = q1;
  }
  return slices;
}
