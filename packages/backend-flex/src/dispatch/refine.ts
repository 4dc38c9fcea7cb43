import { type Assignment, evaluateAssignment, type RowTraffic, hostCount } from "./assignment.ts";
import { type DispatchProblem, requiredRows } from "./problem.ts";

export interface RefineOptions {
  /** Seconds that no rank should exceed. */
  readonly targetTime: number;
  /** How many atoms are visited at most: work is counted, never time, so that all ranks do the same. */
  readonly maxVisits: number;
  readonly seed: number;
  /** The potential may rise by so much in a swap, at first, in receive times of a chunk; by nothing in the end. Default: 0. */
  readonly threshold?: number;
}

/** Price of a rank that takes twice the goal, in goals. */
const EXCESS_TIME_WEIGHT = 300;
/** Swaps of the slowest rank that are tried: those that come nearest to levelling a pair of ranks. */
const MAX_LEVELLING_SWAPS = 32;
const MAX_COMPARED = 20_000;
/** Of drawn swaps of it, those are tried that leave neither rank more pairs than it has. */
const MAX_DRAWS = 4096;
const MAX_TRIED_SWAPS = 128;
/** Chunks of a rank that a chunk which should go there is compared with. */
const MAX_PARTNERS = 8;
/** A round takes at most these shares of all work: many rounds, in which each of the two does what the other one cannot. */
const RELIEVE_BUDGET_DIVISOR = 20;
const ATTRACT_BUDGET_DIVISOR = 30;
/** Rounds without a swap after which nothing is expected of more. */
const MAX_IDLE_ROUNDS = 3;
const MIN_GAIN = 1e-12;
/** What an exchange takes beside the atoms that it visits, in visits. */
const EXCHANGE_VISITS = 32;
/** What the choice of a swap takes. */
const TRIAL_VISITS = 6;
/** Share of the work at whose end the potential may rise no more. */
const THRESHOLD_DECAY = 0.8;

/**
 * Swaps chunks between ranks while that lowers a potential: the squared excess of every rank over the goal, and the price of
 * the rows that travel. By turns the slowest rank is relieved, and drawn chunks go to ranks that have a neighbour of them.
 * Numbers of chunks stay as they are. With a threshold, swaps are kept that raise the potential by less than it, which falls to
 * nothing (threshold accepting: Dueck and Scheuer 1990; unlike annealing it takes no logarithm, of which machines differ in the
 * last bit). Deterministic: draws are of an own generator.
 */
export function refine(problem: DispatchProblem, start: Assignment, options: RefineOptions): Assignment {
  const search = new SwapSearch(problem, start, options);
  for (let idle = 0; search.hasBudget() && idle < MAX_IDLE_ROUNDS; ) {
    idle = search.balanceSlowest() + search.reduceTransfers() > 0 ? 0 : idle + 1;
  }
  return search.assignment;
}

