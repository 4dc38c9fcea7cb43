import { visibleKeyRange, type Slice } from "@mosaic/core";
import { countHosts } from "./assignment.ts";
import type { Level } from "./cost.ts";
import { ChunkMinima, minRanksOfSuffixes } from "./packing.ts";
import { type DispatchProblem, findDocumentStarts, countRequiredRows, type WeightedMask } from "./problem.ts";

/**
 * Lower bounds for all placements that cut at multiples of the chunk size and give no rank more than ⌈n/P⌉ of n chunks.
 */
export interface DispatchBounds {
  /** Ratio of the most visible pairs of a rank to the mean over ranks. */
  readonly imbalance: number;
  /** Mean over ranks of the received rows, for any imbalance. */
  readonly rows: number;
  /** Mean over ranks of the received rows, for placements whose imbalance is at most 1.02 times its bound. */
  readonly balancedRows: number;
  /** Seconds of the slowest rank. */
  readonly time: number;
  /** The objective: time plus a tenth of the mean receive time. */
  readonly objective: number;
}

const BALANCE_TOLERANCE = 1.02;
const ROUNDING_ERROR = 1e-9;
/** The number of weighted sums of pairs and sent rows that are tried, minus one. */
const NUM_WEIGHT_STEPS = 32;

/**
 * Computes lower bounds. M is the largest number of rows of a rank (⌈n/P⌉ chunks), and B its largest number of pairs.
 *
 * - Pairs: at least the mean; at least the heaviest chunk plus the m − 1 lightest, with m = n − (P − 1)·⌈n/P⌉, the least
 *   number of chunks of a rank; and of the P + 1 heaviest chunks, two are on the same rank.
 * - Ranks that have the chunks c to l, k(c): a bin packing problem with ⌈n/P⌉ chunks and B pairs per rank. These k ranks
 *   have at least n − (P − k)·⌈n/P⌉ chunks, of which those that are not c to l take some of the k·B pairs: at least those
 *   of the lightest chunks. `packing.ts` has the bound.
 * - Rows, causal document of length L in the chunks f to l: order ranks by their last chunk of the document, from the
 *   end. The chunks after the last chunk of rank j + 1 are on j ranks. The last chunk is therefore at least the last c
 *   with k(c) > j, and the rank reads all h_j keys up to its end. Of all keys read, L are read on their owner, so Σ_{j
 *   ≥ 1} h_j are received.
 * - Window w: key k is read by every rank that has a row in [k, k + w). All of these ranks whose last row is in [k, k +
 *   w − 1) differ from the rank of row k + w − 1. Summed over k, Σ_{j ≥ 1} min(w − 1, h_j) keys are received.
 * - Full document: ⌈max(L/M, L²/B)⌉ ranks read all L keys.
 * - Any mask: the rank of chunk c reads the keys of c and owns at most M of them. The i-th smallest of the ranks'
 *   widest chunks is at least as wide as chunk n − (P − i)·M − 1 in order of width, with M in chunks.
 * - The largest number R of received rows of a rank: rank j + 1 of a document owns at least h_j − R of its L rows, so
 *   that Σ max(0, h_j − R) ≤ L.
 * - The number x of rows that the rank of the last chunk of a causal document owns of it: it owns that chunk. The rows
 *   of another chunk c are sent to every other rank with a later chunk, at least k(c + 1) − 1. The rank's pairs and
 *   sent rows are limited, so the number of other chunks is at most the value of a knapsack problem with two limits,
 *   relaxed to any one weighted sum of the limits and rounded down. If it has fewer than m chunks of the document, the
 *   pairs of its further chunks count too. R ≥ L − x.
 * - Time: within t seconds, no rank computes more than B = t / pair pairs. The bound is the smallest t at which the
 *   transfers of the resulting rows take no more than t.
 */
