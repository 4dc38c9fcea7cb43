import { type Assignment, chunkQuota } from "./assignment.ts";
import type { DispatchProblem } from "./problem.ts";

// Assignments of the chunks of queries. All but `greedy` give every rank its quota, ⌊n/P⌋ or one more.

/** One stretch after another. */
export function sequential(problem: DispatchProblem): Assignment {
  const assignment = new Int32Array(problem.queryChunks);
  let chunk = 0;
  for (let rank = 0; rank < problem.ranks; rank++) {
    const end = chunk + chunkQuota(problem, problem.queryChunks, rank);
    assignment.fill(rank, chunk, end);
    chunk = end;
  }
  return assignment;
}

/** 2P runs, of which a rank has run r and run 2P − 1 − r. */
export function zigzag(problem: DispatchProblem): Assignment {
  const assignment = new Int32Array(problem.queryChunks);
  let [low, high] = [0, problem.queryChunks];
  for (let rank = 0; rank < problem.ranks; rank++) {
    const count = chunkQuota(problem, problem.queryChunks, rank);
    const first = Math.ceil(count / 2);
    assignment.fill(rank, low, low + first);
    assignment.fill(rank, high - (count - first), high);
    low += first;
    high -= count - first;
  }
  return assignment;
}

/** MagiAttention's default: the heaviest chunk first, to the rank with fewest pairs that has less than ⌈n/P⌉ chunks. */
export function greedy({ queryChunks, pairs, ranks }: DispatchProblem): Assignment {
  const assignment = new Int32Array(queryChunks);
  const [load, count] = [new Float64Array(ranks), new Int32Array(ranks)];
  const most = Math.ceil(queryChunks / ranks);
  for (const chunk of heaviestFirst(pairs, queryChunks)) {
    let best = -1;
    for (let rank = 0; rank < ranks; rank++)
      if (count[rank]! < most && (best < 0 || load[rank]! < load[best]!)) best = rank;
    assignment[chunk] = best;
    load[best]! += pairs[chunk]!;
    count[best]!++;
  }
  return assignment;
}

function heaviestFirst(pairs: Float64Array, chunks: number): number[] {
  return Array.from({ length: chunks }, (_, chunk) => chunk).sort((a, b) => pairs[b]! - pairs[a]! || a - b);
}

/** Atoms (ranges of keys that the same chunks require, see `DispatchProblem`) that affinity visits at most, over all chunks and ranks. */
const MAX_AFFINITY_VISITS = 2e7;
/** Affinity fills no rank beyond this share of the mean, while another one has capacity. */
const AFFINITY_CAPACITY = 1.05;

/**
 * The heaviest chunk first, to the rank that requires or owns most of its keys and has capacity for its pairs. Undefined for
 * masks of which it would take too long.
 */
export function affinity(problem: DispatchProblem): Assignment | undefined {
  const { queryChunks, ranks, pairs, atomRows, required, owned, totalPairs } = problem;
  const visits = required.reduce((sum, intervals) => sum + countAtoms(intervals), 0) * ranks;
  if (visits > MAX_AFFINITY_VISITS) return undefined;
  const assignment = new Int32Array(queryChunks);
  const [load, count] = [new Float64Array(ranks), new Int32Array(ranks)];
  const present = Array.from({ length: ranks }, () => new Uint8Array(atomRows.length));
  const limit = (AFFINITY_CAPACITY * totalPairs) / ranks;
  const capacity = Int32Array.from({ length: ranks }, (_, rank) => chunkQuota(problem, queryChunks, rank));
  for (const chunk of heaviestFirst(pairs, queryChunks)) {
    let [best, most, lightest] = [-1, -1, -1];
    for (let rank = 0; rank < ranks; rank++) {
      if (count[rank]! >= capacity[rank]!) continue;
      if (lightest < 0 || load[rank]! < load[lightest]!) lightest = rank;
      if (load[rank]! + pairs[chunk]! > limit) continue;
      const rows = presentRows(required[chunk]!, present[rank]!, atomRows);
      if (rows > most || (rows === most && load[rank]! < load[best]!)) [best, most] = [rank, rows];
    }
    const rank = best < 0 ? lightest : best;
    assignment[chunk] = rank;
    load[rank]! += pairs[chunk]!;
    count[rank]!++;
    for (const intervals of [required[chunk]!, owned[chunk]!])
      for (let i = 0; i < intervals.length; i += 2) present[rank]!.fill(1, intervals[i], intervals[i + 1]);
  }
  return assignment;
}

