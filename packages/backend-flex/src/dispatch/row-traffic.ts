import type { Assignment, RowTraffic } from "./assignment.ts";
import type { DispatchProblem } from "./problem.ts";

/** Fixed cost of an exchange, in visits. */
const EXCHANGE_VISITS = 32;
const MAX_BYTE = 0xff;
/** Covers the rounding errors of a sum of potentials. */
const ROUNDING_FACTOR = 1 + 1e-9;
/** Indices of the changes by a proposed exchange: received rows of the group of each chunk, followed by sent rows. */
const FIRST = 0;
const SECOND = 2;
const SENT = 1;
const MAX_SAVING = 4;
const EXCHANGE = 5;

interface TrafficGroups {
  /** The rows that each group sends and receives for the initial assignment. Exchanges change them. */
  readonly rows: RowTraffic;
  readonly numGroups: number;
  /** Number of ranks of a group. */
  readonly groupSize: number;
  /** Returns the potential of a group that receives and sends the given rows: at least `receivedRows · rowCost`. */
  readonly potential: (group: number, receivedRows: number, sentRows: number) => number;
  readonly rowCost: number;
}

/**
 * Counts the chunks of each group that require each atom, and the resulting rows that groups send and receive. A group
 * is a rank or a host. An exchange of two chunks is first proposed, which changes none of these counts, since most
 * exchanges are rejected.
 */
export class RowTrafficCounter implements RowTraffic {
  readonly receivedRows: Float64Array;
  readonly sentRows: Float64Array;
  readonly #groupSize: number;
  readonly #potential: (group: number, receivedRows: number, sentRows: number) => number;
  readonly #rowCost: number;
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
  /** By group: the part of its potential that does not belong to its received rows. */
  readonly #excesses: Float64Array;
  /** The groups of the two chunks of the proposed exchange. */
  #from = 0;
  #to = 0;
  /** The changes of the rows of both groups, an upper bound of what other groups save, and the change of potential. */
  readonly #changes = new Float64Array(6);
  /** Other groups that own moved atoms. By group: the change of the sent rows; 0 for all groups that are not listed. */
  readonly #otherOwners: Int32Array;
  readonly #isOtherOwner: Uint8Array;
  readonly #sentRowChanges: Float64Array;
  #numOtherOwners = 0;
  /** Atoms that only the first chunk of the proposed exchange requires, and those that only the second requires. */
  readonly #onlyFirst: Int32Array;
  readonly #onlySecond: Int32Array;
  #onlyFirstLength = 0;
  #onlySecondLength = 0;

  constructor(
    problem: DispatchProblem,
    assignment: Assignment,
    { rows, numGroups, groupSize, potential, rowCost }: TrafficGroups,
  ) {
    const { atomRows, atomOwner, requiredAtoms, ownedAtoms, queryChunks } = problem;
    this.receivedRows = rows.receivedRows;
    this.sentRows = rows.sentRows;
    this.#groupSize = groupSize;
    this.#potential = potential;
    this.#rowCost = rowCost;
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
    this.#otherOwners = new Int32Array(numGroups);
    this.#isOtherOwner = new Uint8Array(numGroups);
    this.#sentRowChanges = new Float64Array(numGroups);
    const maxLength = requiredAtoms.reduce((length, each) => Math.max(length, each.length), 0);
    this.#onlyFirst = new Int32Array(2 * maxLength);
    this.#onlySecond = new Int32Array(2 * maxLength);
    this.#potentials = new Float64Array(numGroups);
    this.#excesses = new Float64Array(numGroups);
  }

