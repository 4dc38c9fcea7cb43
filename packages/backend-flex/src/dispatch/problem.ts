import { clipQueries, type Slice } from "@mosaic/core";
import { visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import { mergeIntervals } from "../required-rows.ts";
import type { CostModel } from "./cost.ts";

/** A mask of one or more samples of the batch. */
export interface WeightedMask {
  readonly slices: readonly Slice[];
  readonly samples: number;
}

export interface ProblemOptions {
  readonly masks: readonly WeightedMask[];
  readonly queries: number;
  readonly keys: number;
  /** Queries and keys are the same rows: a chunk is of both. */
  readonly isSelfAttention: boolean;
  readonly ranks: number;
  readonly chunkSize: number;
  readonly model: CostModel;
}

/**
 * What is to be placed: chunks of queries, with their visible pairs and the keys that they require, and chunks of keys. In
 * self-attention a chunk is of both; else those of keys follow those of queries. Keys are counted in atoms: stretches of one
 * sample's keys that every chunk requires or owns wholly or not at all. All of it follows from masks and lengths.
 */
export interface DispatchProblem extends ProblemOptions {
  /** Chunks of queries; those of keys, if separate, have the numbers from there to `chunks`. */
  readonly queryChunks: number;
  readonly chunks: number;
  /** Visible pairs by chunk, over all samples. */
  readonly pairs: Float64Array;
  readonly totalPairs: number;
  /** By atom: rows, over the samples of its mask, and the chunk that owns it. */
  readonly atomRows: Float64Array;
  readonly atomOwner: Int32Array;
  /** By chunk: [start, end) of atoms, alternating. */
  readonly requiredAtoms: readonly Int32Array[];
  readonly ownedAtoms: readonly Int32Array[];
  /** By chunk of queries: rows before its own that it requires; which is 0 if queries and keys are separate. */
  readonly precedingRows: Float64Array;
  /** By chunk of queries: the number of the document that most of its pairs are of. */
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

/** By chunk: rows that it requires. */
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

/** By slice: where the document starts that it is of, which no slice reaches beyond; undefined if there is one alone. */
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

/** Collects the atoms of one mask after another: each has keys of its own. */
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
  /** The number of the first chunk of keys. */
  readonly firstOwner: number;
}
