import { type Assignment, chunkQuota } from "./assignment.ts";
import type { DispatchProblem } from "./problem.ts";

// Assignments of the n chunks of queries to P ranks. All but `greedy` give every rank its quota, ⌊n/P⌋ or ⌊n/P⌋ + 1
// chunks.

/** Assigns consecutive ranges of chunks to consecutive ranks. */
export function sequentialAssignment(problem: DispatchProblem): Assignment {
  const assignment = new Int32Array(problem.queryChunks);
  let chunk = 0;
  for (let rank = 0; rank < problem.ranks; rank++) {
    const end = chunk + chunkQuota(problem, problem.queryChunks, rank);
    assignment.fill(rank, chunk, end);
    chunk = end;
  }
  return assignment;
}

/** Splits the chunks into 2P runs and assigns runs r and 2P − 1 − r to rank r. */
export function zigzagAssignment(problem: DispatchProblem): Assignment {
  const assignment = new Int32Array(problem.queryChunks);
  let [low, high] = [0, problem.queryChunks];
  for (let rank = 0; rank < problem.ranks; rank++) {
    const count = chunkQuota(problem, problem.queryChunks, rank);
    const numLowChunks = Math.ceil(count / 2);
    assignment.fill(rank, low, low + numLowChunks);
    assignment.fill(rank, high - (count - numLowChunks), high);
    low += numLowChunks;
    high -= count - numLowChunks;
  }
  return assignment;
}

/**
 * MagiAttention's default: assigns chunks, heaviest first, to the rank with the fewest pairs that has less than ⌈n/P⌉
 * chunks.
 */
export function greedyAssignment({ queryChunks, pairs, ranks }: DispatchProblem): Assignment {
  const assignment = new Int32Array(queryChunks);
  const [pairsByRank, chunkCounts] = [new Float64Array(ranks), new Int32Array(ranks)];
  const maxChunks = Math.ceil(queryChunks / ranks);
  for (const chunk of sortByPairs(pairs, queryChunks)) {
    let bestRank = -1;
    for (let rank = 0; rank < ranks; rank++)
      if (chunkCounts[rank]! < maxChunks && (bestRank < 0 || pairsByRank[rank]! < pairsByRank[bestRank]!))
        bestRank = rank;
    assignment[chunk] = bestRank;
    pairsByRank[bestRank]! += pairs[chunk]!;
    chunkCounts[bestRank]!++;
  }
  return assignment;
}

function sortByPairs(pairs: Float64Array, chunks: number): number[] {
  return Array.from({ length: chunks }, (_, chunk) => chunk).sort((a, b) => pairs[b]! - pairs[a]! || a - b);
}

/** Largest number of atoms (ranges of keys, see `DispatchProblem`) that affinity visits, over all chunks and ranks. */
const MAX_AFFINITY_VISITS = 2e7;
/** Affinity does not fill a rank beyond this multiple of the mean pairs while another rank has capacity. */
const AFFINITY_MAX_RELATIVE_LOAD = 1.05;

/**
 * Assigns chunks, heaviest first, to the rank that already requires or owns most of the chunk's keys and has capacity
 * for its pairs. Returns undefined for masks for which this would take too long.
 */
