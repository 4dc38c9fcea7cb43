import { type Assignment, evaluateAssignment } from "./assignment.ts";
import { countTargetRanks, type DocumentRun, documentGroupAssignment, findDocumentRuns } from "./candidates.ts";
import type { DispatchProblem } from "./problem.ts";
import { refine } from "./refine.ts";

/** A document is long if receiving it takes at least this share of the target time. */
const MIN_RECEIVE_SHARE = 0.95;
/** The target time of the ranks of a long document, relative to that of all ranks, which also receive other rows. */
const GROUP_TIME_SHARE = 0.99;
/** The chunks of a long document remain on ranks whose transfers take at least this share of that target time. */
const MIN_FIXED_SHARE = 0.9;
/** The numbers of ranks that are tried: the fewest that the pairs of the document allow, and this many more. */
const MAX_EXTRA_RANKS = 4;
const MAX_VISITS_PER_CHUNK = 20_000;
const GROUP_SEED = 12345;
const GROUP_THRESHOLD = 10;

export interface LongDocumentStart {
  readonly assignment: Assignment;
  /** By chunk: 1 for those of long documents on ranks whose transfers are near their limit. */
  readonly isFixed: Uint8Array;
}

/**
 * Places each long document on few ranks, which it shares with no other long document, so that the rank of its last
 * chunk owns enough of it. Swaps of chunks hardly find such a placement, because they would first raise the time of this
 * rank. The chunks of the document are assigned by a search of their own, in which the other chunks of its ranks require
 * no rows. Then the other documents are assigned as by `documentGroupAssignment`. Returns undefined if no long document
 * fits, if queries and keys are different sequences, and for a cost model with hosts.
 */
export function createLongDocumentStart(
  problem: DispatchProblem,
  targetTime: number,
  maxVisits: number,
): LongDocumentStart | undefined {
  const { model, ranks, queryChunks, isSelfAttention } = problem;
  if (!isSelfAttention || model.isTwoLevel) return undefined;
  const runs = findDocumentRuns(problem);
  const longRuns = runs.filter(
    ({ chunks }) => model.receiveTime(countOwnedRows(problem, chunks), 0) >= MIN_RECEIVE_SHARE * targetTime,
  );
  const lightestRuns = runs.toSorted(
    (a, b) => a.pairs / a.chunks.length - b.pairs / b.chunks.length || a.chunks[0]! - b.chunks[0]!,
  );
  const fixedRanks = new Int32Array(queryChunks).fill(-1);
  const isFixed = new Uint8Array(queryChunks);
  let numUsedRanks = 0;
  for (const run of longRuns) {
    const group = placeDocument(problem, run, {
      lightestRuns,
      maxRanks: ranks - numUsedRanks,
      targetTime: GROUP_TIME_SHARE * targetTime,
      maxVisits: maxVisits / longRuns.length,
    });
    if (!group) continue;
    for (const [i, chunk] of run.chunks.entries()) {
      const rank = group.assignment[i]!;
      fixedRanks[chunk] = numUsedRanks + rank;
      isFixed[chunk] = group.isFixedRank[rank]!;
    }
    numUsedRanks += group.isFixedRank.length;
  }
  return numUsedRanks > 0 ? { assignment: documentGroupAssignment(problem, 1, fixedRanks), isFixed } : undefined;
}

function countOwnedRows({ ownedAtoms, atomRows }: DispatchProblem, chunks: readonly number[]): number {
  let rows = 0;
  for (const chunk of chunks) forEachAtom(ownedAtoms[chunk]!, (atom) => (rows += atomRows[atom]!));
  return rows;
}

function forEachAtom(intervals: Int32Array, visit: (atom: number) => void): void {
  for (let i = 0; i < intervals.length; i += 2)
    for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) visit(atom);
}

interface DocumentGroup {
  /** By index of the chunk in its document: its rank in the group. */
  readonly assignment: Assignment;
  readonly time: number;
  /** By rank: 1 if its transfers are near their limit. */
  readonly isFixedRank: Uint8Array;
}

interface GroupOptions {
  /** All runs, in ascending order of pairs per chunk. */
  readonly lightestRuns: readonly DocumentRun[];
  readonly maxRanks: number;
  readonly targetTime: number;
  readonly maxVisits: number;
}

