import type { Slice } from "@mosaic/core";
import { visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { PositionList } from "./positions.ts";

/** Counts visible pairs under the masks of a record, by the masks' numbers. */
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

/**
 * Slices sorted by their first query, so that with thousands of documents only those that a tile can overlap are
 * examined.
 */
export class SortedSlices {
  readonly #slices: readonly Slice[];
  /** For each slice, the largest end of its queries and those of all slices before it. */
  readonly #maxEnds: readonly number[];

  constructor(slices: readonly Slice[]) {
    this.#slices = slices.toSorted((a, b) => a.q0 - b.q0);
    let end = 0;
    this.#maxEnds = this.#slices.map(({ q1 }) => (end = Math.max(end, q1)));
  }

  /** Returns the slices that may have a query of [first, end). */
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
 * Counts the visible pairs of recorded tiles, by the numbers of rows and masks on tapes. If samples have masks of their
 * own, it returns the average over samples. Each count is computed once.
 */
export class PairCounts {
  readonly #interned: InternPool;
  /** By mask, query rows and key rows. */
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