class SwapSearch {
  readonly assignment: Assignment;
  readonly #problem: DispatchProblem;
  readonly #targetTime: number;
  readonly #maxVisits: number;
  #visits = 0;
  #random: number;
  readonly #threshold: number;
  /** What a row received costs in the potential. */
  readonly #hiddenRowCost: number;
  readonly #hiddenHostRowCost: number;
  /** By chunk: rows that it requires. */
  readonly #widths: Float64Array;
  readonly #pairs: Float64Array;
  readonly #ranks: RowTrafficCounter;
  readonly #hosts: RowTrafficCounter | undefined;
  /** Chunks of each rank, those of queries and, if separate, of keys; and where each chunk stands there. */
  readonly #chunksOf: readonly (readonly number[][])[];
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
    this.#random = seed;
    this.#hiddenRowCost = model.hiddenRowCost("rank") / ranks / targetTime;
    this.#hiddenHostRowCost = model.isTwoLevel ? model.hiddenRowCost("host") / hostCount(problem) / targetTime : 0;
    this.#threshold = threshold * chunkSize * (this.#hiddenRowCost + this.#hiddenHostRowCost);
    this.#widths = requiredRows(problem);
    const load = evaluateAssignment(problem, start);
    this.#pairs = load.pairs;
    this.#ranks = new RowTrafficCounter(problem, start, { rows: load, groups: ranks, width: 1 });
    if (load.hosts) {
      const width = model.ranksPerHost;
      this.#hosts = new RowTrafficCounter(problem, start, { rows: load.hosts, groups: hostCount(problem), width });
    }
    this.#chunksOf = [0, 1].map(() => Array.from({ length: ranks }, () => []));
    this.#chunkIndex = new Int32Array(chunks);
    for (let chunk = 0; chunk < chunks; chunk++) {
      const list = this.#list(chunk, start[chunk]!);
      this.#chunkIndex[chunk] = list.length;
      list.push(chunk);
    }
    this.#ranks.start(this.#rankPotential);
    this.#hosts?.start(this.#hostPotential);
  }

  hasBudget(): boolean {
    return this.#visits < this.#maxVisits;
  }

  /** Swaps chunks of the slowest rank, again and again; returns how often that helped. */
  balanceSlowest(): number {
    const { ranks } = this.#problem;
    const stop = Math.min(this.#maxVisits, this.#visits + this.#maxVisits / RELIEVE_BUDGET_DIVISOR);
    let kept = 0;
    for (let turn = 0; turn < ranks && this.#visits < stop; turn++) {
      let slowest = 0;
      for (let rank = 1; rank < ranks; rank++) if (this.#rankTime(rank) > this.#rankTime(slowest)) slowest = rank;
      if (this.#rankTime(slowest) <= this.#targetTime) break;
      if (!this.#equalizePairs(slowest) && !this.#relieveByDraws(slowest, stop)) break;
      kept++;
    }
    return kept;
  }

  /** Moves drawn chunks to ranks that own a neighbour of theirs; returns how often that helped. */
  reduceTransfers(): number {
    const { chunks } = this.#problem;
    let kept = 0;
    const stop = Math.min(this.#maxVisits, this.#visits + this.#maxVisits / ATTRACT_BUDGET_DIVISOR);
    for (let draw = 0; draw < 2 * chunks && this.#visits < stop; draw++) {
      const chunk = this.#randomIndex(chunks);
      const rank = this.assignment[this.#neighbourChunk(chunk)]!;
      if (rank === this.assignment[chunk]) continue;
      const list = this.#list(chunk, rank);
      for (let i = 0; i < list.length && i < MAX_PARTNERS; i++) {
        this.#visits += TRIAL_VISITS;
        if (!this.#swap(chunk, list[(i + draw) % list.length]!)) continue;
        kept++;
        break;
      }
    }
    return kept;
  }

  /** If compute binds the rank: the swap with another one that comes nearest to giving both as much, if it helps. */
  #equalizePairs(slowest: number): boolean {
    const { ranks, pairs, model } = this.#problem;
    if (model.pair * this.#pairs[slowest]! < this.#rankTime(slowest) * 0.999) return false;
    const found: { readonly error: number; readonly a: number; readonly b: number }[] = [];
    let [worst, compared] = [Number.POSITIVE_INFINITY, 0];
    for (let k = 0; k < ranks && compared < MAX_COMPARED; k++) {
      const rank = (slowest + k) % ranks;
      const wanted = (this.#pairs[slowest]! - this.#pairs[rank]!) / 2;
      if (wanted <= 0) continue;
      for (const a of this.#chunksOf[0]![slowest]!) {
        for (const b of this.#chunksOf[0]![rank]!) {
          compared++;
          const gain = pairs[a]! - pairs[b]!;
          const error = Math.abs(gain - wanted);
          if (gain <= 0 || error >= worst) continue;
          found.push({ error, a, b });
          if (found.length < 2 * MAX_LEVELLING_SWAPS) continue;
          found.sort((x, y) => x.error - y.error);
          found.length = MAX_LEVELLING_SWAPS;
          worst = found[MAX_LEVELLING_SWAPS - 1]!.error;
        }
      }
    }
    this.#visits += compared;
    found.sort((x, y) => x.error - y.error);
    return found.slice(0, MAX_LEVELLING_SWAPS).some(({ a, b }) => this.#swap(a, b));
  }

  #relieveByDraws(slowest: number, stop: number): boolean {
    const { ranks, chunks, queryChunks, pairs, model } = this.#problem;
    const kinds = chunks > queryChunks ? 2 : 1;
    const most = this.#rankTime(slowest);
    const isBound = model.pair * this.#pairs[slowest]! >= most * 0.999;
    const draws = Math.min(MAX_DRAWS, 4 * chunks);
    for (let i = 0, tried = 0; i < draws && tried < MAX_TRIED_SWAPS && this.#visits < stop; i++) {
      this.#visits += 4;
      const own = this.#chunksOf[i % kinds]![slowest]!;
      if (own.length === 0) continue;
      const chunk = own[this.#randomIndex(own.length)]!;
      const rank = i & 2 ? this.#randomIndex(ranks) : this.assignment[this.#neighbourChunk(chunk)]!;
      const list = this.#list(chunk, rank);
      if (rank === slowest || list.length === 0) continue;
      const other = list[this.#randomIndex(list.length)]!;
      const gain = pairs[chunk]! - pairs[other]!;
      if ((isBound && gain <= 0) || model.pair * (this.#pairs[rank]! + gain) >= most) continue;
      tried++;
      this.#visits += TRIAL_VISITS;
      if (this.#swap(chunk, other)) return true;
    }
    return false;
  }

  /** Swaps two chunks of different ranks if that lowers the potential, or raises it by little; returns whether it did. */
  #swap(a: number, b: number): boolean {
    const [from, to] = [this.assignment[a]!, this.assignment[b]!];
    if (from === to || this.#cannotImprove(a, b)) return false;
    this.#exchange(a, b);
    const isKept =
      this.#ranks.potentialChange(this.#rankPotential) + (this.#hosts?.potentialChange(this.#hostPotential) ?? 0) <
      this.#limit();
    if (isKept) {
      this.#ranks.commit();
      this.#hosts?.commit();
      const [placeA, placeB] = [this.#chunkIndex[a]!, this.#chunkIndex[b]!];
      this.#list(a, from)[placeA] = b;
      this.#list(b, to)[placeB] = a;
      [this.#chunkIndex[a], this.#chunkIndex[b]] = [placeB, placeA];
      return true;
    }
    this.#exchange(a, b);
    this.#ranks.rollBack();
    this.#hosts?.rollBack();
    return false;
  }

  /** How much the potential may rise. */
  #limit(): number {
    return this.#threshold * Math.max(0, 1 - this.#visits / this.#maxVisits / THRESHOLD_DECAY) - MIN_GAIN;
  }

  /** Whether the pairs of both ranks alone cost more than all the rows could save. */
  #cannotImprove(a: number, b: number): boolean {
    const { pairs, model } = this.#problem;
    const [from, to] = [this.assignment[a]!, this.assignment[b]!];
    const gain = pairs[a]! - pairs[b]!;
    const excess =
      this.#excessCost(model.pair * (this.#pairs[from]! - gain)) +
      this.#excessCost(model.pair * (this.#pairs[to]! + gain));
    if (excess === 0) return false;
    const { received } = this.#ranks;
    const saved =
      this.#ranks.potential(from) + this.#ranks.potential(to) - this.#hiddenRowCost * (received[from]! + received[to]!);
    const hidden = (this.#hiddenRowCost + this.#hiddenHostRowCost) * (this.#widths[a]! + this.#widths[b]!);
    return excess - saved - hidden > this.#limit();
  }

  #exchange(a: number, b: number): void {
    const { assignment } = this;
    const { pairs } = this.#problem;
    const [from, to] = [assignment[a]!, assignment[b]!];
    this.#visits += this.#ranks.exchange(assignment, a, b);
    if (this.#hosts) this.#visits += this.#hosts.exchange(assignment, a, b);
    this.#pairs[from]! += pairs[b]! - pairs[a]!;
    this.#pairs[to]! += pairs[a]! - pairs[b]!;
    assignment[a] = to;
    assignment[b] = from;
  }

  #rankTime(rank: number): number {
    const { received, sent } = this.#ranks;
    const { model } = this.#problem;
    const load = { pairs: this.#pairs[rank]!, received: received[rank]!, sent: sent[rank]! };
    if (!this.#hosts) return model.rankTime(load);
    const host = Math.floor(rank / model.ranksPerHost);
    const rows = { pairs: 0, received: this.#hosts.received[host]!, sent: this.#hosts.sent[host]! };
    return model.rankTime(load, rows);
  }

  readonly #rankPotential = (rank: number): number => {
    const { model } = this.#problem;
    const [received, sent] = [this.#ranks.received[rank]!, this.#ranks.sent[rank]!];
    const time = model.rankTime({ pairs: this.#pairs[rank]!, received, sent });
    return this.#excessCost(time) + this.#hiddenRowCost * received;
  };

  /** The links of a host count as a rank of their own. */
  readonly #hostPotential = (host: number): number => {
    const { model } = this.#problem;
    const { received, sent } = this.#hosts!;
    const time = model.hostTime({ received: received[host]!, sent: sent[host]! });
    return this.#excessCost(time) + this.#hiddenHostRowCost * received[host]!;
  };

  #excessCost(time: number): number {
    const excess = Math.max(0, time / this.#targetTime - 1);
    return EXCESS_TIME_WEIGHT * excess * excess;
  }

  #list(chunk: number, rank: number): number[] {
    return this.#chunksOf[chunk < this.#problem.queryChunks ? 0 : 1]![rank]!;
  }

  /** A chunk near another one: next to it, or a few ranks' chunks away. */
  #neighbourChunk(chunk: number): number {
    const { chunks, ranks } = this.#problem;
    const side = this.#randomIndex(2) === 0 ? -1 : 1;
    const distance = 1 + this.#randomIndex(this.#randomIndex(2) === 0 ? 3 * Math.ceil(chunks / ranks) : 2);
    return Math.max(0, Math.min(chunks - 1, chunk + side * distance));
  }

  /** An integer below `count`: Knuth's linear congruential generator, its upper bits. */
  #randomIndex(count: number): number {
    this.#random = (Math.imul(this.#random, 1664525) + 1013904223) >>> 0;
    return Math.floor((this.#random / 2 ** 32) * count);
  }
}

/** How many chunks of each group require each atom, and the rows that follow. */
class RowTrafficCounter implements RowTraffic {
  readonly received: Float64Array;
  readonly sent: Float64Array;
  readonly groups: number;
  readonly #problem: DispatchProblem;
  /** Ranks of a group. */
  readonly #groupSize: number;
  /** By group and atom: of a group all atoms side by side, as a chunk requires whole stretches of them. */
  readonly #counts: Uint16Array | Int32Array;
  /** By atom: how many groups require it. */
  readonly #requiring: Int32Array;
  /** By group: its part of the potential, and what that becomes by the exchange in question. */
  readonly #potentials: Float64Array;
  readonly #proposedPotentials: Float64Array;
  readonly #isAffected: Uint8Array;
  /** Groups whose rows or pairs the exchange changes. */
  readonly #affected: Int32Array;
  #touchedCount = 0;
  /** Room for a list of intervals. */
  readonly #intervals: Int32Array;

  // oxlint-disable-next-line max-params -- problem and assignment, as everywhere
  constructor(
    problem: DispatchProblem,
    assignment: Assignment,
    { rows, groups, width }: { readonly rows: RowTraffic; readonly groups: number; readonly width: number },
  ) {
    const atoms = problem.atomRows.length;
    this.#problem = problem;
    this.#groupSize = width;
    this.groups = groups;
    this.received = rows.received;
    this.sent = rows.sent;
    this.#potentials = new Float64Array(groups);
    this.#proposedPotentials = new Float64Array(groups);
    this.#isAffected = new Uint8Array(groups);
    this.#affected = new Int32Array(groups);
    const most = problem.required.reduce((length, each) => Math.max(length, each.length), 0);
    this.#intervals = new Int32Array(2 * most);
    const counts = problem.queryChunks > 0xffff ? new Int32Array(groups * atoms) : new Uint16Array(groups * atoms);
    this.#counts = counts;
    this.#requiring = new Int32Array(atoms);
    for (let chunk = 0; chunk < problem.queryChunks; chunk++) {
      const base = Math.floor(assignment[chunk]! / width) * atoms;
      const intervals = problem.required[chunk]!;
      for (let i = 0; i < intervals.length; i += 2)
        for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++)
          if (++counts[base + atom]! === 1) this.#requiring[atom]!++;
    }
  }

  start(potential: (group: number) => number): void {
    for (let group = 0; group < this.groups; group++) this.#potentials[group] = potential(group);
  }

  /** By how much the exchanges since the last `keep` or `forget` change the potential. */
  potentialChange(potential: (group: number) => number): number {
    let change = 0;
    for (let i = 0; i < this.#touchedCount; i++) {
      const group = this.#affected[i]!;
      this.#proposedPotentials[i] = potential(group);
      change += this.#proposedPotentials[i]! - this.#potentials[group]!;
    }
    return change;
  }

  potential(group: number): number {
    return this.#potentials[group]!;
  }

  commit(): void {
    for (let i = 0; i < this.#touchedCount; i++) this.#potentials[this.#affected[i]!] = this.#proposedPotentials[i]!;
    this.rollBack();
  }

  rollBack(): void {
    for (let i = 0; i < this.#touchedCount; i++) this.#isAffected[this.#affected[i]!] = 0;
    this.#touchedCount = 0;
  }

  /** Exchanges the ranks of two chunks, of the assignment as it is before; returns how many atoms that visits. */
  exchange(assignment: Assignment, a: number, b: number): number {
    const [from, to] = [Math.floor(assignment[a]! / this.#groupSize), Math.floor(assignment[b]! / this.#groupSize)];
    this.#markAffected(from);
    this.#markAffected(to);
    if (from === to) return 1;
    const { required, owned } = this.#problem;
    return (
      EXCHANGE_VISITS +
      this.#moveRequired(assignment, [required[a]!, required[b]!], { from, to }) +
      this.#moveRequired(assignment, [required[b]!, required[a]!], { from: to, to: from }) +
      this.#moveOwned(owned[a]!, { from, to }) +
      this.#moveOwned(owned[b]!, { from: to, to: from })
    );
  }

  /** What the first chunk requires and the second does not: chunks of one document differ in few atoms. */
  #moveRequired(
    assignment: Assignment,
    [required, kept]: readonly [Int32Array, Int32Array],
    { from, to }: Readonly<Record<"from" | "to", number>>,
  ): number {
    const { atomRows, atomOwner } = this.#problem;
    const { received, sent } = this;
    const [counts, requiring, width] = [this.#counts, this.#requiring, this.#groupSize];
    const [fromBase, toBase] = [from * atomRows.length, to * atomRows.length];
    const intervals = this.#intervals;
    const length = subtractIntervals(required, kept, intervals);
    let visited = 0;
    for (let i = 0; i < length; i += 2) {
      const end = intervals[i + 1]!;
      visited += end - intervals[i]!;
      for (let atom = intervals[i]!; atom < end; atom++) {
        const isLast = --counts[fromBase + atom]! === 0;
        const isFirst = ++counts[toBase + atom]! === 1;
        if (!isLast && !isFirst) continue;
        const ofRank = assignment[atomOwner[atom]!]!;
        const owner = width === 1 ? ofRank : Math.floor(ofRank / width);
        const rows = atomRows[atom]!;
        requiring[atom]! += Number(isFirst) - Number(isLast);
        if (isLast && owner !== from) {
          received[from]! -= rows;
          sent[owner]! -= rows;
          this.#markAffected(owner);
        }
        if (isFirst && owner !== to) {
          received[to]! += rows;
          sent[owner]! += rows;
          this.#markAffected(owner);
        }
      }
    }
    return visited;
  }

  #moveOwned(intervals: Int32Array, { from, to }: Readonly<Record<"from" | "to", number>>): number {
    const { atomRows } = this.#problem;
    const { received, sent } = this;
    const [fromBase, toBase] = [from * atomRows.length, to * atomRows.length];
    let visited = 0;
    for (let i = 0; i < intervals.length; i += 2) {
      visited += intervals[i + 1]! - intervals[i]!;
      for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) {
        const requiring = this.#requiring[atom]!;
        const rows = atomRows[atom]!;
        const [byFrom, byTo] = [this.#counts[fromBase + atom]! > 0, this.#counts[toBase + atom]! > 0];
        sent[from]! -= rows * (requiring - Number(byFrom));
        sent[to]! += rows * (requiring - Number(byTo));
        if (byFrom) received[from]! += rows;
        if (byTo) received[to]! -= rows;
      }
    }
    return visited;
  }

  #markAffected(group: number): void {
    if (this.#isAffected[group]) return;
    this.#isAffected[group] = 1;
    this.#affected[this.#touchedCount++] = group;
  }
}

/** The parts of ascending intervals that are in none of others, into `out`; returns the length of that list. */
function subtractIntervals(intervals: Int32Array, others: Int32Array, out: Int32Array): number {
  let [k, length] = [0, 0];
  for (let i = 0; i < intervals.length; i += 2) {
    let start = intervals[i]!;
    const end = intervals[i + 1]!;
    while (k < others.length && others[k + 1]! <= start) k += 2;
    for (let j = k; j < others.length && others[j]! < end; j += 2) {
      if (others[j]! > start) {
        out[length++] = start;
        out[length++] = others[j]!;
      }
      start = Math.max(start, others[j + 1]!);
    }
    if (start >= end) continue;
    out[length++] = start;
    out[length++] = end;
  }
  return length;
}