export function affinityAssignment(problem: DispatchProblem): Assignment | undefined {
  const { queryChunks, ranks, pairs, requiredAtoms, ownedAtoms, totalPairs } = problem;
  const visits = requiredAtoms.reduce((sum, intervals) => sum + countAtoms(intervals), 0) * ranks;
  if (visits > MAX_AFFINITY_VISITS) return undefined;
  const assignment = new Int32Array(queryChunks);
  const [pairsByRank, chunkCounts] = [new Float64Array(ranks), new Int32Array(ranks)];
  const presentAtoms = new PresentAtoms(problem);
  const maxPairs = (AFFINITY_MAX_RELATIVE_LOAD * totalPairs) / ranks;
  const chunkQuotas = Int32Array.from({ length: ranks }, (_, rank) => chunkQuota(problem, queryChunks, rank));
  for (const chunk of sortByPairs(pairs, queryChunks)) {
    const presentRows = presentAtoms.countRowsByRank(requiredAtoms[chunk]!);
    let bestRank = -1;
    let maxPresentRows = -1;
    let lightestRank = -1;
    for (let rank = 0; rank < ranks; rank++) {
      if (chunkCounts[rank]! >= chunkQuotas[rank]!) continue;
      if (lightestRank < 0 || pairsByRank[rank]! < pairsByRank[lightestRank]!) lightestRank = rank;
      if (pairsByRank[rank]! + pairs[chunk]! > maxPairs) continue;
      const rows = presentRows[rank]!;
      if (rows > maxPresentRows || (rows === maxPresentRows && pairsByRank[rank]! < pairsByRank[bestRank]!)) {
        bestRank = rank;
        maxPresentRows = rows;
      }
    }
    const rank = bestRank < 0 ? lightestRank : bestRank;
    assignment[chunk] = rank;
    pairsByRank[rank]! += pairs[chunk]!;
    chunkCounts[rank]!++;
    presentAtoms.add(requiredAtoms[chunk]!, rank);
    presentAtoms.add(ownedAtoms[chunk]!, rank);
  }
  return assignment;
}

/**
 * The atoms that ranks require or own. For each atom there is a list of its ranks, since few of all ranks have an atom.
 */
class PresentAtoms {
  readonly #atomRows: Float64Array;
  /** By rank and atom: 1 if it is present. */
  readonly #isPresent: Uint8Array;
  /** By atom: the index of the first entry of its list, or −1. By entry: its rank, and the index of the next. */
  readonly #firstEntry: Int32Array;
  readonly #entryRank: number[] = [];
  readonly #nextEntry: number[] = [];
  readonly #rowsByRank: Float64Array;

  constructor({ ranks, atomRows }: DispatchProblem) {
    this.#atomRows = atomRows;
    this.#isPresent = new Uint8Array(ranks * atomRows.length);
    this.#firstEntry = new Int32Array(atomRows.length).fill(-1);
    this.#rowsByRank = new Float64Array(ranks);
  }

  add(intervals: Int32Array, rank: number): void {
    const base = rank * this.#atomRows.length;
    for (let i = 0; i < intervals.length; i += 2) {
      for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) {
        if (this.#isPresent[base + atom]) continue;
        this.#isPresent[base + atom] = 1;
        this.#nextEntry.push(this.#firstEntry[atom]!);
        this.#firstEntry[atom] = this.#entryRank.push(rank) - 1;
      }
    }
  }

  /** Returns, for each rank, the rows of the intervals that are present. The next call overwrites them. */
  countRowsByRank(intervals: Int32Array): Float64Array {
    const rowsByRank = this.#rowsByRank.fill(0);
    for (let i = 0; i < intervals.length; i += 2) {
      for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) {
        const rows = this.#atomRows[atom]!;
        for (let entry = this.#firstEntry[atom]!; entry >= 0; entry = this.#nextEntry[entry]!)
          rowsByRank[this.#entryRank[entry]!]! += rows;
      }
    }
    return rowsByRank;
  }
}

function countAtoms(intervals: Int32Array): number {
  let atoms = 0;
  for (let i = 0; i < intervals.length; i += 2) atoms += intervals[i + 1]! - intervals[i]!;
  return atoms;
}

function countPresentRows(intervals: Int32Array, presentAtoms: Uint8Array, atomRows: Float64Array): number {
  let rows = 0;
  for (let i = 0; i < intervals.length; i += 2)
    for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) if (presentAtoms[atom]) rows += atomRows[atom]!;
  return rows;
}