function countAtoms(intervals: Int32Array): number {
  let atoms = 0;
  for (let i = 0; i < intervals.length; i += 2) atoms += intervals[i + 1]! - intervals[i]!;
  return atoms;
}

function presentRows(intervals: Int32Array, present: Uint8Array, atomRows: Float64Array): number {
  let rows = 0;
  for (let i = 0; i < intervals.length; i += 2)
    for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) if (present[atom]) rows += atomRows[atom]!;
  return rows;
}

/**
 * Necklace splitting (Alon 1987): of the chunks on a circle, a window of p1/p of their number that has p1/p of their pairs
 * always exists, because that is the mean over all windows. Window and rest are split again. So every rank has equal rows and
 * pairs, up to a chunk a level, in about two runs. Of windows whose pairs are within `tolerance` ranks' loads the one is taken
 * whose two cuts separate fewest keys from their queries. `isPeeled`: one rank at a time instead of half of them.
 */
export function necklace(problem: DispatchProblem, tolerance: number, isRankByRank = false): Assignment {
  const assignment = new Int32Array(problem.queryChunks);
  const split = (list: Int32Array, first: number, end: number): void => {
    if (end - first === 1) {
      for (const chunk of list) assignment[chunk] = first;
      return;
    }
    const middle = first + (isRankByRank ? 1 : (end - first) >> 1);
    const window = createWindowPredicate(problem, list, { first, middle, end, tolerance });
    split(
      list.filter((_, i) => window(i)),
      first,
      middle,
    );
    split(
      list.filter((_, i) => !window(i)),
      middle,
      end,
    );
  };
  split(
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

/** Which chunks of a list the ranks [first, middle) of [first, end) get. */
function createWindowPredicate(
  problem: DispatchProblem,
  list: Int32Array,
  { first, middle, end, tolerance }: BisectionRange,
): (i: number) => boolean {
  const count = list.length;
  let width = 0;
  for (let rank = first; rank < middle; rank++) width += chunkQuota(problem, problem.queryChunks, rank);
  const before = new Float64Array(2 * count + 1);
  for (let i = 0; i < 2 * count; i++) before[i + 1] = before[i]! + problem.pairs[list[i % count]!]!;
  const share = (before[count]! * (middle - first)) / (end - first);
  const slack = (tolerance * problem.totalPairs * (middle - first)) / problem.ranks;
  const cutRows = (at: number): number => {
    const i = at % count;
    return i === 0 || list[i] !== list[i - 1]! + 1 ? 0 : problem.precedingRows[list[i]]!;
  };
  let [start, leastError, leastRows] = [0, Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  for (let at = 0; at < count; at++) {
    const off = Math.abs(before[at + width]! - before[at]! - share);
    const error = off <= slack ? 0 : off;
    if (error > leastError) continue;
    const rows = cutRows(at) + cutRows(at + width);
    if (error < leastError || rows < leastRows) [start, leastError, leastRows] = [at, error, rows];
  }
  return (i) => (i - start + count) % count < width;
}

/**
 * Runs of chunks of one document, heaviest first: one that has the pairs of g ranks, when each is filled to `fill` of the
 * mean, is cut in zigzag over the g least loaded ranks with capacity; others go whole to one rank. What does not fit is split.
 */
export function documentGroups(problem: DispatchProblem, fill: number): Assignment {
  const { queryChunks, ranks, pairs, totalPairs } = problem;
  const assignment = new Int32Array(queryChunks);
  const load = new Float64Array(ranks);
  const capacity = Int32Array.from({ length: ranks }, (_, rank) => chunkQuota(problem, queryChunks, rank));
  for (const run of runsOf(problem)) {
    const free = Array.from({ length: ranks }, (_, rank) => rank).filter((rank) => capacity[rank]! > 0);
    free.sort((a, b) => load[a]! - load[b]! || capacity[b]! - capacity[a]! || a - b);
    const targetRanks = Math.ceil((run.pairs * ranks) / (fill * (totalPairs || 1)) - 0.02);
    const chosen = ranksWithCapacity(free, capacity, { chunks: run.chunks.length, targetRanks });
    assignZigzag(chosen, run.chunks, { remainingChunks: capacity, assignment });
    for (const chunk of run.chunks) load[assignment[chunk]!]! += pairs[chunk]!;
  }
  return assignment;
}

interface DocumentRun {
  readonly chunks: number[];
  pairs: number;
}

function runsOf({ queryChunks, document, pairs }: DispatchProblem): DocumentRun[] {
  const runs: DocumentRun[] = [];
  for (let chunk = 0; chunk < queryChunks; chunk++) {
    const last = runs.at(-1);
    if (last && document[chunk] === document[chunk - 1]) {
      last.chunks.push(chunk);
      last.pairs += pairs[chunk]!;
    } else runs.push({ chunks: [chunk], pairs: pairs[chunk]! });
  }
  return runs.sort((a, b) => b.pairs - a.pairs || a.chunks[0]! - b.chunks[0]!);
}

/** The first ranks, as few as `targetRanks`, that have capacity for an equal part of the chunks each; all of them if there are none. */
function ranksWithCapacity(
  free: readonly number[],
  capacity: Int32Array,
  { chunks, targetRanks }: Readonly<Record<"chunks" | "targetRanks", number>>,
): readonly number[] {
  for (let count = Math.min(free.length, chunks, Math.max(1, targetRanks)); count <= free.length; count++) {
    const each = Math.ceil(chunks / count);
    const fitting = free.filter((rank) => capacity[rank]! >= each).slice(0, count);
    if (fitting.length === count) return fitting;
  }
  return free;
}

/** Zigzag of chunks over ranks, each as many as the others, up to its capacity. */
function assignZigzag(
  chosen: readonly number[],
  chunks: readonly number[],
  { remainingChunks, assignment }: { readonly remainingChunks: Int32Array; readonly assignment: Assignment },
): void {
  const counts = new Int32Array(chosen.length);
  for (let left = chunks.length, i = 0; left > 0; i = (i + 1) % chosen.length) {
    if (counts[i]! >= remainingChunks[chosen[i]!]!) continue;
    counts[i]!++;
    left--;
  }
  let [low, high] = [0, chunks.length];
  for (const [i, rank] of chosen.entries()) {
    const first = Math.ceil(counts[i]! / 2);
    for (let k = 0; k < first; k++) assignment[chunks[low++]!] = rank;
    for (let k = first; k < counts[i]!; k++) assignment[chunks[--high]!] = rank;
    remainingChunks[rank]! -= counts[i]!;
  }
}

/**
 * Gives the chunks of keys to ranks, if they are separate from those of queries: in order, each to the rank that requires
 * most of its rows among those with capacity; of equal ones to that which has fewest keys.
 */
export function assignKeys(problem: DispatchProblem, queries: Assignment): Assignment {
  const { chunks, queryChunks, ranks, atomRows, required, owned } = problem;
  if (chunks === queryChunks) return queries;
  const present = Array.from({ length: ranks }, () => new Uint8Array(atomRows.length));
  for (let chunk = 0; chunk < queryChunks; chunk++) {
    const intervals = required[chunk]!;
    const ofRank = present[queries[chunk]!]!;
    for (let i = 0; i < intervals.length; i += 2) ofRank.fill(1, intervals[i], intervals[i + 1]);
  }
  const assignment = new Int32Array(chunks);
  assignment.set(queries);
  const capacity = Int32Array.from({ length: ranks }, (_, rank) => chunkQuota(problem, chunks - queryChunks, rank));
  for (let chunk = queryChunks; chunk < chunks; chunk++) {
    let [best, most] = [-1, -1];
    for (let rank = 0; rank < ranks; rank++) {
      if (capacity[rank] === 0) continue;
      const rows = presentRows(owned[chunk]!, present[rank]!, atomRows);
      if (rows > most || (rows === most && capacity[rank]! > capacity[best]!)) [best, most] = [rank, rows];
    }
    assignment[chunk] = best;
    capacity[best]!--;
  }
  return assignment;
}
