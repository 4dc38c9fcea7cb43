import { clipQueries, type Slice } from "@mosaic/core";
import { visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import { mergeIntervals } from "../required-rows.ts";
import type { CostModel } from "./cost.ts";

/** A mask, and the number of samples of the batch that have it. */
export interface WeightedMask {
  readonly slices: readonly Slice[];
  readonly samples: number;
}

export interface ProblemOptions {
  readonly masks: readonly WeightedMask[];
  readonly queries: number;
  readonly keys: number;
  /** Whether queries and keys are the same sequence, so that a chunk contains both. */
  readonly isSelfAttention: boolean;
  readonly ranks: number;
  readonly chunkSize: number;
  readonly model: CostModel;
}

/**
 * The placement problem: chunks of queries, with their visible pairs and required keys, and chunks of keys. In
 * self-attention, a chunk contains both; otherwise chunks of keys follow those of queries. Keys are counted in atoms:
 * ranges of keys, each of which a chunk requires or owns either completely or not at all. A chunk requires the keys that
 * any sample requires, for all samples, because `flex` sends these. Derived from the masks and lengths only.
 */
export interface DispatchProblem extends ProblemOptions {
  /** Number of chunks of queries. Chunks of keys, if separate, have the indices from `queryChunks` to `chunks` − 1. */
  readonly queryChunks: number;
  readonly chunks: number;
  /** Visible pairs by chunk, over all samples. */
  readonly pairs: Float64Array;
  readonly totalPairs: number;
  /** By atom: its rows, summed over all samples, and the chunk that owns it. */
  readonly atomRows: Float64Array;
  readonly atomOwner: Int32Array;
  /** By chunk: intervals of atoms, as alternating start and end (exclusive). */
  readonly requiredAtoms: readonly Int32Array[];
  readonly ownedAtoms: readonly Int32Array[];
  /**
   * By chunk of queries: the number of rows from its first required row to its own first row; 0 if keys are separate.
   */
  readonly precedingRows: Float64Array;
  /** By chunk of queries: an identifier of the document that has the most of its pairs. */
  readonly document: Float64Array;
}

type Interval = [start: number, end: number];

export function createDispatchProblem(options: ProblemOptions): DispatchProblem {
  const { masks, queries, keys, isSelfAttention, chunkSize } = options;
  const queryChunks = Math.ceil(queries / chunkSize);
  const keyChunks = Math.ceil(keys / chunkSize);
  const chunks = queryChunks + (isSelfAttention ? 0 : keyChunks);
  const firstOwner = isSelfAttention ? 0 : queryChunks;
  const pairs = new Float64Array(chunks);
  const largestAreas = new Float64Array(queryChunks);
  const precedingRows = new Float64Array(queryChunks);
  const document = Float64Array.from({ length: queryChunks }, (_, chunk) => -1 - chunk);
  const intervals: Interval[][] = Array.from({ length: queryChunks }, () => []);
  let totalSamples = 0;
  for (const { slices, samples } of masks) {
    totalSamples += samples;
    const starts = findDocumentStarts(slices);
    for (const [i, slice] of slices.entries()) {
      for (let chunk = Math.floor(slice.q0 / chunkSize); chunk * chunkSize < slice.q1; chunk++) {
        const clippedSlice = clipQueries(slice, chunk * chunkSize, (chunk + 1) * chunkSize);
        const area = clippedSlice ? countVisiblePairs(clippedSlice) : 0;
        if (!clippedSlice || area === 0) continue;
        pairs[chunk]! += area * samples;
        intervals[chunk]!.push([clippedSlice.k0, clippedSlice.k1]);
        if (area <= largestAreas[chunk]!) continue;
        largestAreas[chunk] = area;
        document[chunk] = starts ? starts[i]! : clippedSlice.k0;
      }
    }
  }
  const mergedIntervals = intervals.map(mergeIntervals);
  if (isSelfAttention) {
    for (const [chunk, [firstInterval]] of mergedIntervals.entries()) {
      if (firstInterval) precedingRows[chunk] = totalSamples * Math.max(0, chunk * chunkSize - firstInterval[0]);
    }
  }
  const atoms = createAtoms(mergedIntervals, { chunks, keys, keyChunks, chunkSize, samples: totalSamples, firstOwner });
  const totalPairs = pairs.reduce((sum, each) => sum + each, 0);
  return { ...options, queryChunks, chunks, pairs, totalPairs, ...atoms, precedingRows, document };
}

function countVisiblePairs(slice: Slice): number {
  const { q0, q1, k0, k1 } = slice;
  const queries = [{ start: q0, length: q1 - q0, step: 1 }];
  return visiblePairsUnchecked(queries, [{ start: k0, length: k1 - k0, step: 1 }], [slice]);
}

/** Returns, for each chunk, the number of rows that it requires. */
export function countRequiredRows({
  chunks,
  requiredAtoms,
  atomRows,
}: Pick<DispatchProblem, "chunks" | "requiredAtoms" | "atomRows">): Float64Array {
  const prefixRows = new Float64Array(atomRows.length + 1);
  for (const [atom, rows] of atomRows.entries()) prefixRows[atom + 1] = prefixRows[atom]! + rows;
  const rowCounts = new Float64Array(chunks);
  for (let chunk = 0; chunk < chunks; chunk++) {
    const intervals = requiredAtoms[chunk]!;
    for (let i = 0; i < intervals.length; i += 2)
      rowCounts[chunk]! += prefixRows[intervals[i + 1]!]! - prefixRows[intervals[i]!]!;
  }
  return rowCounts;
}

/**
 * Returns, for each slice, the start of its document; undefined if there is only one document. No slice crosses the
 * boundary of two documents.
 */
export function findDocumentStarts(slices: readonly Slice[]): number[] | undefined {
  const firstPosition = ({ q0, k0 }: Slice): number => Math.min(q0, k0);
  const order = slices.map((_, i) => i).sort((a, b) => firstPosition(slices[a]!) - firstPosition(slices[b]!));
  const starts = new Array<number>(slices.length).fill(0);
  let [start, end] = [-1, -1];
  let numDocuments = 0;
  for (const i of order) {
    const slice = slices[i]!;
    if (firstPosition(slice) >= end) {
      [start, end] = [firstPosition(slice), -1];
      numDocuments++;
    }
    end = Math.max(end, slice.q1, slice.k1);
    starts[i] = start;
  }
  return numDocuments > 1 ? starts : undefined;
}

interface KeyChunks {
  /** Number of chunks of queries and keys. */
  readonly chunks: number;
  readonly keys: number;
  readonly keyChunks: number;
  readonly chunkSize: number;
  readonly samples: number;
  /** The index of the first chunk of keys. */
  readonly firstOwner: number;
}

/** Creates the atoms from the keys that each chunk of queries requires, as disjoint intervals. */
function createAtoms(
  requiredIntervals: readonly (readonly Interval[])[],
  { chunks, keys, keyChunks, chunkSize, samples, firstOwner }: KeyChunks,
): Pick<DispatchProblem, "atomRows" | "atomOwner" | "requiredAtoms" | "ownedAtoms"> {
  const atomStarts = new Set<number>([keys]);
  for (let chunk = 0; chunk < keyChunks; chunk++) atomStarts.add(chunk * chunkSize);
  for (const [start, end] of requiredIntervals.flat()) atomStarts.add(start).add(end);
  const boundaries = [...atomStarts].sort((a, b) => a - b);
  const atomByPosition = new Map(boundaries.map((position, atom) => [position, atom]));
  const toAtoms = (intervals: readonly Interval[]): Int32Array =>
    Int32Array.from(intervals.flatMap(([start, end]) => [atomByPosition.get(start)!, atomByPosition.get(end)!]));
  const starts = boundaries.slice(0, -1);
  const requiredAtoms = Array.from({ length: chunks }, (_, chunk) => toAtoms(requiredIntervals[chunk] ?? []));
  const ownedAtoms = Array.from({ length: chunks }, (_, chunk) => {
    const start = (chunk - firstOwner) * chunkSize;
    return toAtoms(start < 0 ? [] : [[start, Math.min(keys, start + chunkSize)]]);
  });
  return {
    atomRows: Float64Array.from(starts, (start, i) => (boundaries[i + 1]! - start) * samples),
    atomOwner: Int32Array.from(starts, (start) => firstOwner + Math.floor(start / chunkSize)),
    requiredAtoms,
    ownedAtoms,
  };
}
