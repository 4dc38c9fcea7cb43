import { type Assignment, evaluateAssignment, countHosts } from "./assignment.ts";
import type { CostModel } from "./cost.ts";
import { type DispatchProblem, countRequiredRows } from "./problem.ts";
import { RowTrafficCounter } from "./row-traffic.ts";

export interface RefineOptions {
  /** The time, in seconds, that no rank should exceed. */
  readonly targetTime: number;
  /** Largest number of atoms to visit. The budget is work, not time, so that all ranks compute the same result. */
  readonly maxVisits: number;
  readonly seed: number;
  /** Initial limit of the rise of the potential in a swap, in receive times of a chunk; decays to 0. Default: 0. */
  readonly threshold?: number;
  /** By chunk: 1 if the chunk remains on its rank. */
  readonly isFixed?: Uint8Array;
}

/** Cost of a rank that takes twice the target time, in target times. */
const EXCESS_TIME_WEIGHT = 300;
/** Share of that cost which is the sum of the costs of compute, receive and send, instead of that of their largest. */
const COMPONENT_SHARE = 0.5;
/** Number of swaps of the slowest rank that are tried: those that come closest to equalizing the pairs of two ranks. */
const MAX_LEVELING_SWAPS = 32;
const MAX_COMPARED_CHUNK_PAIRS = 20_000;
/** Limits of random swaps of the slowest rank: drawn, and tried, which excludes those that do not relieve it. */
const MAX_RANDOM_DRAWS = 4096;
const MAX_TRIED_SWAPS = 128;
/** Largest number of chunks of a rank that are tried as partners of a chunk that should move there. */
const MAX_SWAP_PARTNERS = 8;
/** Each phase of a round uses at most such a fraction of the budget, so that the complementary phases alternate often. */
const BALANCE_BUDGET_DIVISOR = 20;
const TRANSFER_BUDGET_DIVISOR = 30;
const RUN_BUDGET_DIVISOR = 60;
/** Largest number of chunks of a document that are exchanged together. */
const MAX_RUN_CHUNKS = 8;
/** Cost of an exchange of chunks that may be taken back, relative to that of a proposal. */
const EXCHANGE_VISIT_FACTOR = 3;
/** The search stops after this number of consecutive rounds without a swap. */
const MAX_IDLE_ROUNDS = 3;
const MIN_POTENTIAL_GAIN = 1e-12;
/** Largest rounding error of a bound of a potential that is near 0. */
const ROUNDING_ERROR = 1e-12;
/** Cost of choosing a swap, in visits. */
const TRIAL_VISITS = 4;
/** Share of the budget after which the potential may no longer rise. */
const THRESHOLD_DECAY_SHARE = 0.8;

/**
 * Swaps chunks between ranks to lower a potential: the squared excess of each rank over the target time plus the cost
 * of received rows. Each excess of compute, receive and send counts too, since a swap that lowers only one of two equal
 * ones does not change the time. Three phases alternate: one relieves the slowest rank, one moves random chunks to ranks
 * that have a neighboring chunk, and one exchanges all chunks of a document on one rank for as many chunks of another
 * rank, since each of these swaps alone may raise the potential. The number of chunks of each rank does not change.
 * Swaps that raise the potential by less than a threshold, which decays to 0, are also accepted (threshold accepting:
 * Dueck and Scheuer 1990). Unlike annealing, this needs no logarithm, whose last bit may differ between machines.
 * Deterministic: it has its own random generator.
 */
export function refine(problem: DispatchProblem, start: Assignment, options: RefineOptions): Assignment {
  const search = new SwapSearch(problem, start, options);
  for (let idleRounds = 0; search.hasBudget() && idleRounds < MAX_IDLE_ROUNDS; ) {
    idleRounds =
      search.balanceSlowestRank() + search.reduceTransfers() + search.exchangeRuns() > 0 ? 0 : idleRounds + 1;
  }
  return search.assignment;
}

class SwapSearch {
  readonly assignment: Assignment;
  readonly #problem: DispatchProblem;
  readonly #isFixed: Uint8Array | undefined;
  readonly #model: CostModel;
  readonly #secondsPerPair: number;
  /** By chunk: its visible pairs. */
  readonly #chunkPairs: Float64Array;
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
  /** Chunks of queries by rank, and those of keys by rank if separate. Their numbers do not change. */
  readonly #chunksByRank: Int32Array;
  /** By kind of chunk and rank: the index of the first chunk in the list. By chunk: its index. */
  readonly #firstIndex: Int32Array;
  readonly #chunkIndex: Int32Array;