/**
 * Necklace splitting (Alon 1987): if the chunks are arranged in a circle, there is always a window of p1/p of the
 * chunks that has p1/p of the pairs, because that is the mean over all windows. The window and the rest are split
 * recursively. Every rank thus has equal rows and pairs, up to one chunk per level, in about two runs. Among the
 * windows whose pairs deviate by at most `tolerance` times the mean load, the one whose two cuts separate the fewest
 * keys from their queries is selected. If `isRankByRank`, each split separates one rank instead of half of them.
 */
export function necklaceAssignment(problem: DispatchProblem, tolerance: number, isRankByRank = false): Assignment {
  const assignment = new Int32Array(problem.queryChunks);
  const bisect = (chunkList: Int32Array, first: number, end: number): void => {
    if (end - first === 1) {
      for (const chunk of chunkList) assignment[chunk] = first;
      return;
    }
    const middle = first + (isRankByRank ? 1 : (end - first) >> 1);
    const [window, rest] = splitWindow(problem, chunkList, { first, middle, end, tolerance });
    bisect(window, first, middle);
    bisect(rest, middle, end);
  };
  bisect(
    Int32Array.from({ length: problem.queryChunks }, (_, chunk) => chunk),
    0,
    problem.ranks,
  );
  return assignment;
}

interface BisectionRange {
  readonly first: number;
  readonly middle: number;
  readonly end: number;
  readonly tolerance: number;
}

/** Splits a list of chunks into those that the ranks [first, middle) of [first, end) receive, and the others. */
function splitWindow(
  problem: DispatchProblem,
  chunkList: Int32Array,
  { first, middle, end, tolerance }: BisectionRange,
): readonly [window: Int32Array, rest: Int32Array] {
  const { pairs, precedingRows } = problem;
  const count = chunkList.length;
  let numWindowChunks = 0;
  for (let rank = first; rank < middle; rank++) numWindowChunks += chunkQuota(problem, problem.queryChunks, rank);
  const prefixPairs = new Float64Array(2 * count + 1);
  for (let i = 0; i < count; i++) prefixPairs[i + 1] = prefixPairs[i]! + pairs[chunkList[i]!]!;
  for (let i = 0; i < count; i++) prefixPairs[count + i + 1] = prefixPairs[count + i]! + pairs[chunkList[i]!]!;
  const targetPairs = (prefixPairs[count]! * (middle - first)) / (end - first);
  const maxDeviation = (tolerance * problem.totalPairs * (middle - first)) / problem.ranks;
  const countCutRows = (i: number): number =>
    i === 0 || chunkList[i] !== chunkList[i - 1]! + 1 ? 0 : precedingRows[chunkList[i]]!;
  let start = 0;
  let minDeviation = Number.POSITIVE_INFINITY;
  let minCutRows = Number.POSITIVE_INFINITY;
  for (let startIndex = 0; startIndex < count; startIndex++) {
    const deviation = Math.abs(prefixPairs[startIndex + numWindowChunks]! - prefixPairs[startIndex]! - targetPairs);
    const error = deviation <= maxDeviation ? 0 : deviation;
    if (error > minDeviation) continue;
    const rows = countCutRows(startIndex) + countCutRows((startIndex + numWindowChunks) % count);
    if (error < minDeviation || rows < minCutRows) {
      start = startIndex;
      minDeviation = error;
      minCutRows = rows;
    }
  }
  const windowEnd = start + numWindowChunks;
  if (windowEnd > count) {
    const wrappedEnd = windowEnd - count;
    return [removeRange(chunkList, wrappedEnd, start), chunkList.subarray(wrappedEnd, start)];
  }
  return [chunkList.subarray(start, windowEnd), removeRange(chunkList, start, windowEnd)];
}

function removeRange(list: Int32Array, start: number, end: number): Int32Array {
  const others = new Int32Array(list.length - (end - start));
  others.set(list.subarray(0, start));
  others.set(list.subarray(end), start);
  return others;
}

/** Share of a rank's pairs that a run may have in addition without one more rank. */
const RANK_SHARE_TOLERANCE = 0.02;

