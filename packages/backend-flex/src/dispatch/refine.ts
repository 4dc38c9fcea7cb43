import { type Assignment, evaluateAssignment, type GroupRows, hostCount } from "./assignment.ts";
import type { DispatchProblem } from "./problem.ts";

export interface RefineOptions {
  /** Seconds that no rank should exceed. */
  readonly goal: number;
  /** How many atoms are visited at most: work is counted, never time, so that all ranks do the same. */
  readonly work: number;
  readonly seed: number;
}

/** Price of a rank that takes twice the goal, in goals. */
const EXCESS_PRICE = 300;
/** Swaps of the slowest rank that are tried: those that come nearest to levelling a pair of ranks. */
const LEVELLING = 32;
const MAX_COMPARED = 20_000;
const DRAWN = 64;
/** Rounds without a swap after which nothing is expected of more. */
const MAX_IDLE_ROUNDS = 3;
const MIN_GAIN = 1e-12;

/**
 * Swaps chunks between ranks while that lowers a potential: the squared excess of every rank over the goal, and the price of
 * the rows that travel. By turns the slowest rank is relieved, and drawn chunks go to ranks that have a neighbour of them.
 * Numbers of chunks stay as they are. Deterministic: draws are of an own generator.
 */
export function refine(problem: DispatchProblem, start: Assignment, options: RefineOptions): Assignment {
  const search = new SwapSearch(problem, start, options);
  for (let idle = 0; search.hasWork() && idle < MAX_IDLE_ROUNDS; ) {
    idle = search.relieve() + search.attract() > 0 ? 0 : idle + 1;
  }
  return search.assignment;
}

class SwapSearch {
  readonly assignment: Assignment;
  readonly #problem: DispatchProblem;
  readonly #goal: number;
  readonly #work: number;
  #used = 0;
  #random: number;
  readonly #pairs: Float64Array;
  readonly #ranks: RowCounts;
  readonly #hosts: RowCounts | undefined;
  /** Chunks of each rank, those of queries and, if separate, of keys; and where each chunk stands there. */
  readonly #chunksOf: readonly (readonly number[][])[];
  readonly #place: Int32Array;
  readonly #potentials: Float64Array;
  readonly #hostPotentials: Float64Array;