/** Returns the placement on the fewest ranks that reach the target time, or otherwise the fastest. */
function placeDocument(
  problem: DispatchProblem,
  run: DocumentRun,
  { lightestRuns, maxRanks, targetTime, maxVisits }: GroupOptions,
): DocumentGroup | undefined {
  const { model } = problem;
  const minRanks = Math.max(2, countTargetRanks(problem, run.pairs));
  let best: DocumentGroup | undefined;
  for (let numRanks = minRanks; numRanks <= Math.min(maxRanks, minRanks + MAX_EXTRA_RANKS); numRanks++) {
    const group = createGroupProblem(problem, run, { lightestRuns, numRanks });
    if (!group) continue;
    const assignment = refine(group, documentGroupAssignment(group, 1), {
      targetTime,
      maxVisits: Math.min(MAX_VISITS_PER_CHUNK * run.chunks.length, maxVisits / (MAX_EXTRA_RANKS + 1)),
      seed: GROUP_SEED,
      threshold: GROUP_THRESHOLD,
    });
    const { time, receivedRows, sentRows } = evaluateAssignment(group, assignment);
    if (best && time >= best.time) continue;
    const isFixedRank = Uint8Array.from(receivedRows, (rows, rank) =>
      model.receiveTime(rows, sentRows[rank]!) >= MIN_FIXED_SHARE * targetTime ? 1 : 0,
    );
    best = { assignment, time, isFixedRank };
    if (time <= targetTime) break;
  }
  return best;
}

/**
 * Returns the problem of a document on some ranks. Further chunks, with the mean pairs of the documents that have the
 * fewest pairs per chunk, fill the ranks. Returns undefined if the document has more chunks than the ranks.
 */
function createGroupProblem(
  problem: DispatchProblem,
  run: DocumentRun,
  { lightestRuns, numRanks }: Pick<GroupOptions, "lightestRuns"> & { readonly numRanks: number },
): DispatchProblem | undefined {
  const { ranks, queryChunks, pairs, atomRows, requiredAtoms, ownedAtoms } = problem;
  const numChunks = numRanks * Math.floor(queryChunks / ranks);
  const numFurtherChunks = numChunks - run.chunks.length;
  if (numFurtherChunks < 0) return undefined;
  const furtherPairs = computeLightestPairs(lightestRuns, run, numFurtherChunks);
  const groupPairs = new Float64Array(numChunks).fill(furtherPairs);
  for (const [i, chunk] of run.chunks.entries()) groupPairs[i] = pairs[chunk]!;
  // Only the atoms that the document owns.
  const groupAtoms = new Int32Array(atomRows.length).fill(-1);
  const [groupRows, owners]: [number[], number[]] = [[], []];
  for (const [i, chunk] of run.chunks.entries()) {
    forEachAtom(ownedAtoms[chunk]!, (atom) => {
      groupAtoms[atom] = groupRows.push(atomRows[atom]!) - 1;
      owners.push(i);
    });
  }
  const selectAtoms = (lists: readonly Int32Array[]): Int32Array[] =>
    Array.from({ length: numChunks }, (_, i) => {
      const selectedAtoms: number[] = [];
      const addAtom = (atom: number): void => {
        const groupAtom = groupAtoms[atom]!;
        if (groupAtom < 0) return;
        if (selectedAtoms.at(-1) === groupAtom) selectedAtoms[selectedAtoms.length - 1] = groupAtom + 1;
        else selectedAtoms.push(groupAtom, groupAtom + 1);
      };
      if (i < run.chunks.length) forEachAtom(lists[run.chunks[i]!]!, addAtom);
      return Int32Array.from(selectedAtoms);
    });
  return {
    ...problem,
    ranks: numRanks,
    chunks: numChunks,
    queryChunks: numChunks,
    pairs: groupPairs,
    totalPairs: groupPairs.reduce((sum, each) => sum + each, 0),
    atomRows: Float64Array.from(groupRows),
    atomOwner: Int32Array.from(owners),
    requiredAtoms: selectAtoms(requiredAtoms),
    ownedAtoms: selectAtoms(ownedAtoms),
    precedingRows: new Float64Array(numChunks),
    document: Float64Array.from({ length: numChunks }, (_, i) => Math.max(0, i - run.chunks.length + 1)),
  };
}

/** Returns the mean pairs of about `count` chunks of other documents, in the given order. */
function computeLightestPairs(lightestRuns: readonly DocumentRun[], run: DocumentRun, count: number): number {
  let [numChunks, pairs] = [0, 0];
  for (const other of lightestRuns) {
    if (numChunks >= count) break;
    if (other === run) continue;
    numChunks += other.chunks.length;
    pairs += other.pairs;
  }
  return numChunks > 0 ? pairs / numChunks : 0;
}
