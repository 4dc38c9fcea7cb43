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
 * ranges of keys of one mask, each of which a chunk requires or owns either completely or not at all. Derived from the
 * masks and lengths only.
 */
export interface DispatchProblem extends ProblemOptions {
  /** Number of chunks of queries. Chunks of keys, if separate, have the indices from `queryChunks` to `chunks` − 1. */
  readonly queryChunks: number;
  readonly chunks: number;
  /** Visible pairs by chunk, over all samples. */
  readonly pairs: Float64Array;
  readonly totalPairs: number;
  /** By atom: its rows, summed over the samples of its mask, and the chunk that owns it. */
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
  const atoms = new AtomBuilder(chunks);
  for (const { slices, samples } of masks) {
    const intervals: Interval[][] = Array.from({ length: queryChunks }, () => []);
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
    const mergedIntervals = intervals.map(mergeIntervals);
    if (isSelfAttention) {
      for (const [chunk, [firstInterval]] of mergedIntervals.entries()) {
        if (firstInterval) precedingRows[chunk]! += samples * Math.max(0, chunk * chunkSize - firstInterval[0]);
      }
    }
    atoms.add(mergedIntervals, { keys, keyChunks, chunkSize, samples, firstOwner });
  }
  const totalPairs = pairs.reduce((sum, each) => sum + each, 0);
  return { ...options, queryChunks, chunks, pairs, totalPairs, ...atoms.build(), precedingRows, document };
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

/** Collects the atoms of several masks. Keys of different masks are counted separately. */
class AtomBuilder {
  readonly #rows: number[] = [];
  readonly #owners: number[] = [];
  readonly #required: number[][];
  readonly #owned: number[][];

  constructor(chunks: number) {
    this.#required = Array.from({ length: chunks }, () => []);
    this.#owned = Array.from({ length: chunks }, () => []);
  }

  add(
    requiredIntervals: readonly (readonly Interval[])[],
    { keys, keyChunks, chunkSize, samples, firstOwner }: KeyChunks,
  ): void {
    const atomStarts = new Set<number>([keys]);
    for (let chunk = 0; chunk < keyChunks; chunk++) atomStarts.add(chunk * chunkSize);
    for (const [start, end] of requiredIntervals.flat()) atomStarts.add(start).add(end);
    const boundaries = [...atomStarts].sort((a, b) => a - b);
    const firstAtom = this.#rows.length;
    const atomByPosition = new Map(boundaries.map((position, i) => [position, firstAtom + i]));
    for (let i = 0; i + 1 < boundaries.length; i++) {
      this.#rows.push((boundaries[i + 1]! - boundaries[i]!) * samples);
      this.#owners.push(firstOwner + Math.floor(boundaries[i]! / chunkSize));
    }
    for (let chunk = 0; chunk < keyChunks; chunk++) {
      const end = Math.min(keys, (chunk + 1) * chunkSize);
      this.#owned[firstOwner + chunk]!.push(atomByPosition.get(chunk * chunkSize)!, atomByPosition.get(end)!);
    }
    for (const [chunk, intervals] of requiredIntervals.entries())
      for (const [start, end] of intervals)
        this.#required[chunk]!.push(atomByPosition.get(start)!, atomByPosition.get(end)!);
  }

  build(): Pick<DispatchProblem, "atomRows" | "atomOwner" | "requiredAtoms" | "ownedAtoms"> {
    return {
      atomRows: Float64Array.from(this.#rows),
      atomOwner: Int32Array.from(this.#owners),
      requiredAtoms: this.#required.map((each) => Int32Array.from(each)),
      ownedAtoms: this.#owned.map((each) => Int32Array.from(each)),
    };
  }
}

interface KeyChunks {
  readonly keys: number;
  readonly keyChunks: number;
  readonly chunkSize: number;
  readonly samples: number;
  /** The index of the first chunk of keys. */
  readonly firstOwner: number;
}
