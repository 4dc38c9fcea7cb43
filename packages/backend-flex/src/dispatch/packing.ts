/** Documents with more chunks are bounded by sums and by chunks of more than half the capacity only. */
const MAX_PACKED_CHUNKS = 128;
const ROUNDING_ERROR = 1e-9;

/**
 * Returns, for each chunk, a lower bound of the number of ranks that have this chunk and all later ones, if a rank has
 * at most `maxChunks` chunks with at most `maxPairs` pairs B. It is at least:
 *
 * - the number of chunks divided by `maxChunks`, and the sum of pairs divided by B;
 * - the number of chunks of more than B / 2 pairs, since a rank has at most one of them;
 * - for a chunk of K pairs, the bound of Martello and Toth (1990): n₁ chunks of more than B − K pairs are on ranks
 *   without a chunk of K pairs or more; n₂ chunks of more than B / 2 pairs are on other ranks; those of K to B / 2 pairs
 *   fill the rest of these n₂ ranks, and then further ranks.
 */
export function minRanksOfSuffixes(pairs: Float64Array, maxPairs: number, maxChunks: number): Int32Array {
  const count = pairs.length;
  const minRanks = new Int32Array(count);
  let ranks = 0;
  let pairSum = 0;
  let numLargeChunks = 0;
  for (let chunk = count - 1; chunk >= 0; chunk--) {
    pairSum += pairs[chunk]!;
    if (pairs[chunk]! > maxPairs / 2) numLargeChunks++;
    ranks = Math.max(ranks, Math.ceil((count - chunk) / maxChunks));
    if (maxPairs > 0) {
      ranks = Math.max(ranks, numLargeChunks, Math.ceil(pairSum / maxPairs - ROUNDING_ERROR));
      if (count <= MAX_PACKED_CHUNKS && pairs[chunk]! <= maxPairs / 2)
        ranks = Math.max(ranks, boundPacking(pairs.subarray(chunk), maxPairs, pairs[chunk]!));
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
