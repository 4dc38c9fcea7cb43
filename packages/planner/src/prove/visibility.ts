import type { Slice } from "@mosaic/core";
import { visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { PositionList } from "./positions.ts";

/** How many pairs the masks of a record show, by their numbers. */
export class Visibility {
  readonly #interned: InternPool;
  readonly #slicesByMask: (SortedSlices | undefined)[] = [];

  constructor(interned: InternPool) {
    this.#interned = interned;
  }

  countPairs(queries: PositionList, keys: PositionList, mask: number): number {
    let sortedSlices = this.#slicesByMask[mask];
    if (!sortedSlices) this.#slicesByMask[mask] = sortedSlices = new SortedSlices(this.#interned.masks[mask]!);
    return visiblePairsUnchecked(
      queries.sortedSpans,
      keys.sortedSpans,
      sortedSlices.findCandidateSlices(queries.first, queries.end),
    );
  }
}

/** Slices by their first query, so that of thousands of documents only those are looked at that a tile can meet. */
export class SortedSlices {
  readonly #slices: readonly Slice[];
  /** The end of the queries of each slice and all before it. */
  readonly #maxEnds: readonly number[];

  constructor(slices: readonly Slice[]) {
    this.#slices = slices.toSorted((a, b) => a.q0 - b.q0);
    let end = 0;
    this.#maxEnds = this.#slices.map(({ q1 }) => (end = Math.max(end, q1)));
  }

  /** Those that may have a query of [first, end). */
  findCandidateSlices(first: number, end: number): readonly Slice[] {
    if (this.#slices.length === 1) return this.#slices;
    const begin = this.#lowerBound(first);
    let endIndex = begin;
    while (endIndex < this.#slices.length && this.#slices[endIndex]!.q0 < end) endIndex++;
    return this.#slices.slice(begin, endIndex);
  }

  #lowerBound(position: number): number {
    let [low, high] = [0, this.#slices.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#maxEnds[middle]! <= position) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/**
 * How many pairs the tiles of tapes show, by the numbers that tapes have for rows and masks: of samples with masks of their own,
 * on average. Each is counted once.
 */
export class PairCounts {
  readonly #interned: InternPool;
  /** By mask, rows of queries, rows of keys. */
  readonly #cache: number[][][] = [];

  constructor(interned: InternPool) {
    this.#interned = interned;
  }

  count(queries: number, keys: number, mask: number): number {
    const { rows, masks } = this.#interned;
    const counts = ((this.#cache[mask] ??= [])[queries] ??= []);
    return (counts[keys] ??=
      visiblePairsUnchecked(rows[queries]!, rows[keys]!, masks[mask]!) / this.#interned.sampleCount(mask));
  }
}
