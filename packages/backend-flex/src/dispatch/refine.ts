import { type Assignment, evaluateAssignment, type RowTraffic, countHosts } from "./assignment.ts";
import { type DispatchProblem, countRequiredRows } from "./problem.ts";

export interface RefineOptions {
  /** The time, in seconds, that no rank should exceed. */
  readonly targetTime: number;
  /** Largest number of atoms to visit. The budget is work, not time, so that all ranks compute the same result. */
  readonly maxVisits: number;
  readonly seed: number;
  /** Initial limit of the rise of the potential in a swap, in receive times of a chunk; decays to 0. Default: 0. */
  readonly threshold?: number;
}

/** Cost of a rank that takes twice the target time, in target times. */
const EXCESS_TIME_WEIGHT = 300;
/** Number of swaps of the slowest rank that are tried: those that come closest to equalizing the pairs of two ranks. */
const MAX_LEVELLING_SWAPS = 32;
const MAX_COMPARED_CHUNK_PAIRS = 20_000;
/** Limits of random swaps of the slowest rank: drawn, and tried, which excludes those that do not relieve it. */
const MAX_RANDOM_DRAWS = 4096;
const MAX_TRIED_SWAPS = 128;
/** Largest number of chunks of a rank that are tried as partners of a chunk that should move there. */
const MAX_SWAP_PARTNERS = 8;
/** Each phase of a round uses at most this fraction of the budget, so that the complementary phases alternate often. */
const BALANCE_BUDGET_DIVISOR = 20;
const TRANSFER_BUDGET_DIVISOR = 30;
/** The search stops after this number of consecutive rounds without a swap. */
const MAX_IDLE_ROUNDS = 3;
const MIN_POTENTIAL_GAIN = 1e-12;
/** Fixed cost of an exchange, in visits. */
const EXCHANGE_VISITS = 32;
/** Cost of choosing a swap, in visits. */
const TRIAL_VISITS = 6;
/** Share of the budget after which the potential may no longer rise. */
const THRESHOLD_DECAY_SHARE = 0.8;

/**
 * Swaps chunks between ranks to lower a potential: the squared excess of each rank over the target time plus the cost
 * of received rows. Two phases alternate: one relieves the slowest rank, the other moves random chunks to ranks that
 * have a neighbouring chunk. The number of chunks of each rank does not change. Swaps that raise the potential by less
 * than a threshold, which decays to 0, are also accepted (threshold accepting: Dueck and Scheuer 1990). Unlike
 * annealing, this needs no logarithm, whose last bit may differ between machines. Deterministic: it has its own random
 * generator.
 */
export function refine(problem: DispatchProblem, start: Assignment, options: RefineOptions): Assignment {
  const search = new SwapSearch(problem, start, options);
  for (let idleRounds = 0; search.hasBudget() && idleRounds < MAX_IDLE_ROUNDS; ) {
    idleRounds = search.balanceSlowestRank() + search.reduceTransfers() > 0 ? 0 : idleRounds + 1;
  }
  return search.assignment;
}

class SwapSearch {
  readonly assignment: Assignment;
  readonly #problem: DispatchProblem;
  readonly #targetTime: number;
  readonly #maxVisits: number;
  #numVisits = 0;
  #randomState: number;
  readonly #threshold: number;
  /** Cost of a received row in the potential. */
  readonly #hiddenRowCost: number;
  readonly #hiddenHostRowCost: number;
  /** By chunk: the number of rows that it requires. */
  readonly #requiredRows: Float64Array;
  readonly #pairsByRank: Float64Array;
  readonly #ranks: RowTrafficCounter;
  readonly #hosts: RowTrafficCounter | undefined;
  /** Chunks of each rank (chunks of queries and, if separate, of keys), and the index of each chunk in its list. */
  readonly #chunksByRank: readonly (readonly number[][])[];
  readonly #chunkIndex: Int32Array;