  constructor(
    problem: DispatchProblem,
    start: Assignment,
    { targetTime, maxVisits, seed, threshold = 0, isFixed }: RefineOptions,
  ) {
    const { ranks, chunks, chunkSize, model } = problem;
    this.#problem = problem;
    this.#isFixed = isFixed;
    this.#model = model;
    this.#secondsPerPair = model.secondsPerPair;
    this.#chunkPairs = problem.pairs;
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
    this.#ranks = new RowTrafficCounter(problem, start, {
      rows: load,
      numGroups: ranks,
      groupSize: 1,
      potential: this.#rankPotential,
      rowCost: this.#hiddenRowCost,
    });
    if (load.hosts) {
      this.#hosts = new RowTrafficCounter(problem, start, {
        rows: load.hosts,
        numGroups: countHosts(problem),
        groupSize: model.ranksPerHost,
        potential: this.#hostPotential,
        rowCost: this.#hiddenHostRowCost,
      });
    }
    this.#chunksByRank = new Int32Array(chunks);
    this.#chunkIndex = new Int32Array(chunks);
    this.#firstIndex = new Int32Array(2 * ranks + 1);
    for (let chunk = 0; chunk < chunks; chunk++) this.#firstIndex[this.#listOf(chunk, start[chunk]!) + 1]!++;
    for (let list = 0; list < 2 * ranks; list++) this.#firstIndex[list + 1]! += this.#firstIndex[list]!;
    const nextIndex = this.#firstIndex.slice();
    for (let chunk = 0; chunk < chunks; chunk++) {
      const index = nextIndex[this.#listOf(chunk, start[chunk]!)]!++;
      this.#chunkIndex[chunk] = index;
      this.#chunksByRank[index] = chunk;
    }
    this.#ranks.initializePotentials();
    this.#hosts?.initializePotentials();
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
      const slowestRank = this.#findSlowestRank();
      if (this.#rankTime(slowestRank) <= this.#targetTime) break;
      if (!this.#equalizePairs(slowestRank) && !this.#relieveByRandomSwaps(slowestRank, visitLimit)) break;
      numImprovements++;
    }
    return numImprovements;
  }

  /** Moves random chunks to ranks that own a neighboring chunk. Returns the number of accepted swaps. */
  reduceTransfers(): number {
    const { chunks } = this.#problem;
    let numImprovements = 0;
    const visitLimit = Math.min(this.#maxVisits, this.#numVisits + this.#maxVisits / TRANSFER_BUDGET_DIVISOR);
    for (let draw = 0; draw < 2 * chunks && this.#numVisits < visitLimit; draw++) {
      const chunk = this.#randomIndex(chunks);
      const rank = this.assignment[this.#neighborChunk(chunk)]!;
      if (rank === this.assignment[chunk]) continue;
      const list = this.#listOf(chunk, rank);
      const first = this.#firstIndex[list]!;
      const numRankChunks = this.#firstIndex[list + 1]! - first;
      for (let i = 0; i < numRankChunks && i < MAX_SWAP_PARTNERS; i++) {
        this.#numVisits += TRIAL_VISITS;
        if (!this.#swapIfBetter(chunk, this.#chunksByRank[first + ((i + draw) % numRankChunks)]!)) continue;
        numImprovements++;
        break;
      }
    }
    return numImprovements;
  }

  /**
   * Exchanges the chunks of a document on one rank for as many chunks of another rank. Half of the draws begin at the
   * slowest rank while it exceeds the target time. Does nothing if keys have chunks of their own. Returns the number of
   * accepted exchanges.
   */
  exchangeRuns(): number {
    const { chunks, queryChunks, ranks } = this.#problem;
    if (chunks > queryChunks) return 0;
    const visitLimit = Math.min(this.#maxVisits, this.#numVisits + this.#maxVisits / RUN_BUDGET_DIVISOR);
    let numImprovements = 0;
    let slowestRank = this.#findSlowestRank();
    for (let draw = 0; draw < 2 * chunks && this.#numVisits < visitLimit; draw++) {
      this.#numVisits += TRIAL_VISITS + (2 * chunks) / ranks;
      const isBalancing = draw % 2 === 0 && this.#rankTime(slowestRank) > this.#targetTime;
      const chunk = isBalancing ? this.#randomChunk(slowestRank) : this.#randomIndex(chunks);
      if (chunk < 0) continue;
      const toRank = isBalancing && draw & 2 ? this.#randomIndex(ranks) : this.assignment[this.#neighborChunk(chunk)]!;
      if (toRank === this.assignment[chunk]) continue;
      const partner = this.#randomChunk(toRank);
      if (partner < 0) continue;
      const run = this.#runOf(chunk);
      if (!this.#exchangeIfBetter(run, this.#runOf(partner, run.length))) continue;
      numImprovements++;
      slowestRank = this.#findSlowestRank();
    }
    return numImprovements;
  }

  #findSlowestRank(): number {
    let slowestRank = 0;
    let maxTime = this.#rankTime(0);
    for (let rank = 1; rank < this.#problem.ranks; rank++) {
      const time = this.#rankTime(rank);
      if (time <= maxTime) continue;
      slowestRank = rank;
      maxTime = time;
    }
    return slowestRank;
  }

  /**
   * Returns at most `MAX_RUN_CHUNKS` chunks of a chunk's document that its rank has. With `length`, returns at most
   * `length` chunks; if the document has fewer, those of other documents of the rank follow.
   */
  #runOf(chunk: number, length = 0): number[] {
    const { document } = this.#problem;
    const rank = this.assignment[chunk]!;
    const first = this.#firstIndex[rank]!;
    const count = this.#firstIndex[rank + 1]! - first;
    const offset = this.#chunkIndex[chunk]! - first;
    const maxLength = length || MAX_RUN_CHUNKS;
    const numTriedChunks = length > 0 ? count : 1;
    const run: number[] = [];
    for (let i = 0; i < numTriedChunks && run.length < maxLength; i++) {
      const next = this.#chunksByRank[first + ((offset + i) % count)]!;
      if (run.includes(next)) continue;
      run.push(next);
      for (let k = i + 1; k < count && run.length < maxLength; k++) {
        const other = this.#chunksByRank[first + ((offset + k) % count)]!;
        if (document[other] === document[next] && !run.includes(other)) run.push(other);
      }
    }
    return run;
  }

  /** Swaps the chunks of two ranks, as many as both lists have, if the potential rises by less than the limit. */
  #exchangeIfBetter(run: readonly number[], otherRun: readonly number[]): boolean {
    const length = Math.min(run.length, otherRun.length);
    if (length < 2) return false;
    const fromRank = this.assignment[run[0]!]!;
    const toRank = this.assignment[otherRun[0]!]!;
    let gain = 0;
    let requiredRows = 0;
    for (let i = 0; i < length; i++) {
      if (this.#isFixed?.[run[i]!] || this.#isFixed?.[otherRun[i]!]) return false;
      gain += this.#chunkPairs[run[i]!]! - this.#chunkPairs[otherRun[i]!]!;
      requiredRows += this.#requiredRows[run[i]!]! + this.#requiredRows[otherRun[i]!]!;
    }
    if (this.#exceedsSavings(fromRank, toRank, gain, requiredRows)) return false;
    const limit = this.#maxPotentialRise();
    let change = 0;
    for (let i = 0; i < length; i++) change += this.#exchange(run[i]!, otherRun[i]!);
    if (change < limit) return true;
    for (let i = length - 1; i >= 0; i--) this.#exchange(otherRun[i]!, run[i]!);
    return false;
  }

  /** Swaps two chunks of different ranks, without a limit of the potential. Returns the change of the potential. */
  #exchange(a: number, b: number): number {
    const visitsBefore = this.#numVisits;
    this.#propose(a, b);
    this.#numVisits += (EXCHANGE_VISIT_FACTOR - 1) * (this.#numVisits - visitsBefore);
    this.#ranks.minPotentialChange();
    this.#hosts?.minPotentialChange();
    const change = this.#ranks.potentialChange() + (this.#hosts?.potentialChange() ?? 0);
    this.#commit(a, b);
    return change;
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
      for (let i = this.#firstIndex[slowestRank]!; i < this.#firstIndex[slowestRank + 1]!; i++) {
        const a = this.#chunksByRank[i]!;
        for (let j = this.#firstIndex[rank]!; j < this.#firstIndex[rank + 1]!; j++) {
          const b = this.#chunksByRank[j]!;
          numComparedChunkPairs++;
          const gain = pairs[a]! - pairs[b]!;
          const error = Math.abs(gain - targetGain);
          if (gain <= 0 || error >= maxError) continue;
          swapCandidates.push({ error, a, b });
          if (swapCandidates.length < 2 * MAX_LEVELING_SWAPS) continue;
          swapCandidates.sort((x, y) => x.error - y.error);
          swapCandidates.length = MAX_LEVELING_SWAPS;
          maxError = swapCandidates[MAX_LEVELING_SWAPS - 1]!.error;
        }
      }
    }
    this.#numVisits += numComparedChunkPairs;
    swapCandidates.sort((x, y) => x.error - y.error);
    return swapCandidates.slice(0, MAX_LEVELING_SWAPS).some(({ a, b }) => this.#swapIfBetter(a, b));
  }

  #relieveByRandomSwaps(slowestRank: number, visitLimit: number): boolean {
    const { ranks, chunks, queryChunks, pairs, model } = this.#problem;
    const numChunkKinds = chunks > queryChunks ? 2 : 1;
    const maxTime = this.#rankTime(slowestRank);
    const isComputeBound = model.secondsPerPair * this.#pairsByRank[slowestRank]! >= maxTime * 0.999;
    const maxDraws = Math.min(MAX_RANDOM_DRAWS, 4 * chunks);
    for (let i = 0, numSwaps = 0; i < maxDraws && numSwaps < MAX_TRIED_SWAPS && this.#numVisits < visitLimit; i++) {
      this.#numVisits += 4;
      const chunk = this.#randomChunk((i % numChunkKinds) * ranks + slowestRank);
      if (chunk < 0) continue;
      const rank = i & 2 ? this.#randomIndex(ranks) : this.assignment[this.#neighborChunk(chunk)]!;
      if (rank === slowestRank) continue;
      const partner = this.#randomChunk(this.#listOf(chunk, rank));
      if (partner < 0) continue;
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
    const fromRank = this.assignment[a]!;
    const toRank = this.assignment[b]!;
    if (fromRank === toRank || this.#isFixed?.[a] || this.#isFixed?.[b] || this.#cannotImprove(a, b)) return false;
    this.#propose(a, b);
    if (!this.#isProposalAccepted()) {
      const gain = this.#chunkPairs[a]! - this.#chunkPairs[b]!;
      this.#pairsByRank[fromRank]! += gain;
      this.#pairsByRank[toRank]! -= gain;
      return false;
    }
    this.#commit(a, b);
    return true;
  }

  /** Proposes a swap of two chunks, and changes the pairs of their ranks. */
  #propose(a: number, b: number): void {
    const fromRank = this.assignment[a]!;
    const toRank = this.assignment[b]!;
    const gain = this.#chunkPairs[a]! - this.#chunkPairs[b]!;
    this.#pairsByRank[fromRank]! -= gain;
    this.#pairsByRank[toRank]! += gain;
    this.#numVisits += this.#ranks.propose(a, b, fromRank, toRank);
    if (this.#hosts) this.#numVisits += this.#hosts.propose(a, b, fromRank, toRank);
  }

  /** Accepts the proposed swap. */
  #commit(a: number, b: number): void {
    const fromRank = this.assignment[a]!;
    const toRank = this.assignment[b]!;
    this.#ranks.commit(a, b);
    this.#hosts?.commit(a, b);
    const indexA = this.#chunkIndex[a]!;
    const indexB = this.#chunkIndex[b]!;
    this.#chunksByRank[indexA] = b;
    this.#chunksByRank[indexB] = a;
    this.#chunkIndex[a] = indexB;
    this.#chunkIndex[b] = indexA;
    this.assignment[a] = toRank;
    this.assignment[b] = fromRank;
  }

  /** Returns whether the potential rises by less than the limit. Most exchanges are rejected by the lower bound. */
  #isProposalAccepted(): boolean {
    const limit = this.#maxPotentialRise();
    const ranks = this.#ranks;
    const hosts = this.#hosts;
    if (hosts) {
      if (ranks.minPotentialChange() + hosts.minPotentialChange() >= limit) return false;
      return ranks.potentialChange() + hosts.potentialChange() < limit;
    }
    if (ranks.minRowCostChange() > limit + ROUNDING_ERROR || ranks.minPotentialChange() >= limit) return false;
    return ranks.potentialChange() < limit;
  }

  /** Returns the limit below which a change of the potential is accepted. */
  #maxPotentialRise(): number {
    return (
      this.#threshold * Math.max(0, 1 - this.#numVisits / this.#maxVisits / THRESHOLD_DECAY_SHARE) - MIN_POTENTIAL_GAIN
    );
  }

  /** Returns whether the cost of both ranks' pairs alone exceeds all that the swap could save. */
  #cannotImprove(a: number, b: number): boolean {
    const fromRank = this.assignment[a]!;
    const toRank = this.assignment[b]!;
    const gain = this.#chunkPairs[a]! - this.#chunkPairs[b]!;
    return this.#exceedsSavings(fromRank, toRank, gain, this.#requiredRows[a]! + this.#requiredRows[b]!);
  }

  /** Returns whether the cost of both ranks' pairs alone, after `gain` pairs move, exceeds all that could be saved. */
  #exceedsSavings(fromRank: number, toRank: number, gain: number, requiredRows: number): boolean {
    const excessCost =
      this.#excessCost(this.#secondsPerPair * (this.#pairsByRank[fromRank]! - gain)) +
      this.#excessCost(this.#secondsPerPair * (this.#pairsByRank[toRank]! + gain));
    if (excessCost === 0) return false;
    const { receivedRows } = this.#ranks;
    const maxSaving =
      this.#ranks.potential(fromRank) +
      this.#ranks.potential(toRank) -
      this.#hiddenRowCost * (receivedRows[fromRank]! + receivedRows[toRank]!);
    const maxHiddenSaving = (this.#hiddenRowCost + this.#hiddenHostRowCost) * requiredRows;
    return excessCost - maxSaving - maxHiddenSaving > this.#maxPotentialRise();
  }

  #rankTime(rank: number): number {
    const { receivedRows, sentRows } = this.#ranks;
    const model = this.#model;
    if (!this.#hosts) return model.rankTimeWithoutHost(this.#pairsByRank[rank]!, receivedRows[rank]!, sentRows[rank]!);
    const load = { pairs: this.#pairsByRank[rank]!, receivedRows: receivedRows[rank]!, sentRows: sentRows[rank]! };
    const host = Math.floor(rank / model.ranksPerHost);
    const hostLoad = { pairs: 0, receivedRows: this.#hosts.receivedRows[host]!, sentRows: this.#hosts.sentRows[host]! };
    return model.rankTime(load, hostLoad);
  }

  readonly #rankPotential = (rank: number, receivedRows: number, sentRows: number): number => {
    const model = this.#model;
    const pairs = this.#pairsByRank[rank]!;
    const time = model.rankTimeWithoutHost(pairs, receivedRows, sentRows);
    const hiddenCost = this.#hiddenRowCost * receivedRows;
    if (time <= this.#targetTime) return hiddenCost;
    const componentCost =
      this.#excessCost(this.#secondsPerPair * pairs) +
      this.#excessCost(model.receiveTime(receivedRows, sentRows)) +
      this.#excessCost(model.receiveTime(sentRows, receivedRows));
    return (1 - COMPONENT_SHARE) * this.#excessCost(time) + COMPONENT_SHARE * componentCost + hiddenCost;
  };

  /** The potential of a host: its links count as an additional rank. */
  readonly #hostPotential = (_host: number, receivedRows: number, sentRows: number): number =>
    this.#excessCost(this.#model.hostTime(receivedRows, sentRows)) + this.#hiddenHostRowCost * receivedRows;

  #excessCost(time: number): number {
    const excess = time / this.#targetTime - 1;
    return excess > 0 ? EXCESS_TIME_WEIGHT * excess * excess : 0;
  }

  /** Returns the index in `#firstIndex` of the list of a rank's chunks that are of the same kind as a chunk. */
  #listOf(chunk: number, rank: number): number {
    return chunk < this.#problem.queryChunks ? rank : this.#problem.ranks + rank;
  }

  /** Returns a random chunk of a list, or −1 if the list is empty. */
  #randomChunk(list: number): number {
    const first = this.#firstIndex[list]!;
    const length = this.#firstIndex[list + 1]! - first;
    return length === 0 ? -1 : this.#chunksByRank[first + this.#randomIndex(length)]!;
  }

  /** Returns a random chunk near another one: at most 2 chunks away, or at most as many as three ranks have. */
  #neighborChunk(chunk: number): number {
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