/** Returns the number of ranks that `pairs` fill to `fillFactor` times the mean. */
export function countTargetRanks({ ranks, totalPairs }: DispatchProblem, pairs: number, fillFactor = 1): number {
  return Math.ceil((pairs * ranks) / (fillFactor * (totalPairs || 1)) - RANK_SHARE_TOLERANCE);
}

/**
 * Assigns runs of chunks of one document, heaviest first. If a run has the pairs of g ranks, each filled to
 * `fillFactor` times the mean, it is distributed in zigzag over the g least loaded ranks with capacity. Smaller runs
 * are assigned to one rank. Runs that exceed the remaining capacity of these ranks are split over more. With
 * `fixedRanks`, the runs that have a rank there, instead of −1, keep it.
 */
export function documentGroupAssignment(
  problem: DispatchProblem,
  fillFactor: number,
  fixedRanks?: Assignment,
): Assignment {
  const { queryChunks, ranks, pairs } = problem;
  const assignment = new Int32Array(queryChunks);
  const pairsByRank = new Float64Array(ranks);
  const chunkCapacities = Int32Array.from({ length: ranks }, (_, rank) => chunkQuota(problem, queryChunks, rank));
  for (const [chunk, rank] of (fixedRanks ?? []).entries()) {
    if (rank < 0) continue;
    assignment[chunk] = rank;
    pairsByRank[rank]! += pairs[chunk]!;
    chunkCapacities[rank]!--;
  }
  const compareRanks = (a: number, b: number): number =>
    pairsByRank[a]! - pairsByRank[b]! || chunkCapacities[b]! - chunkCapacities[a]! || a - b;
  // Ranks with capacity, by load. A run changes the loads of few of them.
  let freeRanks = Array.from({ length: ranks }, (_, rank) => rank)
    .filter((rank) => chunkCapacities[rank]! > 0)
    .sort(compareRanks);
  for (const run of findDocumentRuns(problem)) {
    if (fixedRanks && fixedRanks[run.chunks[0]!]! >= 0) continue;
    const numTargetRanks = countTargetRanks(problem, run.pairs, fillFactor);
    const chosenRanks = selectRanksWithCapacity(freeRanks, chunkCapacities, {
      chunks: run.chunks.length,
      numTargetRanks,
    });
    assignZigzag(chosenRanks, run.chunks, { remainingChunks: chunkCapacities, assignment });
    for (const chunk of run.chunks) pairsByRank[assignment[chunk]!]! += pairs[chunk]!;
    const changedRanks = chosenRanks.filter((rank) => chunkCapacities[rank]! > 0).sort(compareRanks);
    freeRanks = mergeSorted(removeAll(freeRanks, chosenRanks, ranks), changedRanks, compareRanks);
  }
  return assignment;
}

function removeAll(list: readonly number[], removedRanks: readonly number[], ranks: number): number[] {
  const isRemoved = new Uint8Array(ranks);
  for (const rank of removedRanks) isRemoved[rank] = 1;
  return list.filter((rank) => !isRemoved[rank]);
}

function mergeSorted(a: readonly number[], b: readonly number[], compare: (a: number, b: number) => number): number[] {
  const merged: number[] = [];
  let i = 0;
  for (const each of b) {
    while (i < a.length && compare(a[i]!, each) < 0) merged.push(a[i++]!);
    merged.push(each);
  }
  while (i < a.length) merged.push(a[i++]!);
  return merged;
}

export interface DocumentRun {
  readonly chunks: number[];
  pairs: number;
}

export function findDocumentRuns({ queryChunks, document, pairs }: DispatchProblem): DocumentRun[] {
  const runs: DocumentRun[] = [];
  for (let chunk = 0; chunk < queryChunks; chunk++) {
    const lastRun = runs.at(-1);
    if (lastRun && document[chunk] === document[chunk - 1]) {
      lastRun.chunks.push(chunk);
      lastRun.pairs += pairs[chunk]!;
    } else runs.push({ chunks: [chunk], pairs: pairs[chunk]! });
  }
  return runs.sort((a, b) => b.pairs - a.pairs || a.chunks[0]! - b.chunks[0]!);
}