export function computeBounds(problem: DispatchProblem): DispatchBounds {
  const { model, totalPairs, ranks } = problem;
  const rankBounds = new RowBounds(problem, "rank");
  const hostBounds = model.isTwoLevel ? new RowBounds(problem, "host") : undefined;
  const minMaxPairs = computeMinMaxPairs(problem);
  const computeLinkTime = (time: number): number => {
    const pairs = model.secondsPerPair > 0 ? time / model.secondsPerPair : Number.POSITIVE_INFINITY;
    const maxRows = rankBounds.maxRows(pairs, model.maxRows(time, "rank"));
    const minTime = model.minLinkTime(maxRows, rankBounds.meanRows(pairs), "rank");
    return hostBounds
      ? Math.max(minTime, model.minLinkTime(hostBounds.maxRows(pairs), hostBounds.meanRows(pairs), "host"))
      : minTime;
  };
  let low = model.secondsPerPair * minMaxPairs;
  const isFeasible = (time: number): boolean => computeLinkTime(time) <= time;
  if (!isFeasible(low)) {
    let high = computeLinkTime(low);
    for (let i = 0; i < 25 && high > low * 1.0001; i++) {
      const middle = (low + high) / 2;
      if (isFeasible(middle)) high = middle;
      else low = middle;
    }
  }
  const hiddenCost = model.hiddenRowCost("rank") * rankBounds.meanRows(Infinity);
  return {
    imbalance: totalPairs === 0 ? 1 : (minMaxPairs * ranks) / totalPairs,
    rows: rankBounds.meanRows(Infinity),
    balancedRows: rankBounds.meanRows(minMaxPairs * BALANCE_TOLERANCE),
    time: low,
    objective: low + hiddenCost + (hostBounds ? model.hiddenRowCost("host") * hostBounds.meanRows(Infinity) : 0),
  };
}

function computeMinMaxPairs({ pairs, queryChunks, ranks, totalPairs }: DispatchProblem): number {
  const sortedPairs = pairs.slice(0, queryChunks).sort().reverse();
  // The least that a rank has if every other rank has ⌈n/P⌉.
  const chunksPerRank = queryChunks - (ranks - 1) * Math.ceil(queryChunks / ranks);
  const sumLightestChunks = (count: number): number => {
    let sum = 0;
    for (let i = 0; i < count; i++) sum += sortedPairs[queryChunks - 1 - i]!;
    return sum;
  };
  const lowerBound = Math.max(totalPairs / ranks, (sortedPairs[0] ?? 0) + sumLightestChunks(chunksPerRank - 1));
  if (queryChunks <= ranks) return lowerBound;
  return Math.max(lowerBound, sortedPairs[ranks - 1]! + sortedPairs[ranks]! + sumLightestChunks(chunksPerRank - 2));
}

/** A range of rows in which each row attends to all preceding rows, to those within a window, or to all rows. */
interface DocumentSpan {
  readonly start: number;
  readonly length: number;
  readonly isFull: boolean;
  /** Smallest number of consecutive keys, ending with the row itself, to which a row attends if there are that many. */
  readonly window: number;
  readonly samples: number;
}

/** Lower bounds of the rows that ranks or hosts receive, given the largest number of pairs of any rank. */
class RowBounds {
  readonly #numGroups: number;
  /** Number of ranks of a group. */
  readonly #ranksPerGroup: number;
  /** Largest number of rows of a group. */
  readonly #rowsPerGroup: number;
  readonly #chunksPerGroup: number;
  readonly #chunkMinima: ChunkMinima;
  /** By chunk: the pairs of all preceding chunks. */
  readonly #precedingPairs: Float64Array;
  readonly #documents: readonly DocumentSpan[];
  readonly #problem: DispatchProblem;
  /** Bounds for any mask: of the largest number of received rows, and of the mean. */
  readonly #minMaxRows: number;
  readonly #minMeanRows: number;