  constructor(
    problem: DispatchProblem,
    start: Assignment,
    { targetTime, maxVisits, seed, threshold = 0 }: RefineOptions,
  ) {
    const { ranks, chunks, chunkSize, model } = problem;
    this.#problem = problem;
    this.assignment = start.slice();
    this.#targetTime = targetTime;
    this.#maxVisits = maxVisits;
    this.#randomState = seed;
    this.#hiddenRowCost = model.hiddenRowCost("rank") / ranks / targetTime;
    this.#hiddenHostRowCost = model.isTwoLevel ? model.hiddenRowCost("host") / countHosts(problem) / targetTime : 0;
    this.#threshold = threshold * chunkSize * (this.#hiddenRowCost + this.#hiddenHostRowCost);
    this.#requiredRows = countRequiredRows(problem);
    const load = evaluateAssignment(problem, start);
    this.#pairsByRank = load.pairs;
    this.#ranks = new RowTrafficCounter(problem, start, { rows: load, groups: ranks, width: 1 });
    if (load.hosts) {
      const width = model.ranksPerHost;
      this.#hosts = new RowTrafficCounter(problem, start, { rows: load.hosts, groups: countHosts(problem), width });
    }
    this.#chunksByRank = [0, 1].map(() => Array.from({ length: ranks }, () => []));
    this.#chunkIndex = new Int32Array(chunks);
    for (let chunk = 0; chunk < chunks; chunk++) {
      const ownChunks = this.#chunkList(chunk, start[chunk]!);
      this.#chunkIndex[chunk] = ownChunks.length;
      ownChunks.push(chunk);
    }
    this.#ranks.initializePotentials(this.#rankPotential);
    this.#hosts?.initializePotentials(this.#hostPotential);
  }

  hasBudget(): boolean {
    return this.#numVisits < this.#maxVisits;
  }

