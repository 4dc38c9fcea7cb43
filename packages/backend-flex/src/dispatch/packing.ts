/** Documents with more chunks are bounded by sums and by chunks of more than half the capacity only. */
const MAX_PACKED_CHUNKS = 128;
const ROUNDING_ERROR = 1e-9;

/** Lower bounds of the chunks that ranks have, and of their pairs, if no rank has more than `maxChunks` chunks. */
export class ChunkMinima {
  readonly #ranks: number;
  readonly #chunks: number;
  readonly #maxChunks: number;
  /** By number of chunks: the sum of pairs of so many of the lightest chunks. */
  readonly #lightestPairs: Float64Array;

  constructor(pairs: Float64Array, ranks: number, maxChunks: number) {
    this.#ranks = ranks;
    this.#chunks = pairs.length;
    this.#maxChunks = maxChunks;
    const sortedPairs = pairs.slice().sort();
    this.#lightestPairs = new Float64Array(pairs.length + 1);
    for (const [i, each] of sortedPairs.entries()) this.#lightestPairs[i + 1] = this.#lightestPairs[i]! + each;
  }

  /** Returns a lower bound of the pairs of all other chunks of `ranks` ranks that have `count` given chunks. */
  furtherPairs(ranks: number, count: number): number {
    const minChunks = this.#chunks - (this.#ranks - ranks) * this.#maxChunks;
    return this.#lightestPairs[Math.max(0, Math.min(this.#chunks, minChunks - count))]!;
  }
}

/**
 * Returns, for each chunk, a lower bound of the number of ranks that have this chunk and all later ones, if a rank has
 * at most `maxChunks` chunks with at most `maxPairs` pairs B. It is at least:
 *
 * - the number of chunks divided by `maxChunks`;
 * - the smallest k for which the pairs of the chunks, and those of the further chunks that k ranks have at least, are at
 *   most k · B;
 * - the number of chunks of more than B' / 2 pairs, since a rank has at most one of them. B' is B without the further
 *   chunks that a rank with two chunks has at least;
 * - for a chunk of K pairs, the bound of Martello and Toth (1990): n₁ chunks of more than B − K pairs are on ranks
 *   without a chunk of K pairs or more; n₂ chunks of more than B / 2 pairs are on other ranks; those of K to B / 2 pairs
 *   fill the rest of these n₂ ranks, and then further ranks.
 */
export function minRanksOfSuffixes(
  pairs: Float64Array,
  maxPairs: number,
  { maxChunks, minima }: { readonly maxChunks: number; readonly minima: ChunkMinima },
): Int32Array {
  const count = pairs.length;
  const minRanks = new Int32Array(count);
  let ranks = 0;
  let pairSum = 0;
  let numLargeChunks = 0;
  const maxPairsOfTwo = maxPairs - minima.furtherPairs(1, 2);
  for (let chunk = count - 1; chunk >= 0; chunk--) {
    const numChunks = count - chunk;
    pairSum += pairs[chunk]!;
    if (pairs[chunk]! > maxPairsOfTwo / 2) numLargeChunks++;
    ranks = Math.max(ranks, Math.ceil(numChunks / maxChunks));
    if (maxPairs > 0) {
      ranks = Math.max(ranks, numLargeChunks, Math.ceil(pairSum / maxPairs - ROUNDING_ERROR));
      if (count <= MAX_PACKED_CHUNKS && pairs[chunk]! <= maxPairs / 2)
        ranks = Math.max(ranks, boundPacking(pairs.subarray(chunk), maxPairs, pairs[chunk]!));
      const minPairs = (numRanks: number): number => pairSum + minima.furtherPairs(numRanks, numChunks);
      while (ranks < numChunks && minPairs(ranks) > (ranks + ROUNDING_ERROR) * maxPairs) ranks++;
    }
    minRanks[chunk] = ranks;
  }
  return minRanks;
}

/** Returns the bound of Martello and Toth for chunks of `minPairs` pairs or more. */
function boundPacking(pairs: Float64Array, maxPairs: number, minPairs: number): number {
  let numLargeChunks = 0;
  let freePairs = 0;
  let smallPairs = 0;
  for (let i = 0; i < pairs.length; i++) {
    const each = pairs[i]!;
    if (each > maxPairs / 2) {
      numLargeChunks++;
      if (each <= maxPairs - minPairs) freePairs += maxPairs - each;
    } else if (each >= minPairs) smallPairs += each;
  }
  return numLargeChunks + Math.max(0, Math.ceil((smallPairs - freePairs) / maxPairs - ROUNDING_ERROR));
}