  /** Computes the potential of all groups. */
  initializePotentials(): void {
    for (let group = 0; group < this.#potentials.length; group++) this.#updatePotential(group);
  }

  potential(group: number): number {
    return this.#potentials[group]!;
  }

  /**
   * Computes the changes of rows by an exchange of the ranks of two chunks, which replace those of the previous
   * proposal. Returns the cost in visits.
   */
  propose(a: number, b: number, fromRank: number, toRank: number): number {
    const from = this.#groupSize === 1 ? fromRank : Math.floor(fromRank / this.#groupSize);
    const to = this.#groupSize === 1 ? toRank : Math.floor(toRank / this.#groupSize);
    this.#from = from;
    this.#to = to;
    const changes = this.#changes;
    for (let i = 0; i < EXCHANGE; i++) changes[i] = 0;
    this.#onlyFirstLength = 0;
    this.#onlySecondLength = 0;
    if (from === to) return 1;
    const { list, first } = this.#required;
    const startA = first[a]!;
    const endA = first[a + 1]!;
    const startB = first[b]!;
    const endB = first[b + 1]!;
    this.#onlyFirstLength = subtractIntervals(list, startA, endA, startB, endB, this.#onlyFirst);
    this.#onlySecondLength = subtractIntervals(list, startB, endB, startA, endA, this.#onlySecond);
    return (
      EXCHANGE_VISITS +
      this.#proposeRequired(this.#onlyFirst, this.#onlyFirstLength, FIRST) +
      this.#proposeRequired(this.#onlySecond, this.#onlySecondLength, SECOND) +
      this.#proposeOwned(a, FIRST) +
      this.#proposeOwned(b, SECOND)
    );
  }

  /**
   * Returns a lower bound of the change of the potential by the proposed exchange: the cost of the received rows, less
   * all that its groups can save otherwise. A group other than those of the two chunks receives the same rows.
   */
  minRowCostChange(): number {
    const changes = this.#changes;
    const maxSaving = changes[MAX_SAVING]! + this.#excesses[this.#from]! + this.#excesses[this.#to]!;
    return this.#rowCost * (changes[FIRST]! + changes[SECOND]!) - maxSaving * ROUNDING_FACTOR;
  }

  /** Returns a larger lower bound, which is exact for the groups of the two chunks. */
  minPotentialChange(): number {
    const { receivedRows, sentRows } = this;
    const changes = this.#changes;
    const from = this.#from;
    const to = this.#to;
    let change =
      this.#potential(from, receivedRows[from]! + changes[FIRST]!, sentRows[from]! + changes[FIRST + SENT]!) -
      this.#potentials[from]!;
    if (to !== from) {
      change +=
        this.#potential(to, receivedRows[to]! + changes[SECOND]!, sentRows[to]! + changes[SECOND + SENT]!) -
        this.#potentials[to]!;
    }
    changes[EXCHANGE] = change;
    return change - changes[MAX_SAVING]! * ROUNDING_FACTOR;
  }

  /** Returns the change of the potential by the proposed exchange, after `minPotentialChange`. */
  potentialChange(): number {
    this.#collectOtherOwners();
    let change = this.#changes[EXCHANGE]!;
    for (let i = 0; i < this.#numOtherOwners; i++) {
      const owner = this.#otherOwners[i]!;
      const sentRows = this.sentRows[owner]! + this.#sentRowChanges[owner]!;
      change += this.#potential(owner, this.receivedRows[owner]!, sentRows) - this.#potentials[owner]!;
    }
    return change;
  }

  /** Accepts the proposed exchange, after `potentialChange`. */
  commit(a: number, b: number): void {
    const { receivedRows, sentRows } = this;
    const changes = this.#changes;
    const from = this.#from;
    const to = this.#to;
    receivedRows[from]! += changes[FIRST]!;
    sentRows[from]! += changes[FIRST + SENT]!;
    receivedRows[to]! += changes[SECOND]!;
    sentRows[to]! += changes[SECOND + SENT]!;
    this.#updatePotential(from);
    this.#updatePotential(to);
    for (let i = 0; i < this.#numOtherOwners; i++) {
      const owner = this.#otherOwners[i]!;
      sentRows[owner]! += this.#sentRowChanges[owner]!;
      this.#updatePotential(owner);
    }
    if (from === to) return;
    this.#commitRequired(this.#onlyFirst, this.#onlyFirstLength, from, to);
    this.#commitRequired(this.#onlySecond, this.#onlySecondLength, to, from);
    this.#commitOwned(a, to);
    this.#commitOwned(b, from);
  }

  #updatePotential(group: number): void {
    const potential = this.#potential(group, this.receivedRows[group]!, this.sentRows[group]!);
    this.#potentials[group] = potential;
    this.#excesses[group] = potential - this.#rowCost * this.receivedRows[group]!;
  }