  /** Repeatedly swaps chunks of the slowest rank. Returns the number of accepted swaps. */
  balanceSlowestRank(): number {
    const { ranks } = this.#problem;
    const visitLimit = Math.min(this.#maxVisits, this.#numVisits + this.#maxVisits / BALANCE_BUDGET_DIVISOR);
    let numImprovements = 0;
    for (let round = 0; round < ranks && this.#numVisits < visitLimit; round++) {
      let slowestRank = 0;
      for (let rank = 1; rank < ranks; rank++)
        if (this.#rankTime(rank) > this.#rankTime(slowestRank)) slowestRank = rank;
      if (this.#rankTime(slowestRank) <= this.#targetTime) break;
      if (!this.#equalizePairs(slowestRank) && !this.#relieveByRandomSwaps(slowestRank, visitLimit)) break;
      numImprovements++;
    }
    return numImprovements;
  }

  /** Moves random chunks to ranks that own a neighbouring chunk. Returns the number of accepted swaps. */
  reduceTransfers(): number {
    const { chunks } = this.#problem;
    let numImprovements = 0;
    const visitLimit = Math.min(this.#maxVisits, this.#numVisits + this.#maxVisits / TRANSFER_BUDGET_DIVISOR);
    for (let draw = 0; draw < 2 * chunks && this.#numVisits < visitLimit; draw++) {
      const chunk = this.#randomIndex(chunks);
      const rank = this.assignment[this.#neighbourChunk(chunk)]!;
      if (rank === this.assignment[chunk]) continue;
      const rankChunks = this.#chunkList(chunk, rank);
      for (let i = 0; i < rankChunks.length && i < MAX_SWAP_PARTNERS; i++) {
        this.#numVisits += TRIAL_VISITS;
        if (!this.#swapIfBetter(chunk, rankChunks[(i + draw) % rankChunks.length]!)) continue;
        numImprovements++;
        break;
      }
    }
    return numImprovements;
  }

  /** If the rank is compute-bound, tries swaps that nearly equalize two ranks' pairs. Returns whether one succeeded. */
  #equalizePairs(slowestRank: number): boolean {
    const { ranks, pairs, model } = this.#problem;
    if (model.secondsPerPair * this.#pairsByRank[slowestRank]! < this.#rankTime(slowestRank) * 0.999) return false;
    const swapCandidates: { readonly error: number; readonly a: number; readonly b: number }[] = [];
    let [maxError, numComparedChunkPairs] = [Number.POSITIVE_INFINITY, 0];
    for (let k = 0; k < ranks && numComparedChunkPairs < MAX_COMPARED_CHUNK_PAIRS; k++) {
      const rank = (slowestRank + k) % ranks;
      const targetGain = (this.#pairsByRank[slowestRank]! - this.#pairsByRank[rank]!) / 2;
      if (targetGain <= 0) continue;
      for (const a of this.#chunksByRank[0]![slowestRank]!) {
        for (const b of this.#chunksByRank[0]![rank]!) {
          numComparedChunkPairs++;
          const gain = pairs[a]! - pairs[b]!;
          const error = Math.abs(gain - targetGain);
          if (gain <= 0 || error >= maxError) continue;
          swapCandidates.push({ error, a, b });
          if (swapCandidates.length < 2 * MAX_LEVELLING_SWAPS) continue;
          swapCandidates.sort((x, y) => x.error - y.error);
          swapCandidates.length = MAX_LEVELLING_SWAPS;
          maxError = swapCandidates[MAX_LEVELLING_SWAPS - 1]!.error;
        }
      }
    }
    this.#numVisits += numComparedChunkPairs;
    swapCandidates.sort((x, y) => x.error - y.error);
    return swapCandidates.slice(0, MAX_LEVELLING_SWAPS).some(({ a, b }) => this.#swapIfBetter(a, b));
  }

  #relieveByRandomSwaps(slowestRank: number, visitLimit: number): boolean {
    const { ranks, chunks, queryChunks, pairs, model } = this.#problem;
    const numChunkKinds = chunks > queryChunks ? 2 : 1;
    const maxTime = this.#rankTime(slowestRank);
    const isComputeBound = model.secondsPerPair * this.#pairsByRank[slowestRank]! >= maxTime * 0.999;
    const maxDraws = Math.min(MAX_RANDOM_DRAWS, 4 * chunks);
    for (let i = 0, numSwaps = 0; i < maxDraws && numSwaps < MAX_TRIED_SWAPS && this.#numVisits < visitLimit; i++) {
      this.#numVisits += 4;
      const ownChunks = this.#chunksByRank[i % numChunkKinds]![slowestRank]!;
      if (ownChunks.length === 0) continue;
      const chunk = ownChunks[this.#randomIndex(ownChunks.length)]!;
      const rank = i & 2 ? this.#randomIndex(ranks) : this.assignment[this.#neighbourChunk(chunk)]!;
      const rankChunks = this.#chunkList(chunk, rank);
      if (rank === slowestRank || rankChunks.length === 0) continue;
      const partner = rankChunks[this.#randomIndex(rankChunks.length)]!;
      const gain = pairs[chunk]! - pairs[partner]!;
      if ((isComputeBound && gain <= 0) || model.secondsPerPair * (this.#pairsByRank[rank]! + gain) >= maxTime)
        continue;
      numSwaps++;
      this.#numVisits += TRIAL_VISITS;
      if (this.#swapIfBetter(chunk, partner)) return true;
    }
    return false;
  }

  /** Swaps two chunks of different ranks if the potential rises by less than the limit. Returns whether it did. */
  #swapIfBetter(a: number, b: number): boolean {
    const [fromRank, toRank] = [this.assignment[a]!, this.assignment[b]!];
    if (fromRank === toRank || this.#cannotImprove(a, b)) return false;
    this.#exchange(a, b);
    const isImprovement =
      this.#ranks.potentialChange(this.#rankPotential) + (this.#hosts?.potentialChange(this.#hostPotential) ?? 0) <
      this.#maxPotentialRise();
    if (isImprovement) {
      this.#ranks.commit();
      this.#hosts?.commit();
      const [indexA, indexB] = [this.#chunkIndex[a]!, this.#chunkIndex[b]!];
      this.#chunkList(a, fromRank)[indexA] = b;
      this.#chunkList(b, toRank)[indexB] = a;
      [this.#chunkIndex[a], this.#chunkIndex[b]] = [indexB, indexA];
      return true;
    }
    this.#exchange(a, b);
    this.#ranks.rollBack();
    this.#hosts?.rollBack();
    return false;
  }

  /** Returns the limit below which a change of the potential is accepted. */
  #maxPotentialRise(): number {
    return (
      this.#threshold * Math.max(0, 1 - this.#numVisits / this.#maxVisits / THRESHOLD_DECAY_SHARE) - MIN_POTENTIAL_GAIN
    );
  }

  /** Returns whether the cost of both ranks' pairs alone exceeds all that the swap could save. */
  #cannotImprove(a: number, b: number): boolean {
    const { pairs, model } = this.#problem;
    const [fromRank, toRank] = [this.assignment[a]!, this.assignment[b]!];
    const gain = pairs[a]! - pairs[b]!;
    const excessCost =
      this.#excessCost(model.secondsPerPair * (this.#pairsByRank[fromRank]! - gain)) +
      this.#excessCost(model.secondsPerPair * (this.#pairsByRank[toRank]! + gain));
    if (excessCost === 0) return false;
    const { receivedRows } = this.#ranks;
    const maxSaving =
      this.#ranks.potential(fromRank) +
      this.#ranks.potential(toRank) -
      this.#hiddenRowCost * (receivedRows[fromRank]! + receivedRows[toRank]!);
    const maxHiddenSaving =
      (this.#hiddenRowCost + this.#hiddenHostRowCost) * (this.#requiredRows[a]! + this.#requiredRows[b]!);
    return excessCost - maxSaving - maxHiddenSaving > this.#maxPotentialRise();
  }

  #exchange(a: number, b: number): void {
    const { assignment } = this;
    const { pairs } = this.#problem;
    const [fromRank, toRank] = [assignment[a]!, assignment[b]!];
    this.#numVisits += this.#ranks.exchange(assignment, a, b);
    if (this.#hosts) this.#numVisits += this.#hosts.exchange(assignment, a, b);
    this.#pairsByRank[fromRank]! += pairs[b]! - pairs[a]!;
    this.#pairsByRank[toRank]! += pairs[a]! - pairs[b]!;
    assignment[a] = toRank;
    assignment[b] = fromRank;
  }

  #rankTime(rank: number): number {
    const { receivedRows, sentRows } = this.#ranks;
    const { model } = this.#problem;
    const load = { pairs: this.#pairsByRank[rank]!, receivedRows: receivedRows[rank]!, sentRows: sentRows[rank]! };
    if (!this.#hosts) return model.rankTime(load);
    const host = Math.floor(rank / model.ranksPerHost);
    const hostLoad = { pairs: 0, receivedRows: this.#hosts.receivedRows[host]!, sentRows: this.#hosts.sentRows[host]! };
    return model.rankTime(load, hostLoad);
  }

  readonly #rankPotential = (rank: number): number => {
    const { model } = this.#problem;
    const [receivedRows, sentRows] = [this.#ranks.receivedRows[rank]!, this.#ranks.sentRows[rank]!];
    const time = model.rankTime({ pairs: this.#pairsByRank[rank]!, receivedRows, sentRows });
    return this.#excessCost(time) + this.#hiddenRowCost * receivedRows;
  };

  /** The potential of a host: its links count as an additional rank. */
  readonly #hostPotential = (host: number): number => {
    const { model } = this.#problem;
    const { receivedRows, sentRows } = this.#hosts!;
    const time = model.hostTime({ receivedRows: receivedRows[host]!, sentRows: sentRows[host]! });
    return this.#excessCost(time) + this.#hiddenHostRowCost * receivedRows[host]!;
  };

  #excessCost(time: number): number {
    const excess = Math.max(0, time / this.#targetTime - 1);
    return EXCESS_TIME_WEIGHT * excess * excess;
  }

  #chunkList(chunk: number, rank: number): number[] {
    return this.#chunksByRank[chunk < this.#problem.queryChunks ? 0 : 1]![rank]!;
  }

  /** Returns a random chunk near another one: at most 2 chunks away, or at most as many as three ranks have. */
  #neighbourChunk(chunk: number): number {
    const { chunks, ranks } = this.#problem;
    const direction = this.#randomIndex(2) === 0 ? -1 : 1;
    const distance = 1 + this.#randomIndex(this.#randomIndex(2) === 0 ? 3 * Math.ceil(chunks / ranks) : 2);
    return Math.max(0, Math.min(chunks - 1, chunk + direction * distance));
  }

  /** Returns a random integer below `count`, from the upper bits of Knuth's linear congruential generator. */
  #randomIndex(count: number): number {
    this.#randomState = (Math.imul(this.#randomState, 1664525) + 1013904223) >>> 0;
    return Math.floor((this.#randomState / 2 ** 32) * count);
  }
}

/** Counts the chunks of each group that require each atom, and the resulting rows that groups send and receive. */
class RowTrafficCounter implements RowTraffic {
  readonly receivedRows: Float64Array;
  readonly sentRows: Float64Array;
  readonly numGroups: number;
  readonly #problem: DispatchProblem;
  /** Number of ranks of a group. */
  readonly #groupSize: number;
  /** By group and atom. The atoms of a group are adjacent because a chunk requires ranges of them. */
  readonly #requirementCounts: Uint16Array | Int32Array;
  /** By atom: the number of groups that require it. */
  readonly #requiringGroupCounts: Int32Array;
  /** The potential of each group, and the proposed potential of each affected group (indexed as `#affectedGroups`). */
  readonly #potentials: Float64Array;
  readonly #proposedPotentials: Float64Array;
  readonly #isAffected: Uint8Array;
  /** Groups whose rows or pairs the current exchange changes. */
  readonly #affectedGroups: Int32Array;
  #numAffectedGroups = 0;
  /** Buffer for a list of intervals. */
  readonly #intervalBuffer: Int32Array;

  // oxlint-disable-next-line max-params -- problem and assignment, as everywhere
  constructor(
    problem: DispatchProblem,
    assignment: Assignment,
    { rows, groups, width }: { readonly rows: RowTraffic; readonly groups: number; readonly width: number },
  ) {
    const atoms = problem.atomRows.length;
    this.#problem = problem;
    this.#groupSize = width;
    this.numGroups = groups;
    this.receivedRows = rows.receivedRows;
    this.sentRows = rows.sentRows;
    this.#potentials = new Float64Array(groups);
    this.#proposedPotentials = new Float64Array(groups);
    this.#isAffected = new Uint8Array(groups);
    this.#affectedGroups = new Int32Array(groups);
    const maxLength = problem.requiredAtoms.reduce((length, each) => Math.max(length, each.length), 0);
    this.#intervalBuffer = new Int32Array(2 * maxLength);
    const counts = problem.queryChunks > 0xffff ? new Int32Array(groups * atoms) : new Uint16Array(groups * atoms);
    this.#requirementCounts = counts;
    this.#requiringGroupCounts = new Int32Array(atoms);
    for (let chunk = 0; chunk < problem.queryChunks; chunk++) {
      const groupOffset = Math.floor(assignment[chunk]! / width) * atoms;
      const intervals = problem.requiredAtoms[chunk]!;
      for (let i = 0; i < intervals.length; i += 2)
        for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++)
          if (++counts[groupOffset + atom]! === 1) this.#requiringGroupCounts[atom]!++;
    }
  }

  initializePotentials(potential: (group: number) => number): void {
    for (let group = 0; group < this.numGroups; group++) this.#potentials[group] = potential(group);
  }

  /** Returns the change of the potential by the exchanges since the last `commit` or `rollBack`. */
  potentialChange(potential: (group: number) => number): number {
    let difference = 0;
    for (let i = 0; i < this.#numAffectedGroups; i++) {
      const group = this.#affectedGroups[i]!;
      this.#proposedPotentials[i] = potential(group);
      difference += this.#proposedPotentials[i]! - this.#potentials[group]!;
    }
    return difference;
  }

  potential(group: number): number {
    return this.#potentials[group]!;
  }

  commit(): void {
    for (let i = 0; i < this.#numAffectedGroups; i++)
      this.#potentials[this.#affectedGroups[i]!] = this.#proposedPotentials[i]!;
    this.rollBack();
  }

  rollBack(): void {
    for (let i = 0; i < this.#numAffectedGroups; i++) this.#isAffected[this.#affectedGroups[i]!] = 0;
    this.#numAffectedGroups = 0;
  }

  /** Exchanges the ranks of two chunks. `assignment` is the one before the exchange. Returns the cost in visits. */
  exchange(assignment: Assignment, a: number, b: number): number {
    const [fromGroup, toGroup] = [
      Math.floor(assignment[a]! / this.#groupSize),
      Math.floor(assignment[b]! / this.#groupSize),
    ];
    this.#markAffected(fromGroup);
    this.#markAffected(toGroup);
    if (fromGroup === toGroup) return 1;
    const { requiredAtoms, ownedAtoms } = this.#problem;
    return (
      EXCHANGE_VISITS +
      this.#moveRequired(assignment, [requiredAtoms[a]!, requiredAtoms[b]!], { from: fromGroup, to: toGroup }) +
      this.#moveRequired(assignment, [requiredAtoms[b]!, requiredAtoms[a]!], { from: toGroup, to: fromGroup }) +
      this.#moveOwned(ownedAtoms[a]!, { from: fromGroup, to: toGroup }) +
      this.#moveOwned(ownedAtoms[b]!, { from: toGroup, to: fromGroup })
    );
  }

  /** Moves what the first chunk requires and the second does not: few atoms within a document. Returns their number. */
  #moveRequired(
    assignment: Assignment,
    [requiredAtoms, retainedAtoms]: readonly [Int32Array, Int32Array],
    { from: fromGroup, to: toGroup }: Readonly<Record<"from" | "to", number>>,
  ): number {
    const { atomRows, atomOwner } = this.#problem;
    const { receivedRows, sentRows } = this;
    const [counts, groupCounts, groupSize] = [this.#requirementCounts, this.#requiringGroupCounts, this.#groupSize];
    const [fromBase, toBase] = [fromGroup * atomRows.length, toGroup * atomRows.length];
    const intervals = this.#intervalBuffer;
    const length = subtractIntervals(requiredAtoms, retainedAtoms, intervals);
    let numVisitedAtoms = 0;
    for (let i = 0; i < length; i += 2) {
      const end = intervals[i + 1]!;
      numVisitedAtoms += end - intervals[i]!;
      for (let atom = intervals[i]!; atom < end; atom++) {
        const isLastRequirement = --counts[fromBase + atom]! === 0;
        const isFirstRequirement = ++counts[toBase + atom]! === 1;
        if (!isLastRequirement && !isFirstRequirement) continue;
        const ownerRank = assignment[atomOwner[atom]!]!;
        const owner = groupSize === 1 ? ownerRank : Math.floor(ownerRank / groupSize);
        const rows = atomRows[atom]!;
        groupCounts[atom]! += Number(isFirstRequirement) - Number(isLastRequirement);
        if (isLastRequirement && owner !== fromGroup) {
          receivedRows[fromGroup]! -= rows;
          sentRows[owner]! -= rows;
          this.#markAffected(owner);
        }
        if (isFirstRequirement && owner !== toGroup) {
          receivedRows[toGroup]! += rows;
          sentRows[owner]! += rows;
          this.#markAffected(owner);
        }
      }
    }
    return numVisitedAtoms;
  }

  #moveOwned(intervals: Int32Array, { from: fromGroup, to: toGroup }: Readonly<Record<"from" | "to", number>>): number {
    const { atomRows } = this.#problem;
    const { receivedRows, sentRows } = this;
    const [fromBase, toBase] = [fromGroup * atomRows.length, toGroup * atomRows.length];
    let numVisitedAtoms = 0;
    for (let i = 0; i < intervals.length; i += 2) {
      numVisitedAtoms += intervals[i + 1]! - intervals[i]!;
      for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) {
        const numRequiringGroups = this.#requiringGroupCounts[atom]!;
        const rows = atomRows[atom]!;
        const [isRequiredByFromGroup, isRequiredByToGroup] = [
          this.#requirementCounts[fromBase + atom]! > 0,
          this.#requirementCounts[toBase + atom]! > 0,
        ];
        sentRows[fromGroup]! -= rows * (numRequiringGroups - Number(isRequiredByFromGroup));
        sentRows[toGroup]! += rows * (numRequiringGroups - Number(isRequiredByToGroup));
        if (isRequiredByFromGroup) receivedRows[fromGroup]! += rows;
        if (isRequiredByToGroup) receivedRows[toGroup]! -= rows;
      }
    }
    return numVisitedAtoms;
  }

  #markAffected(group: number): void {
    if (this.#isAffected[group]) return;
    this.#isAffected[group] = 1;
    this.#affectedGroups[this.#numAffectedGroups++] = group;
  }
}

/** Writes to `out` the parts of ascending intervals outside `subtractedIntervals`. Returns the length of that list. */
function subtractIntervals(intervals: Int32Array, subtractedIntervals: Int32Array, out: Int32Array): number {
  let [k, length] = [0, 0];
  for (let i = 0; i < intervals.length; i += 2) {
    let start = intervals[i]!;
    const end = intervals[i + 1]!;
    while (k < subtractedIntervals.length && subtractedIntervals[k + 1]! <= start) k += 2;
    for (let j = k; j < subtractedIntervals.length && subtractedIntervals[j]! < end; j += 2) {
      if (subtractedIntervals[j]! > start) {
        out[length++] = start;
        out[length++] = subtractedIntervals[j]!;
      }
      start = Math.max(start, subtractedIntervals[j + 1]!);
    }
    if (start >= end) continue;
    out[length++] = start;
    out[length++] = end;
  }
  return length;
}
