import type { Slice } from "@mosaic/core";
import type { Names } from "../symbolic/names.ts";
import { pairsWithin } from "./area.ts";
import type { Positions } from "./positions.ts";

/** How many pairs the masks of a record show, by their numbers. */
export class Visibility {
  readonly #names: Names;
  readonly #masks: (Sorted | undefined)[] = [];

  constructor(names: Names) {
    this.#names = names;
  }

  pairs(queries: Positions, keys: Positions, mask: number): number {
    let sorted = this.#masks[mask];
    if (!sorted) this.#masks[mask] = sorted = new Sorted(this.#names.masks[mask]!);
    return sorted.pairs(queries, keys);
  }
}

/** Slices by their first query, so that of thousands of documents only those are looked at that a tile can meet. */
class Sorted {
  readonly #slices: readonly Slice[];
  /** The end of the queries of each slice and all before it. */
  readonly #ends: readonly number[];

  constructor(slices: readonly Slice[]) {
    this.#slices = slices.toSorted((a, b) => a.q0 - b.q0);
    let end = 0;
    this.#ends = this.#slices.map(({ q1 }) => (end = Math.max(end, q1)));
  }

  pairs(queries: Positions, keys: Positions): number {
    if (this.#slices.length === 1) return pairsWithin(queries.sorted, keys.sorted, this.#slices[0]!);
    let pairs = 0;
    const begin = this.#firstEndingAfter(queries.first);
    for (let i = begin; i < this.#slices.length && this.#slices[i]!.q0 < queries.end; i++) {
      pairs += pairsWithin(queries.sorted, keys.sorted, this.#slices[i]!);
    }
    return pairs;
  }

  #firstEndingAfter(position: number): number {
    let [low, high] = [0, this.#slices.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ends[middle]! <= position) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