  /**
   * Adds the changes of rows by moving atoms that only one of the chunks requires: few within a document. Returns their
   * number.
   */
  #proposeRequired(intervals: Int32Array, length: number, chunk: typeof FIRST | typeof SECOND): number {
    const from = chunk === FIRST ? this.#from : this.#to;
    const to = chunk === FIRST ? this.#to : this.#from;
    const atomRows = this.#atomRows;
    const owners = this.#atomOwnerGroup;
    const counts = this.#requirementCounts;
    const fromBase = from * this.#numAtoms;
    const toBase = to * this.#numAtoms;
    let numVisitedAtoms = 0;
    let receivedFrom = 0;
    let receivedTo = 0;
    let sentFrom = 0;
    let sentTo = 0;
    let maxSaving = 0;
    let previousOwner = -1;
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
          receivedFrom -= rows;
          if (owner === to) sentTo -= rows;
          else if (owner !== previousOwner) {
            maxSaving += this.#excesses[owner]!;
            previousOwner = owner;
          }
        }
        if (isFirstRequirement && owner !== to) {
          receivedTo += rows;
          if (owner === from) sentFrom += rows;
        }
      }
    }
    this.#addChanges(chunk, receivedFrom, sentFrom, receivedTo, sentTo);
    this.#changes[MAX_SAVING]! += maxSaving;
    return numVisitedAtoms;
  }

  /** Adds the changes of rows by moving the atoms that a chunk owns. Returns their number. */
  #proposeOwned(chunk: number, position: typeof FIRST | typeof SECOND): number {
    const isFirst = position === FIRST;
    const atomRows = this.#atomRows;
    const counts = this.#requirementCounts;
    const groupCounts = this.#requiringGroupCounts;
    const fromBase = (isFirst ? this.#from : this.#to) * this.#numAtoms;
    const toBase = (isFirst ? this.#to : this.#from) * this.#numAtoms;
    // Atoms that only this chunk requires, and those that only the other chunk requires.
    const onlyThis = isFirst ? this.#onlyFirst : this.#onlySecond;
    const onlyThisLength = isFirst ? this.#onlyFirstLength : this.#onlySecondLength;
    const onlyOther = isFirst ? this.#onlySecond : this.#onlyFirst;
    const onlyOtherLength = isFirst ? this.#onlySecondLength : this.#onlyFirstLength;
    const { list, first } = this.#owned;
    const end = first[chunk + 1]!;
    let numVisitedAtoms = 0;
    let receivedFrom = 0;
    let receivedTo = 0;
    let sentFrom = 0;
    let sentTo = 0;
    for (let i = first[chunk]!; i < end; i += 2) {
      const endAtom = list[i + 1]!;
      numVisitedAtoms += endAtom - list[i]!;
      for (let atom = list[i]!; atom < endAtom; atom++) {
        const fromCount = counts[fromBase + atom]!;
        const toCount = counts[toBase + atom]!;
        const numOtherGroups = groupCounts[atom]! - (fromCount > 0 ? 1 : 0) - (toCount > 0 ? 1 : 0);
        let numMovedRequirements = 0;
        if (isWithin(onlyThis, onlyThisLength, atom)) numMovedRequirements = 1;
        else if (isWithin(onlyOther, onlyOtherLength, atom)) numMovedRequirements = -1;
        const isRequiredByFrom = fromCount > numMovedRequirements;
        const isRequiredByTo = toCount + numMovedRequirements > 0;
        const rows = atomRows[atom]!;
        sentFrom -= rows * (numOtherGroups + (isRequiredByTo ? 1 : 0));
        sentTo += rows * (numOtherGroups + (isRequiredByFrom ? 1 : 0));
        if (isRequiredByFrom) receivedFrom += rows;
        if (isRequiredByTo) receivedTo -= rows;
      }
    }
    this.#addChanges(position, receivedFrom, sentFrom, receivedTo, sentTo);
    return numVisitedAtoms;
  }

  /** Adds changes of the group that a chunk leaves, and of the group that it joins. */
  #addChanges(
    chunk: typeof FIRST | typeof SECOND,
    receivedFrom: number,
    sentFrom: number,
    receivedTo: number,
    sentTo: number,
  ): void {
    const changes = this.#changes;
    const to = FIRST + SECOND - chunk;
    changes[chunk]! += receivedFrom;
    changes[chunk + SENT]! += sentFrom;
    changes[to]! += receivedTo;
    changes[to + SENT]! += sentTo;
  }

  /** Lists the other groups that own moved atoms, with the changes of their sent rows. */
  #collectOtherOwners(): void {
    for (let i = 0; i < this.#numOtherOwners; i++) {
      const owner = this.#otherOwners[i]!;
      this.#sentRowChanges[owner] = 0;
      this.#isOtherOwner[owner] = 0;
    }
    this.#numOtherOwners = 0;
    this.#collectOwners(this.#onlyFirst, this.#onlyFirstLength, this.#from, this.#to);
    this.#collectOwners(this.#onlySecond, this.#onlySecondLength, this.#to, this.#from);
  }

  #collectOwners(intervals: Int32Array, length: number, from: number, to: number): void {
    const counts = this.#requirementCounts;
    const fromBase = from * this.#numAtoms;
    const toBase = to * this.#numAtoms;
    for (let i = 0; i < length; i += 2) {
      const end = intervals[i + 1]!;
      for (let atom = intervals[i]!; atom < end; atom++) {
        const isLastRequirement = counts[fromBase + atom] === 1;
        const isFirstRequirement = counts[toBase + atom] === 0;
        const owner = this.#atomOwnerGroup[atom]!;
        if (isLastRequirement === isFirstRequirement || owner === from || owner === to) continue;
        this.#sentRowChanges[owner]! += isFirstRequirement ? this.#atomRows[atom]! : -this.#atomRows[atom]!;
        if (this.#isOtherOwner[owner]) continue;
        this.#isOtherOwner[owner] = 1;
        this.#otherOwners[this.#numOtherOwners++] = owner;
      }
    }
  }

  #commitRequired(intervals: Int32Array, length: number, from: number, to: number): void {
    const counts = this.#requirementCounts;
    const groupCounts = this.#requiringGroupCounts;
    const fromBase = from * this.#numAtoms;
    const toBase = to * this.#numAtoms;
    for (let i = 0; i < length; i += 2) {
      const end = intervals[i + 1]!;
      for (let atom = intervals[i]!; atom < end; atom++) {
        if (--counts[fromBase + atom]! === 0) groupCounts[atom]!--;
        if (++counts[toBase + atom]! === 1) groupCounts[atom]!++;
      }
    }
  }

  #commitOwned(chunk: number, group: number): void {
    const { list, first } = this.#owned;
    const end = first[chunk + 1]!;
    const owners = this.#atomOwnerGroup;
    for (let i = first[chunk]!; i < end; i += 2)
      for (let atom = list[i]!, endAtom = list[i + 1]!; atom < endAtom; atom++) owners[atom] = group;
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
  let low = 0;
  let high = length >> 1;
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
  i: number,
  end: number,
  k: number,
  subtractedEnd: number,
  out: Int32Array,
): number {
  let length = 0;
  if (end - i === 2 && subtractedEnd - k === 2) {
    const start = list[i]!;
    const intervalEnd = list[i + 1]!;
    const subtractedStart = list[k]!;
    const firstRemaining = list[k + 1]!;
    if (start < intervalEnd && start < subtractedStart) {
      out[length++] = start;
      out[length++] = intervalEnd < subtractedStart ? intervalEnd : subtractedStart;
    }
    const lastStart = start > firstRemaining ? start : firstRemaining;
    if (lastStart < intervalEnd) {
      out[length++] = lastStart;
      out[length++] = intervalEnd;
    }
    return length;
  }
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
