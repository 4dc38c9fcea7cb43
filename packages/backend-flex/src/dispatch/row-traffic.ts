import type { Assignment, RowTraffic } from "./assignment.ts";
import type { DispatchProblem } from "./problem.ts";

/** Fixed cost of an exchange, in visits. */
const EXCHANGE_VISITS = 32;
const MAX_BYTE = 0xff;

interface TrafficGroups {
  /** The rows that each group sends and receives for the initial assignment. Exchanges change them. */
  readonly rows: RowTraffic;
  readonly numGroups: number;
  /** Number of ranks of a group. */
  readonly groupSize: number;
  /** Returns the potential of a group. It depends on the rows of the group. */
  readonly potential: (group: number) => number;
}

/** The two chunks of an exchange, and the rank of each before it. */
type ChunkPair = readonly [a: number, b: number];
type RankPair = readonly [from: number, to: number];

/**
 * Counts the chunks of each group that require each atom, and the resulting rows that groups send and receive. A group
 * is a rank or a host. An exchange of two chunks is first proposed, which changes only the rows, since most exchanges
 * are rejected.
 */
export class RowTrafficCounter implements RowTraffic {
  readonly receivedRows: Float64Array;
  readonly sentRows: Float64Array;
  readonly #groupSize: number;
  readonly #potential: (group: number) => number;
  readonly #numAtoms: number;
  readonly #atomRows: Float64Array;
  readonly #atomOwnerGroup: Int32Array;
  readonly #required: IntervalLists;
  readonly #owned: IntervalLists;
  /** By group and atom. The atoms of a group are adjacent because a chunk requires ranges of them. */
  readonly #requirementCounts: Uint8Array | Int32Array;
  /** By atom: the number of groups that require it. */
  readonly #requiringGroupCounts: Int32Array;
  readonly #potentials: Float64Array;
  /** Groups whose rows or pairs the proposed exchange changes, with their previous rows and proposed potential. */
  readonly #affectedGroups: Int32Array;
  readonly #previousReceivedRows: Float64Array;
  readonly #previousSentRows: Float64Array;
  readonly #proposedPotentials: Float64Array;
  readonly #isAffected: Uint8Array;
  #numAffectedGroups = 0;
  /** Atoms that only the first chunk of the proposed exchange requires, and those that only the second requires. */
  readonly #onlyFirst: Int32Array;
  readonly #onlySecond: Int32Array;
  #onlyFirstLength = 0;
  #onlySecondLength = 0;