/**
 * Returns the first `numTargetRanks` or more ranks that each have capacity for an equal part of the chunks; all free
 * ranks if there are none.
 */
function selectRanksWithCapacity(
  freeRanks: readonly number[],
  chunkCapacities: Int32Array,
  { chunks, numTargetRanks }: Readonly<Record<"chunks" | "numTargetRanks", number>>,
): readonly number[] {
  for (
    let count = Math.min(freeRanks.length, chunks, Math.max(1, numTargetRanks));
    count <= freeRanks.length;
    count++
  ) {
    const chunksPerRank = Math.ceil(chunks / count);
    const fittingRanks: number[] = [];
    for (let i = 0; i < freeRanks.length && fittingRanks.length < count; i++)
      if (chunkCapacities[freeRanks[i]!]! >= chunksPerRank) fittingRanks.push(freeRanks[i]!);
    if (fittingRanks.length === count) return fittingRanks;
  }
  return freeRanks;
}

/** Distributes chunks in zigzag over ranks, evenly up to the capacity of each. */
function assignZigzag(
  chosenRanks: readonly number[],
  chunks: readonly number[],
  { remainingChunks, assignment }: { readonly remainingChunks: Int32Array; readonly assignment: Assignment },
): void {
  const counts = new Int32Array(chosenRanks.length);
  for (let numRemainingChunks = chunks.length, i = 0; numRemainingChunks > 0; i = (i + 1) % chosenRanks.length) {
    if (counts[i]! >= remainingChunks[chosenRanks[i]!]!) continue;
    counts[i]!++;
    numRemainingChunks--;
  }
  let [low, high] = [0, chunks.length];
  for (const [i, rank] of chosenRanks.entries()) {
    const numLowChunks = Math.ceil(counts[i]! / 2);
    for (let k = 0; k < numLowChunks; k++) assignment[chunks[low++]!] = rank;
    for (let k = numLowChunks; k < counts[i]!; k++) assignment[chunks[--high]!] = rank;
    remainingChunks[rank]! -= counts[i]!;
  }
}

/**
 * Assigns the chunks of keys if they are separate from those of queries. Each chunk, in order, is assigned to the rank
 * with capacity that requires most of its rows. Among equal ranks, it is the one with the most remaining capacity.
 */
export function assignKeys(problem: DispatchProblem, queryAssignment: Assignment): Assignment {
  const { chunks, queryChunks, ranks, atomRows, requiredAtoms, ownedAtoms } = problem;
  if (chunks === queryChunks) return queryAssignment;
  const presentAtoms = Array.from({ length: ranks }, () => new Uint8Array(atomRows.length));
  for (let chunk = 0; chunk < queryChunks; chunk++) {
    const intervals = requiredAtoms[chunk]!;
    const rankAtoms = presentAtoms[queryAssignment[chunk]!]!;
    for (let i = 0; i < intervals.length; i += 2) rankAtoms.fill(1, intervals[i], intervals[i + 1]);
  }
  const assignment = new Int32Array(chunks);
  assignment.set(queryAssignment);
  const chunkCapacities = Int32Array.from({ length: ranks }, (_, rank) =>
    chunkQuota(problem, chunks - queryChunks, rank),
  );
  for (let chunk = queryChunks; chunk < chunks; chunk++) {
    let [bestRank, maxPresentRows] = [-1, -1];
    for (let rank = 0; rank < ranks; rank++) {
      if (chunkCapacities[rank] === 0) continue;
      const rows = countPresentRows(ownedAtoms[chunk]!, presentAtoms[rank]!, atomRows);
      if (rows > maxPresentRows || (rows === maxPresentRows && chunkCapacities[rank]! > chunkCapacities[bestRank]!))
        [bestRank, maxPresentRows] = [rank, rows];
    }
    assignment[chunk] = bestRank;
    chunkCapacities[bestRank]!--;
  }
  return assignment;
}
