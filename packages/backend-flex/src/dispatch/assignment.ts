import type { Placement } from "@mosaic/core";
import type { Level, Load } from "./cost.ts";
import type { DispatchProblem } from "./problem.ts";

/** The rank of each chunk. */
export type Assignment = Int32Array;

/** A placement that the search considered. */
export interface DispatchCandidate {
  readonly name: string;
  readonly assignment: Assignment;
  /** The placement, if it does not cut at multiples of the chunk size. In that case `assignment` is empty. */
  readonly placement?: Placement;
  /** Seconds of the slowest rank. */
  readonly time: number;
  /** `time` plus a tenth of the mean receive time. */
  readonly objective: number;
}

/** The rows that each group receives and sends. A group is a rank or a host. */
export interface RowTraffic {
  readonly receivedRows: Float64Array;
  readonly sentRows: Float64Array;
}

/** The load of all ranks, and its predicted time. */
export interface AssignmentLoad extends RowTraffic {
  readonly pairs: Float64Array;
  readonly hosts: RowTraffic | undefined;
  /** Seconds of the slowest rank. */
  readonly time: number;
  /** The minimized objective: `time` plus a tenth of the mean receive time. */
  readonly objective: number;
}

/**
 * Returns the number of chunks of a rank in a sequential split, in which rank r of P has [⌊r·n/P⌋, ⌊(r+1)·n/P⌋) of n.
 */
export function chunkQuota({ ranks }: DispatchProblem, chunks: number, rank: number): number {
  return Math.floor(((rank + 1) * chunks) / ranks) - Math.floor((rank * chunks) / ranks);
}

export function countHosts({ ranks, model }: DispatchProblem): number {
  return Math.ceil(ranks / model.ranksPerHost);
}

/** Computes the exact load of an assignment in Σ |required| operations. */
export function evaluateAssignment(problem: DispatchProblem, assignment: Assignment): AssignmentLoad {
  const { ranks, chunks, pairs: chunkPairs, model } = problem;
  const pairs = new Float64Array(ranks);
  for (let chunk = 0; chunk < chunks; chunk++) pairs[assignment[chunk]!]! += chunkPairs[chunk]!;
  const rows = countRowTraffic(problem, assignment, ranks);
  const hosts = model.isTwoLevel
    ? countRowTraffic(
        problem,
        assignment.map((rank) => Math.floor(rank / model.ranksPerHost)),
        countHosts(problem),
      )
    : undefined;
  return { pairs, ...rows, hosts, ...computeTime(problem, { pairs, ...rows, hosts }) };
}

/** Computes the time of the slowest rank, and the objective. */
export function computeTime(
  { ranks, model }: Pick<DispatchProblem, "ranks" | "model">,
  { pairs, receivedRows, sentRows, hosts }: Pick<AssignmentLoad, "pairs" | "receivedRows" | "sentRows" | "hosts">,
): { readonly time: number; readonly objective: number } {
  let time = 0;
  for (let rank = 0; rank < ranks; rank++) {
    const host = Math.floor(rank / model.ranksPerHost);
    const load = { pairs: pairs[rank]!, receivedRows: receivedRows[rank]!, sentRows: sentRows[rank]! };
    time = Math.max(time, model.rankTime(load, hosts && getHostLoad(hosts, host)));
  }
  const computeHiddenCost = (rows: Float64Array, level: Level): number =>
    (model.hiddenRowCost(level) * rows.reduce((sum, each) => sum + each, 0)) / rows.length;
  return {
    time,
    objective:
      time + computeHiddenCost(receivedRows, "rank") + (hosts ? computeHiddenCost(hosts.receivedRows, "host") : 0),
  };
}

function getHostLoad({ receivedRows, sentRows }: RowTraffic, host: number): Load {
  return { pairs: 0, receivedRows: receivedRows[host]!, sentRows: sentRows[host]! };
}

function countRowTraffic(problem: DispatchProblem, groupByChunk: Int32Array, numGroups: number): RowTraffic {
  const { queryChunks, atomRows, atomOwner, requiredAtoms } = problem;
  const [receivedRows, sentRows] = [new Float64Array(numGroups), new Float64Array(numGroups)];
  const chunksByGroup: number[][] = Array.from({ length: numGroups }, () => []);
  for (let chunk = 0; chunk < queryChunks; chunk++) chunksByGroup[groupByChunk[chunk]!]!.push(chunk);
  // By atom: the last group, plus one, whose requirement was counted.
  const countedGroup = new Int32Array(atomRows.length);
  for (let group = 0; group < numGroups; group++) {
    let [rows, countedStart, countedEnd] = [0, 0, 0];
    for (const chunk of chunksByGroup[group]!) {
      const intervals = requiredAtoms[chunk]!;
      for (let i = 0; i < intervals.length; i += 2) {
        const [start, end] = [intervals[i]!, intervals[i + 1]!];
        // Chunks of a document mostly require what its preceding chunk requires, and more.
        const overlaps = countedStart <= start && start < countedEnd;
        const firstAtom = overlaps ? countedEnd : start;
        if (!overlaps) countedStart = start;
        countedEnd = overlaps ? Math.max(countedEnd, end) : end;
        for (let atom = firstAtom; atom < end; atom++) {
          if (countedGroup[atom] === group + 1) continue;
          countedGroup[atom] = group + 1;
          const ownerGroup = groupByChunk[atomOwner[atom]!]!;
          if (ownerGroup === group) continue;
          rows += atomRows[atom]!;
          sentRows[ownerGroup]! += atomRows[atom]!;
        }
      }
    }
    receivedRows[group] = rows;
  }
  return { receivedRows, sentRows };
}