  constructor(
    problem: DispatchProblem,
    assignment: Assignment,
    { rows, numGroups, groupSize, potential }: TrafficGroups,
  ) {
    const { atomRows, atomOwner, requiredAtoms, ownedAtoms, queryChunks } = problem;
    this.receivedRows = rows.receivedRows;
    this.sentRows = rows.sentRows;
    this.#groupSize = groupSize;
    this.#potential = potential;
    this.#numAtoms = atomRows.length;
    this.#atomRows = atomRows;
    this.#atomOwnerGroup = atomOwner.map((chunk) => Math.floor(assignment[chunk]! / groupSize));
    this.#required = concatenate(requiredAtoms);
    this.#owned = concatenate(ownedAtoms);
    const numChunksByGroup = new Int32Array(numGroups);
    for (let chunk = 0; chunk < queryChunks; chunk++) numChunksByGroup[Math.floor(assignment[chunk]! / groupSize)]!++;
    const maxCount = numChunksByGroup.reduce((max, count) => Math.max(max, count), 0);
    const numCounts = numGroups * atomRows.length;
    const counts = maxCount > MAX_BYTE ? new Int32Array(numCounts) : new Uint8Array(numCounts);
    this.#requirementCounts = counts;
    this.#requiringGroupCounts = new Int32Array(atomRows.length);
    for (let chunk = 0; chunk < queryChunks; chunk++) {
      const base = Math.floor(assignment[chunk]! / groupSize) * atomRows.length;
      const intervals = requiredAtoms[chunk]!;
      for (let i = 0; i < intervals.length; i += 2)
        for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++)
          if (++counts[base + atom]! === 1) this.#requiringGroupCounts[atom]!++;
    }
    this.#affectedGroups = new Int32Array(numGroups);
    this.#previousReceivedRows = new Float64Array(numGroups);
    this.#previousSentRows = new Float64Array(numGroups);
    this.#proposedPotentials = new Float64Array(numGroups);
    this.#isAffected = new Uint8Array(numGroups);
    const maxLength = requiredAtoms.reduce((length, each) => Math.max(length, each.length), 0);
    this.#onlyFirst = new Int32Array(2 * maxLength);
    this.#onlySecond = new Int32Array(2 * maxLength);
    this.#potentials = new Float64Array(numGroups);
  }

  /** Computes the potential of all groups. */
  initializePotentials(): void {
    for (let group = 0; group < this.#potentials.length; group++) this.#potentials[group] = this.#potential(group);
  }

  potential(group: number): number {
    return this.#potentials[group]!;
  }

  /**
   * Changes the rows to those after an exchange of the ranks of two chunks. Either `commit` or `rollBack` must follow.
   * Returns the cost in visits.
   */
  propose([a, b]: ChunkPair, [fromRank, toRank]: RankPair): number {
    const [from, to] = [Math.floor(fromRank / this.#groupSize), Math.floor(toRank / this.#groupSize)];
    this.#onlyFirstLength = 0;
    this.#onlySecondLength = 0;
    this.#markAffected(from);
    this.#markAffected(to);
    if (from === to) return 1;
    const { list } = this.#required;
    const [startA, endA] = [this.#required.first[a]!, this.#required.first[a + 1]!];
    const [startB, endB] = [this.#required.first[b]!, this.#required.first[b + 1]!];
    this.#onlyFirstLength = subtractIntervals(list, [startA, endA, startB, endB], this.#onlyFirst);
    this.#onlySecondLength = subtractIntervals(list, [startB, endB, startA, endA], this.#onlySecond);
    return (
      EXCHANGE_VISITS +
      this.#proposeRequired(this.#onlyFirst, this.#onlyFirstLength, from, to) +
      this.#proposeRequired(this.#onlySecond, this.#onlySecondLength, to, from) +
      this.#proposeOwned(a, 1, from, to) +
      this.#proposeOwned(b, -1, to, from)
    );
  }

  /** Returns the change of the potential by the proposed exchange. */
  potentialChange(): number {
    let difference = 0;
    for (let i = 0; i < this.#numAffectedGroups; i++) {
      const group = this.#affectedGroups[i]!;
      const potential = this.#potential(group);
      this.#proposedPotentials[i] = potential;
      difference += potential - this.#potentials[group]!;
    }
    return difference;
  }

  /** Accepts the proposed exchange, after `potentialChange`. */
  commit([a, b]: ChunkPair, [fromRank, toRank]: RankPair): void {
    for (let i = 0; i < this.#numAffectedGroups; i++) {
      const group = this.#affectedGroups[i]!;
      this.#potentials[group] = this.#proposedPotentials[i]!;
      this.#isAffected[group] = 0;
    }
    this.#numAffectedGroups = 0;
    const [from, to] = [Math.floor(fromRank / this.#groupSize), Math.floor(toRank / this.#groupSize)];
    if (from === to) return;
    this.#commitRequired(this.#onlyFirst, this.#onlyFirstLength, from, to);
    this.#commitRequired(this.#onlySecond, this.#onlySecondLength, to, from);
    this.#commitOwned(a, to);
    this.#commitOwned(b, from);
  }

  /** Rejects the proposed exchange. */
  rollBack(): void {
    for (let i = 0; i < this.#numAffectedGroups; i++) {
      const group = this.#affectedGroups[i]!;
      this.receivedRows[group] = this.#previousReceivedRows[i]!;
      this.sentRows[group] = this.#previousSentRows[i]!;
      this.#isAffected[group] = 0;
    }
    this.#numAffectedGroups = 0;
  }

  /** Moves atoms that only one of the chunks requires: few within a document. Returns their number. */
  #proposeRequired(intervals: Int32Array, length: number, from: number, to: number): number {
    const { receivedRows, sentRows } = this;
    const [atomRows, owners, counts] = [this.#atomRows, this.#atomOwnerGroup, this.#requirementCounts];
    const [fromBase, toBase] = [from * this.#numAtoms, to * this.#numAtoms];
    let [numVisitedAtoms, removedRows, addedRows] = [0, 0, 0];
    for (let i = 0; i < length; i += 2) {
      const end = intervals[i + 1]!;
      numVisitedAtoms += end - intervals[i]!;
      for (let atom = intervals[i]!; atom < end; atom++) {
        const isLastRequirement = counts[fromBase + atom] === 1;
        const isFirstRequirement = counts[toBase + atom] === 0;
        if (!isLastRequirement && !isFirstRequirement) continue;
        const owner = owners[atom]!;
        const rows = atomRows[atom]!;
        if (isLastRequirement && owner !== from) {
          this.#markAffected(owner);
          removedRows += rows;
          sentRows[owner]! -= rows;
        }
        if (isFirstRequirement && owner !== to) {
          this.#markAffected(owner);
          addedRows += rows;
          sentRows[owner]! += rows;
        }
      }
    }
    receivedRows[from]! -= removedRows;
    receivedRows[to]! += addedRows;
    return numVisitedAtoms;
  }

  /** Moves the atoms that a chunk owns. Returns their number. `sign` is −1 for the second chunk of the exchange. */
  #proposeOwned(chunk: number, sign: number, from: number, to: number): number {
    const { receivedRows, sentRows } = this;
    const [atomRows, counts, groupCounts] = [this.#atomRows, this.#requirementCounts, this.#requiringGroupCounts];
    const [fromBase, toBase] = [from * this.#numAtoms, to * this.#numAtoms];
    const { list, first } = this.#owned;
    const end = first[chunk + 1]!;
    let numVisitedAtoms = 0;
    for (let i = first[chunk]!; i < end; i += 2) {
      const endAtom = list[i + 1]!;
      numVisitedAtoms += endAtom - list[i]!;
      for (let atom = list[i]!; atom < endAtom; atom++) {
        const [fromCount, toCount] = [counts[fromBase + atom]!, counts[toBase + atom]!];
        const numOtherGroups = groupCounts[atom]! - (fromCount > 0 ? 1 : 0) - (toCount > 0 ? 1 : 0);
        let numMovedRequirements = 0;
        if (isWithin(this.#onlyFirst, this.#onlyFirstLength, atom)) numMovedRequirements = sign;
        else if (isWithin(this.#onlySecond, this.#onlySecondLength, atom)) numMovedRequirements = -sign;
        const isRequiredByFrom = fromCount > numMovedRequirements;
        const isRequiredByTo = toCount + numMovedRequirements > 0;
        const rows = atomRows[atom]!;
        sentRows[from]! -= rows * (numOtherGroups + (isRequiredByTo ? 1 : 0));
        sentRows[to]! += rows * (numOtherGroups + (isRequiredByFrom ? 1 : 0));
        if (isRequiredByFrom) receivedRows[from]! += rows;
        if (isRequiredByTo) receivedRows[to]! -= rows;
      }
    }
    return numVisitedAtoms;
  }

  #commitRequired(intervals: Int32Array, length: number, from: number, to: number): void {
    const [counts, groupCounts] = [this.#requirementCounts, this.#requiringGroupCounts];
    const [fromBase, toBase] = [from * this.#numAtoms, to * this.#numAtoms];
    for (let i = 0; i < length; i += 2) {
      for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) {
        if (--counts[fromBase + atom]! === 0) groupCounts[atom]!--;
        if (++counts[toBase + atom]! === 1) groupCounts[atom]!++;
      }
    }
  }

  #commitOwned(chunk: number, group: number): void {
    const { list, first } = this.#owned;
    for (let i = first[chunk]!; i < first[chunk + 1]!; i += 2) this.#atomOwnerGroup.fill(group, list[i], list[i + 1]);
  }

  #markAffected(group: number): void {
    if (this.#isAffected[group]) return;
    this.#isAffected[group] = 1;
    const i = this.#numAffectedGroups++;
    this.#affectedGroups[i] = group;
    this.#previousReceivedRows[i] = this.receivedRows[group]!;
    this.#previousSentRows[i] = this.sentRows[group]!;
  }
}

/** Interval lists of all chunks, as alternating start and end (exclusive), in one array. */
interface IntervalLists {
  readonly list: Int32Array;
  /** By chunk: the index in `list` of its first interval. The list of a chunk ends where that of the next begins. */
  readonly first: Int32Array;
}

function concatenate(lists: readonly Int32Array[]): IntervalLists {
  const first = new Int32Array(lists.length + 1);
  for (const [i, { length }] of lists.entries()) first[i + 1] = first[i]! + length;
  const list = new Int32Array(first[lists.length]!);
  for (const [i, each] of lists.entries()) list.set(each, first[i]);
  return { list, first };
}

/** Returns whether one of the first intervals of an ascending list, up to index `length`, contains an atom. */
function isWithin(intervals: Int32Array, length: number, atom: number): boolean {
  let [low, high] = [0, length >> 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (intervals[2 * middle + 1]! <= atom) low = middle + 1;
    else high = middle;
  }
  return 2 * low < length && intervals[2 * low]! <= atom;
}

/**
 * Writes to `out` the parts of the ascending intervals from index `i` to `end` outside those from `k` to
 * `subtractedEnd`. Returns the length of the written list.
 */
function subtractIntervals(
  list: Int32Array,
  [i, end, k, subtractedEnd]: readonly [number, number, number, number],
  out: Int32Array,
): number {
  let length = 0;
  let firstSubtracted = k;
  for (let index = i; index < end; index += 2) {
    let start = list[index]!;
    const intervalEnd = list[index + 1]!;
    while (firstSubtracted < subtractedEnd && list[firstSubtracted + 1]! <= start) firstSubtracted += 2;
    for (let j = firstSubtracted; j < subtractedEnd && list[j]! < intervalEnd; j += 2) {
      if (list[j]! > start) {
        out[length++] = start;
        out[length++] = list[j]!;
      }
      start = Math.max(start, list[j + 1]!);
    }
    if (start >= intervalEnd) continue;
    out[length++] = start;
    out[length++] = intervalEnd;
  }
  return length;
}
