import { type Slice, hasDiagonalStart, hasDiagonalEnd, type Span } from "@mosaic/core";
import { visibleRowsUnchecked, visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import { SortedSlices } from "../prove/visibility.ts";
import type { Shards } from "./shards.ts";

/** A permutation of shards. */
export type Permutation = (shard: number) => number;

/**
 * Checks whether permutations of shards preserve all that a backend can derive from layouts and mask: the number of
 * rows of each shard, and the number of visible pairs of each two shards. Row counts are compared exactly. Pair counts
 * are compared as sums with random weights; two different matrices have equal sums with a probability of 2⁻⁵⁰.
 */
export class Invariance {
  readonly #queries: Shards;
  readonly #keys: Shards;
  readonly #slices: readonly Slice[];
  /** Number of samples whose slices these are. */
  readonly #numSamples: number;
  readonly #sortedSlices: SortedSlices;
  #cachedFingerprints: Fingerprints | undefined;
  #cachedIsUniform: boolean | undefined;

  // oxlint-disable-next-line max-params -- queries, keys, and what is visible in how many samples
  constructor(queries: Shards, keys: Shards, slices: readonly Slice[], numSamples = 1) {
    this.#queries = queries;
    this.#keys = keys;
    this.#slices = slices;
    this.#numSamples = numSamples;
    this.#sortedSlices = new SortedSlices(slices);
  }

  /** Whether every shard has as many rows as its image. */
  preservesRows(permutation: Permutation): boolean {
    return [this.#queries, this.#keys].every((shards) => {
      for (let shard = 0; shard < shards.count; shard++) {
        if (shards.numRows(shard) !== shards.numRows(permutation(shard))) return false;
      }
      return true;
    });
  }

  /**
   * Whether every two shards have as many visible pairs as their images. False if spans have steps for which pairs are
   * not counted.
   */
  preservesPairs(permutation: Permutation): boolean {
    if (this.#areAllPairsVisible()) return this.preservesRows(permutation);
    if (!this.#identityFingerprints().isDefined) return false;
    this.#cachedIsUniform ??= this.#isUniform();
    if (this.#cachedIsUniform) return true;
    const [identityFingerprints, { count }] = [this.#identityFingerprints(), this.#keys];
    const weights = fingerprintWeights(count);
    const permutedWeights = weights.map(() => new Float64Array(count)) as [Float64Array, Float64Array];
    for (const [i, shardWeights] of weights.entries()) {
      for (let shard = 0; shard < count; shard++) permutedWeights[i]![permutation(shard)] = shardWeights[shard]!;
    }
    const imageFingerprints = this.#fingerprints(permutedWeights);
    for (let shard = 0; shard < this.#queries.count; shard++) {
      const [identityCounts, imageCounts] = [
        identityFingerprints.pairCounts(shard),
        imageFingerprints.pairCounts(permutation(shard)),
      ];
      if (identityCounts[0] !== imageCounts[0] || identityCounts[1] !== imageCounts[1]) return false;
    }
    return true;
  }

  /**
   * Whether the queries of every shard attend to at least one key of every shard. This tests one rectangle: the rows
   * from the earliest last query of a shard on, and the columns up to the latest first key, or the mirror image. If all
   * of it is visible, every shard has a query and a key in it. Otherwise the result is false, even if all shards are
   * visible for another reason.
   */
  get isEveryShardVisible(): boolean {
    const [queries, keys] = [shardPositionBounds(this.#queries), shardPositionBounds(this.#keys)];
    if (!queries || !keys) return false;
    const lowerLeftRectangle = rectangle([queries.minLast, this.#queries.layout.length], [0, keys.maxFirst + 1]);
    const upperRightRectangle = rectangle([0, queries.maxFirst + 1], [keys.minLast, this.#keys.layout.length]);
    return [lowerLeftRectangle, upperRightRectangle].some(({ q, k }) => {
      return visiblePairsUnchecked([q], [k], this.#slices) === this.#numSamples * q.length * k.length;
    });
  }

  /**
   * Whether all pairs of different shards have equally many visible pairs, and so does each shard with itself. Every
   * permutation then preserves the counts.
   */
  #isUniform(): boolean {
    const { count } = this.#keys;
    const [identityFingerprints, weights] = [this.#identityFingerprints(), fingerprintWeights(count)];
    const countPairs = (q: number, k: number): number =>
      visiblePairsUnchecked(this.#queries.spans(q), this.#keys.spans(k), this.#slices) % FINGERPRINT_PRIME;
    const [sameShardPairs, otherShardPairs] = [countPairs(0, 0), count > 1 ? countPairs(0, 1) : 0];
    const totals = weights.map((each) => each.reduce((sum, weight) => (sum + weight) % FINGERPRINT_PRIME, 0));
    for (let shard = 0; shard < count; shard++) {
      const counts = identityFingerprints.pairCounts(shard);
      for (const [i, shardWeights] of weights.entries()) {
        const otherWeightSum = (totals[i]! - shardWeights[shard]! + FINGERPRINT_PRIME) % FINGERPRINT_PRIME;
        if (
          counts[i] !==
          (((otherShardPairs * otherWeightSum) % FINGERPRINT_PRIME) +
            ((sameShardPairs * shardWeights[shard]!) % FINGERPRINT_PRIME)) %
            FINGERPRINT_PRIME
        )
          return false;
      }
    }
    return true;
  }

  #identityFingerprints(): Fingerprints {
    return (this.#cachedFingerprints ??= this.#fingerprints(fingerprintWeights(this.#keys.count)));
  }

  #areAllPairsVisible(): boolean {
    const [slice, ...otherSlices] = this.#slices;
    if (!slice || otherSlices.length > 0 || slice.type !== "full") return false;
    const { q0, q1, k0, k1 } = slice;
    return q0 <= 0 && k0 <= 0 && q1 >= this.#queries.layout.length && k1 >= this.#keys.layout.length;
  }

  #fingerprints(weights: readonly [Float64Array, Float64Array]): Fingerprints {
    return new Fingerprints(
      this.#queries,
      this.#sortedSlices,
      weights.map((each) => new WeightedKeys(this.#keys, each)),
    );
  }
}

function rectangle([q0, q1]: readonly [number, number], [k0, k1]: readonly [number, number]): { q: Span; k: Span } {
  return { q: { start: q0, length: q1 - q0, step: 1 }, k: { start: k0, length: k1 - k0, step: 1 } };
}

/** Returns the smallest last position and the largest first position of all shards; undefined if a shard is empty. */
function shardPositionBounds(shards: Shards): { minLast: number; maxFirst: number } | undefined {
  let [minLast, maxFirst] = [Number.POSITIVE_INFINITY, 0];
  for (let shard = 0; shard < shards.count; shard++) {
    const spans = shards.spans(shard).filter(({ length }) => length > 0);
    if (spans.length === 0) return undefined;
    const last = Math.max(...spans.map(({ start, length, step }) => start + (length - 1) * step));
    minLast = Math.min(minLast, last);
    maxFirst = Math.max(maxFirst, Math.min(...spans.map(({ start }) => start)));
  }
  return { minLast, maxFirst };
}

// Numbers of pairs, each weighted by the shard of its key, modulo a prime below 2²⁶, so that products are exact in 53
// bits.

const FINGERPRINT_PRIME = 67_108_859;

/** Returns two lists of pseudo-random numbers below the prime, the same on every call. */
function fingerprintWeights(count: number): [Float64Array, Float64Array] {
  const drawWeights = (seed: number): Float64Array => {
    let state = seed;
    return Float64Array.from({ length: count }, () => {
      // Marsaglia's xorshift32.
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      return (state >>> 0) % FINGERPRINT_PRIME;
    });
  };
  return [drawWeights(0x9e37_79b9), drawWeights(0x85eb_ca6b)];
}

/** For each shard of queries, the weighted number of its visible pairs; computed on first use. */
class Fingerprints {
  readonly #queries: Shards;
  readonly #slices: SortedSlices;
  readonly #keys: readonly WeightedKeys[];
  readonly #cache: (readonly number[])[] = [];

  // oxlint-disable-next-line max-params -- queries, what is visible of them, and keys
  constructor(queries: Shards, slices: SortedSlices, keys: readonly WeightedKeys[]) {
    this.#queries = queries;
    this.#slices = slices;
    this.#keys = keys;
  }

  /** Whether the sums are defined: all spans must have a step of 1, and the shards of keys must have no gaps. */
  get isDefined(): boolean {
    return this.#keys.every(({ isDefined }) => isDefined) && this.#queries.spansWithStep(1) !== undefined;
  }

  pairCounts(shard: number): readonly number[] {
    return (this.#cache[shard] ??= this.#keys.map((keys) => {
      let sum = 0;
      for (const span of this.#queries.spans(shard)) {
        if (span.length === 0) continue;
        for (const slice of this.#slices.findCandidateSlices(span.start, span.start + span.length))
          sum += keys.sumPairWeights(span, slice);
      }
      return sum % FINGERPRINT_PRIME;
    }));
  }
}

/**
 * Sums of key weights: C(x), the sum over the keys before x, and Σ C(y) over y < x. The latter is quadratic in x within
 * a span.
 */
class WeightedKeys {
  readonly isDefined: boolean;
  readonly #starts: Float64Array;
  readonly #weights: Float64Array;
  readonly #prefixSums: Float64Array;
  readonly #prefixSumsOfSums: Float64Array;

  constructor(keys: Shards, shardWeights: Float64Array) {
    const spans = keys.spansWithStep(1) ?? [];
    const n = spans.length;
    this.#starts = new Float64Array(n + 1);
    this.#weights = new Float64Array(n + 1);
    this.#prefixSums = new Float64Array(n + 1);
    this.#prefixSumsOfSums = new Float64Array(n + 1);
    let end = 0;
    let isContiguous = true;
    for (const [i, { shard, start, length }] of spans.entries()) {
      isContiguous &&= start === end;
      end = start + length;
      this.#starts[i] = start;
      this.#weights[i] = shardWeights[shard]!;
      this.#starts[i + 1] = end;
      this.#prefixSums[i + 1] =
        (this.#prefixSums[i]! + this.#weights[i] * (length % FINGERPRINT_PRIME)) % FINGERPRINT_PRIME;
      this.#prefixSumsOfSums[i + 1] = this.#sumSpanPrefix(i, length);
    }
    this.isDefined = isContiguous && n > 0 && end === keys.layout.length;
  }

  /** Returns the weighted number of visible pairs of these queries in a slice. */
  sumPairWeights(queries: Span, slice: Slice): number {
    const { q0, q1, k0, k1, type } = slice;
    const rows = visibleRowsUnchecked(queries, slice);
    if (rows.length === 0) return 0;
    const endSum = hasDiagonalEnd(type) ? this.#sumMovingBound(rows, k1 - q1 + 1) : this.#sumFixedBound(rows, k1);
    const startSum = hasDiagonalStart(type) ? this.#sumMovingBound(rows, k0 - q0) : this.#sumFixedBound(rows, k0);
    return endSum - startSum + FINGERPRINT_PRIME;
  }

  /** Σ C(q + shift) over the rows q: the bound moves with the row. */
  #sumMovingBound({ start, length }: Span, shift: number): number {
    return (
      (this.#cumulativeSums(start + length + shift).sumOfSums -
        this.#cumulativeSums(start + shift).sumOfSums +
        FINGERPRINT_PRIME) %
      FINGERPRINT_PRIME
    );
  }

  /** Σ C(x) over the rows: the bound is the same for all. */
  #sumFixedBound({ length }: Span, x: number): number {
    return (this.#cumulativeSums(x).sum * (length % FINGERPRINT_PRIME)) % FINGERPRINT_PRIME;
  }

  /** C(x), and Σ C(y) over y < x. */
  #cumulativeSums(x: number): { readonly sum: number; readonly sumOfSums: number } {
    let [low, high] = [0, this.#starts.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.#starts[middle]! <= x) low = middle;
      else high = middle;
    }
    const rows = x - this.#starts[low]!;
    const sum = (this.#prefixSums[low]! + this.#weights[low]! * (rows % FINGERPRINT_PRIME)) % FINGERPRINT_PRIME;
    return { sum, sumOfSums: this.#sumSpanPrefix(low, rows) };
  }

  #sumSpanPrefix(spanIndex: number, rows: number): number {
    // Either rows or rows − 1 is even.
    const numRowPairs =
      rows % 2 === 0
        ? ((rows / 2) % FINGERPRINT_PRIME) * ((rows - 1 + FINGERPRINT_PRIME) % FINGERPRINT_PRIME)
        : (rows % FINGERPRINT_PRIME) * (((rows - 1) / 2) % FINGERPRINT_PRIME);
    const startTerm = (this.#prefixSums[spanIndex]! * (rows % FINGERPRINT_PRIME)) % FINGERPRINT_PRIME;
    return (
      (this.#prefixSumsOfSums[spanIndex]! + startTerm + this.#weights[spanIndex]! * (numRowPairs % FINGERPRINT_PRIME)) %
      FINGERPRINT_PRIME
    );
  }
}