  constructor(problem: DispatchProblem, level: Level) {
    const { masks, isSelfAttention, ranks, chunkSize, queryChunks, chunks, model } = problem;
    this.#problem = problem;
    this.#ranksPerGroup = level === "rank" ? 1 : model.ranksPerHost;
    this.#numGroups = level === "rank" ? ranks : countHosts(problem);
    const keyChunks = isSelfAttention ? chunks : chunks - queryChunks;
    this.#rowsPerGroup = Math.ceil(keyChunks / ranks) * chunkSize * this.#ranksPerGroup;
    this.#documents = isSelfAttention ? masks.flatMap(findDocumentSpans) : [];
    const samples = masks.reduce((sum, mask) => sum + mask.samples, 0);
    const maxOwnRows = this.#rowsPerGroup * samples;
    const sortedRequiredRows = countRequiredRows(problem).subarray(0, queryChunks).sort();
    const maxChunks = Math.ceil(queryChunks / ranks) * this.#ranksPerGroup;
    this.#chunksPerGroup = maxChunks;
    this.#chunkMinima = new ChunkMinima(problem.pairs.subarray(0, queryChunks), ranks, Math.ceil(queryChunks / ranks));
    this.#precedingPairs = new Float64Array(chunks + 1);
    for (let chunk = 0; chunk < chunks; chunk++)
      this.#precedingPairs[chunk + 1] = this.#precedingPairs[chunk]! + problem.pairs[chunk]!;
    this.#minMaxRows = Math.max(0, (sortedRequiredRows.at(-1) ?? 0) - maxOwnRows);
    let sum = 0;
    for (let i = 1; i <= this.#numGroups; i++) {
      const chunk = queryChunks - (this.#numGroups - i) * maxChunks - 1;
      if (chunk >= 0) sum += Math.max(0, sortedRequiredRows[chunk]! - maxOwnRows);
    }
    this.#minMeanRows = sum / this.#numGroups;
  }

  meanRows(pairs: number): number {
    let rows = 0;
    for (const document of this.#documents) {
      const { length, isFull, samples } = document;
      if (isFull) rows += (this.#ranksPerDocument(document, pairs) - 1) * length * samples;
      else for (const visibleRows of this.#visibleRows(document, pairs)) rows += visibleRows * samples;
    }
    return Math.max(this.#minMeanRows, rows / this.#numGroups);
  }

  /**
   * Returns a lower bound of the largest number of received rows, if no rank has more than `pairs` pairs or sends more
   * than `sentRows`.
   */
  maxRows(pairs: number, sentRows = Number.POSITIVE_INFINITY): number {
    let maxRows = Math.max(this.#minMaxRows, this.meanRows(pairs));
    for (const document of this.#documents) {
      const { length, isFull, samples } = document;
      if (length * samples <= maxRows) continue;
      if (isFull) {
        const ownRows = Math.min(this.#rowsPerGroup, length / this.#ranksPerDocument(document, pairs));
        maxRows = Math.max(maxRows, (length - ownRows) * samples);
      } else if (document.window >= length) {
        maxRows = Math.max(maxRows, this.#maxRowsOfDocument(document, maxRows / samples, pairs) * samples);
        if (this.#ranksPerGroup === 1)
          maxRows = Math.max(maxRows, (length - this.#maxOwnedRows(document, pairs, sentRows)) * samples);
      }
    }
    return maxRows;
  }

  /**
   * Returns a lower bound of the largest number of rows that a rank receives of a causal document; at least `minRows`.
   */
  #maxRowsOfDocument(document: DocumentSpan, minRows: number, pairs: number): number {
    const visibleRows = [document.length, ...this.#visibleRows(document, pairs)];
    const isAttainable = (rows: number): boolean => {
      let ownedRows = 0;
      for (const each of visibleRows) ownedRows += Math.max(0, each - rows);
      return ownedRows <= document.length;
    };
    if (isAttainable(minRows)) return minRows;
    let [low, high] = [minRows, document.length];
    for (let i = 0; i < 30; i++) {
      const middle = (low + high) / 2;
      if (isAttainable(middle)) high = middle;
      else low = middle;
    }
    return low;
  }

  /** Returns an upper bound of the rows of a causal document that the rank of its last chunk owns. */
  #maxOwnedRows({ start, length, samples }: DocumentSpan, pairs: number, sentRows: number): number {
    const { masks, chunkSize, pairs: chunkPairs } = this.#problem;
    const [first, last] = [Math.floor(start / chunkSize), Math.floor((start + length - 1) / chunkSize)];
    const maxOwnedRows = Math.min(length, this.#rowsPerGroup);
    // Pairs are counted over all samples.
    if (masks.length > 1 || last - first < 2 || !(pairs > 0) || !(sentRows > 0)) return maxOwnedRows;
    const minRanks = minRanksOfSuffixes(chunkPairs.subarray(first, last + 1), pairs, {
      maxChunks: this.#chunksPerGroup,
      minima: this.#chunkMinima,
    });
    const [pairCosts, sentCosts] = [new Float64Array(last - first), new Float64Array(last - first)];
    for (let chunk = first; chunk < last; chunk++) {
      const [begin, end] = [Math.max(0, chunk * chunkSize - start), (chunk + 1) * chunkSize - start];
      pairCosts[chunk - first] = chunkPairs[chunk]! / pairs;
      sentCosts[chunk - first] = ((minRanks[chunk + 1 - first]! - 1) * (end - begin) * samples) / sentRows;
    }
    const remainingPairShare = 1 - chunkPairs[last]! / pairs;
    let maxChunks = last - first;
    for (let step = 0; step <= NUM_WEIGHT_STEPS; step++) {
      const weight = step / NUM_WEIGHT_STEPS;
      const costs = pairCosts.map((cost, i) => weight * cost + (1 - weight) * sentCosts[i]!).sort();
      const maxCost = weight * remainingPairShare + 1 - weight + ROUNDING_ERROR;
      const furtherCost = (count: number): number => (weight * this.#chunkMinima.furtherPairs(1, count + 1)) / pairs;
      let cost = 0;
      let numChunks = 0;
      for (let count = 0; count <= maxChunks && cost <= maxCost; count++) {
        if (cost + furtherCost(count) <= maxCost) numChunks = count;
        if (count < maxChunks) cost += costs[count]!;
      }
      maxChunks = numChunks;
    }
    return Math.min(maxOwnedRows, maxChunks * chunkSize + start + length - last * chunkSize);
  }

  /**
   * Returns, for j = 1, 2, …, a lower bound of the keys that rank j + 1 of a document reads, h_j of `computeBounds`, as
   * long as it is above 0.
   */
  #visibleRows({ start, length, window }: DocumentSpan, pairs: number): number[] {
    const { chunkSize, pairs: chunkPairs } = this.#problem;
    const visibleRows: number[] = [];
    if (window < length) {
      for (let rows = length - this.#rowsPerGroup; rows > 0; rows -= this.#rowsPerGroup)
        visibleRows.push(Math.min(window - 1, rows));
      return visibleRows;
    }
    const [first, last] = [Math.floor(start / chunkSize), Math.floor((start + length - 1) / chunkSize)];
    const maxChunks = this.#chunksPerGroup / this.#ranksPerGroup;
    const documentPairs = this.#precedingPairs[last + 1]! - this.#precedingPairs[first]!;
    if (last - first < maxChunks && documentPairs <= pairs) return visibleRows;
    const minRanks = minRanksOfSuffixes(chunkPairs.subarray(first, last + 1), pairs, {
      maxChunks,
      minima: this.#chunkMinima,
    });
    for (let chunk = last; chunk >= first; chunk--)
      while (minRanks[chunk - first]! > (visibleRows.length + 1) * this.#ranksPerGroup)
        visibleRows.push(Math.min(length, (chunk + 1) * chunkSize - start));
    return visibleRows;
  }

  /** Returns the smallest number of groups that share a full document. */
  #ranksPerDocument({ length, samples }: DocumentSpan, pairs: number): number {
    const maxPairs = (pairs * this.#ranksPerGroup) / samples;
    return Math.max(1, Math.ceil(Math.max(length / this.#rowsPerGroup, (length * length) / maxPairs) - 1e-9));
  }
}

/** A document with more slices than this has no bound of its own. */
const MAX_BOUNDED_SLICES = 2048;

function findDocumentSpans({ slices, samples }: WeightedMask): DocumentSpan[] {
  const starts = findDocumentStarts(slices);
  const slicesByStart = new Map<number, Slice[]>();
  for (const [i, slice] of slices.entries()) {
    const start = starts ? starts[i]! : 0;
    const documentSlices = slicesByStart.get(start);
    if (documentSlices) documentSlices.push(slice);
    else slicesByStart.set(start, [slice]);
  }
  return [...slicesByStart.values()].flatMap((each) => toDocumentSpan(each, samples));
}

function toDocumentSpan(slices: readonly Slice[], samples: number): DocumentSpan[] {
  const start = Math.min(...slices.map(({ q0, k0 }) => Math.min(q0, k0)));
  const end = Math.max(...slices.map(({ q1, k1 }) => Math.max(q1, k1)));
  const length = end - start;
  const { q0, q1, k0, k1, type } = slices[0]!;
  const coversDocument = q0 === start && k0 === start && q1 === end && k1 === end;
  if (slices.length === 1 && coversDocument && type === "full")
    return [{ start, length, isFull: true, window: Number.POSITIVE_INFINITY, samples }];
  if (slices.length > MAX_BOUNDED_SLICES) return [];
  // The bounds of visible keys are linear within a slice, so their number is smallest at a first or last row of a
  // slice.
  const rows = new Set([start, end - 1, ...slices.flatMap((slice) => [slice.q0, slice.q1 - 1])]);
  let window = Number.POSITIVE_INFINITY;
  for (const row of rows) {
    const numVisibleKeys = countVisibleKeysUpTo(slices, row);
    if (numVisibleKeys < row - start + 1) window = Math.min(window, numVisibleKeys);
  }
  return window < 2 ? [] : [{ start, length, isFull: false, window, samples }];
}

/** Returns the number of consecutive keys, ending with the row itself, to which a row attends. */
function countVisibleKeysUpTo(slices: readonly Slice[], row: number): number {
  const ranges = slices
    .filter(({ q0, q1 }) => q0 <= row && row < q1)
    .map((slice) => visibleKeyRange(slice, row))
    .sort((a, b) => b.end - a.end);
  let first = row + 1;
  for (const { start, end } of ranges) if (end >= first) first = Math.min(first, start);
  return row + 1 - first;
}