  constructor(problem: DispatchProblem, start: Assignment, { goal, work, seed }: RefineOptions) {
    const { ranks, chunks, model } = problem;
    this.#problem = problem;
    this.assignment = start.slice();
    this.#goal = goal;
    this.#work = work;
    this.#random = seed;
    const load = evaluateAssignment(problem, start);
    this.#pairs = load.pairs;
    this.#ranks = new RowCounts(problem, start, { rows: load, groups: ranks, width: 1 });
    if (load.hosts) {
      const width = model.ranksPerHost;
      this.#hosts = new RowCounts(problem, start, { rows: load.hosts, groups: hostCount(problem), width });
    }
    this.#chunksOf = [0, 1].map(() => Array.from({ length: ranks }, () => []));
    this.#place = new Int32Array(chunks);
    for (let chunk = 0; chunk < chunks; chunk++) {
      const list = this.#list(chunk, start[chunk]!);
      this.#place[chunk] = list.length;
      list.push(chunk);
    }
    this.#potentials = Float64Array.from({ length: ranks }, (_, rank) => this.#potential(rank));
    this.#hostPotentials = Float64Array.from({ length: this.#hosts?.groups ?? 0 }, (_, host) =>
      this.#hostPotential(host),
    );
  }

  hasWork(): boolean {
    return this.#used < this.#work;
  }

  /** Swaps chunks of the slowest rank, again and again; returns how often that helped. */
  relieve(): number {
    const { ranks } = this.#problem;
    const stop = Math.min(this.#work, this.#used + this.#work / 6);
    let kept = 0;
    for (let turn = 0; turn < ranks && this.#used < stop; turn++) {
      let slowest = 0;
      for (let rank = 1; rank < ranks; rank++) if (this.#time(rank) > this.#time(slowest)) slowest = rank;
      if (this.#time(slowest) <= this.#goal) break;
      if (!this.#level(slowest) && !this.#relieveByDraws(slowest, stop)) break;
      kept++;
    }
    return kept;
  }

  /** Moves drawn chunks to ranks that own a neighbour of theirs; returns how often that helped. */
  attract(): number {
    const { chunks } = this.#problem;
    let kept = 0;
    for (let draw = 0; draw < 2 * chunks && this.#used < this.#work; draw++) {
      const chunk = this.#draw(chunks);
      const rank = this.assignment[this.#near(chunk)]!;
      if (rank === this.assignment[chunk]) continue;
      const list = this.#list(chunk, rank);
      for (let i = 0; i < list.length && i < 8; i++) {
        this.#used += 16;
        if (!this.#swap(chunk, list[(i + draw) % list.length]!)) continue;
        kept++;
        break;
      }
    }
    return kept;
  }

  /** If compute binds the rank: the swap with another one that comes nearest to giving both as much, if it helps. */
  #level(slowest: number): boolean {
    const { ranks, pairs, model } = this.#problem;
    if (model.pair * this.#pairs[slowest]! < this.#time(slowest) * 0.999) return false;
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
          if (found.length < 2 * LEVELLING) continue;
          found.sort((x, y) => x.error - y.error);
          found.length = LEVELLING;
          worst = found[LEVELLING - 1]!.error;
        }
      }
    }
    this.#used += compared;
    found.sort((x, y) => x.error - y.error);
    return found.slice(0, LEVELLING).some(({ a, b }) => this.#swap(a, b));
  }

  #relieveByDraws(slowest: number, stop: number): boolean {
    const { ranks, chunks, queryChunks } = this.#problem;
    const kinds = chunks > queryChunks ? 2 : 1;
    for (let i = 0; i < DRAWN && this.#used < stop; i++) {
      this.#used += 16;
      const own = this.#chunksOf[i % kinds]![slowest]!;
      if (own.length === 0) continue;
      const chunk = own[this.#draw(own.length)]!;
      const rank = i & 2 ? this.#draw(ranks) : this.assignment[this.#near(chunk)]!;
      const list = this.#list(chunk, rank);
      if (rank !== slowest && list.length > 0 && this.#swap(chunk, list[this.#draw(list.length)]!)) return true;
    }
    return false;
  }

  /** Swaps two chunks of different ranks if that lowers the potential; returns whether it did. */
  #swap(a: number, b: number): boolean {
    const [from, to] = [this.assignment[a]!, this.assignment[b]!];
    if (from === to) return false;
    this.#move(a, to);
    this.#move(b, from);
    const [ranks, hosts] = [this.#ranks.takeTouched(), this.#hosts?.takeTouched() ?? []];
    const isBetter = this.#difference(ranks, hosts) < -MIN_GAIN;
    if (isBetter) {
      for (const rank of ranks) this.#potentials[rank] = this.#potential(rank);
      for (const host of hosts) this.#hostPotentials[host] = this.#hostPotential(host);
      const [placeA, placeB] = [this.#place[a]!, this.#place[b]!];
      this.#list(a, from)[placeA] = b;
      this.#list(b, to)[placeB] = a;
      [this.#place[a], this.#place[b]] = [placeB, placeA];
      return true;
    }
    this.#move(a, from);
    this.#move(b, to);
    this.#ranks.takeTouched();
    this.#hosts?.takeTouched();
    return false;
  }

  #difference(ranks: readonly number[], hosts: readonly number[]): number {
    let difference = 0;
    for (const rank of ranks) difference += this.#potential(rank) - this.#potentials[rank]!;
    for (const host of hosts) difference += this.#hostPotential(host) - this.#hostPotentials[host]!;
    return difference;
  }

  #move(chunk: number, to: number): void {
    const from = this.assignment[chunk]!;
    this.#used += this.#ranks.move(this.assignment, chunk, to);
    if (this.#hosts) this.#used += this.#hosts.move(this.assignment, chunk, to);
    this.#pairs[from]! -= this.#problem.pairs[chunk]!;
    this.#pairs[to]! += this.#problem.pairs[chunk]!;
    this.assignment[chunk] = to;
  }

  #time(rank: number): number {
    const { received, sent } = this.#ranks;
    const { model } = this.#problem;
    const load = { pairs: this.#pairs[rank]!, received: received[rank]!, sent: sent[rank]! };
    if (!this.#hosts) return model.rankTime(load);
    const host = Math.floor(rank / model.ranksPerHost);
    const rows = { pairs: 0, received: this.#hosts.received[host]!, sent: this.#hosts.sent[host]! };
    return model.rankTime(load, rows);
  }

  #potential(rank: number): number {
    const { model, ranks } = this.#problem;
    const [received, sent] = [this.#ranks.received[rank]!, this.#ranks.sent[rank]!];
    const time = model.rankTime({ pairs: this.#pairs[rank]!, received, sent });
    return this.#excess(time) + (model.hiddenRow("rank") * received) / ranks / this.#goal;
  }

  /** The links of a host count as a rank of their own. */
  #hostPotential(host: number): number {
    const { model } = this.#problem;
    const { groups, received, sent } = this.#hosts!;
    const time = model.hostTime({ received: received[host]!, sent: sent[host]! });
    return this.#excess(time) + (model.hiddenRow("host") * received[host]!) / groups / this.#goal;
  }

  #excess(time: number): number {
    const excess = Math.max(0, time / this.#goal - 1);
    return EXCESS_PRICE * excess * excess;
  }

  #list(chunk: number, rank: number): number[] {
    return this.#chunksOf[chunk < this.#problem.queryChunks ? 0 : 1]![rank]!;
  }

  /** A chunk near another one: next to it, or a few ranks' chunks away. */
  #near(chunk: number): number {
    const { chunks, ranks } = this.#problem;
    const side = this.#draw(2) === 0 ? -1 : 1;
    const distance = 1 + this.#draw(this.#draw(2) === 0 ? 3 * Math.ceil(chunks / ranks) : 2);
    return Math.max(0, Math.min(chunks - 1, chunk + side * distance));
  }

  /** An integer below `count`: Knuth's linear congruential generator, its upper bits. */
  #draw(count: number): number {
    this.#random = (Math.imul(this.#random, 1664525) + 1013904223) >>> 0;
    return Math.floor((this.#random / 2 ** 32) * count);
  }
}

/** How many chunks of each group require each atom, and the rows that follow. */
class RowCounts implements GroupRows {
  readonly received: Float64Array;
  readonly sent: Float64Array;
  readonly groups: number;
  readonly #problem: DispatchProblem;
  /** Ranks of a group. */
  readonly #width: number;
  /** By atom and group: of an atom all groups side by side. */
  readonly #counts: Uint16Array;
  readonly #isTouched: Uint8Array;
  readonly #touched: number[] = [];

  // oxlint-disable-next-line max-params -- problem and assignment, as everywhere
  constructor(
    problem: DispatchProblem,
    assignment: Assignment,
    { rows, groups, width }: { readonly rows: GroupRows; readonly groups: number; readonly width: number },
  ) {
    this.#problem = problem;
    this.#width = width;
    this.groups = groups;
    this.received = rows.received;
    this.sent = rows.sent;
    this.#isTouched = new Uint8Array(groups);
    this.#counts = new Uint16Array(groups * problem.atomRows.length);
    for (let chunk = 0; chunk < problem.queryChunks; chunk++) {
      const group = Math.floor(assignment[chunk]! / width);
      const intervals = problem.required[chunk]!;
      for (let i = 0; i < intervals.length; i += 2)
        for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) this.#counts[atom * groups + group]!++;
    }
  }

  /** Groups whose rows have changed since. */
  takeTouched(): number[] {
    const touched = this.#touched.splice(0);
    for (const group of touched) this.#isTouched[group] = 0;
    return touched;
  }

  /** Gives a chunk to another rank, of the assignment as it is before; returns how many atoms that visits. */
  move(assignment: Assignment, chunk: number, toRank: number): number {
    const [from, to] = [Math.floor(assignment[chunk]! / this.#width), Math.floor(toRank / this.#width)];
    this.#touch(from);
    this.#touch(to);
    if (from === to) return 1;
    return (
      this.#moveRequired(assignment, this.#problem.required[chunk]!, { from, to }) +
      this.#moveOwned(this.#problem.owned[chunk]!, { from, to })
    );
  }

  #moveRequired(
    assignment: Assignment,
    intervals: Int32Array,
    { from, to }: Readonly<Record<"from" | "to", number>>,
  ): number {
    const { atomRows, atomOwner } = this.#problem;
    const { groups, received, sent } = this;
    const counts = this.#counts;
    let visited = 0;
    for (let i = 0; i < intervals.length; i += 2) {
      visited += intervals[i + 1]! - intervals[i]!;
      for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) {
        const ofRank = assignment[atomOwner[atom]!]!;
        const owner = this.#width === 1 ? ofRank : Math.floor(ofRank / this.#width);
        const rows = atomRows[atom]!;
        if (--counts[atom * groups + from]! === 0 && owner !== from) {
          received[from]! -= rows;
          sent[owner]! -= rows;
          this.#touch(owner);
        }
        if (++counts[atom * groups + to]! === 1 && owner !== to) {
          received[to]! += rows;
          sent[owner]! += rows;
          this.#touch(owner);
        }
      }
    }
    return visited;
  }

  #moveOwned(intervals: Int32Array, { from, to }: Readonly<Record<"from" | "to", number>>): number {
    const { atomRows } = this.#problem;
    const { groups, received, sent } = this;
    let visited = 0;
    for (let i = 0; i < intervals.length; i += 2) {
      visited += ((intervals[i + 1]! - intervals[i]!) * groups) >> 3;
      for (let atom = intervals[i]!; atom < intervals[i + 1]!; atom++) {
        const base = atom * groups;
        let requiring = 0;
        for (let at = base; at < base + groups; at++) if (this.#counts[at]! > 0) requiring++;
        const rows = atomRows[atom]!;
        const [byFrom, byTo] = [this.#counts[base + from]! > 0, this.#counts[base + to]! > 0];
        sent[from]! -= rows * (requiring - Number(byFrom));
        sent[to]! += rows * (requiring - Number(byTo));
        if (byFrom) received[from]! += rows;
        if (byTo) received[to]! -= rows;
      }
    }
    return visited;
  }

  #touch(group: number): void {
    if (this.#isTouched[group]) return;
    this.#isTouched[group] = 1;
    this.#touched.push(group);
  }
}
