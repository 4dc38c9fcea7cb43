import { visibleKeyRange, type Slice } from "@mosaic/core";
import { hostCount } from "./assignment.ts";
import type { Level } from "./cost.ts";
import { type DispatchProblem, documentStarts, type WeightedMask } from "./problem.ts";

/** What no placement goes below, of those that cut at multiples of the chunk size and give no rank more than ⌈n/P⌉ chunks. */
export interface DispatchBounds {
  /** Most visible pairs of a rank over their mean. */
  readonly imbalance: number;
  /** Mean over ranks of the rows received, whatever the balance. */
  readonly rows: number;
  /** The same of placements whose imbalance is at most 1.01 times its bound. */
  readonly balancedRows: number;
  /** Seconds of the slowest rank. */
  readonly time: number;
  /** The objective: time and a tenth of the mean receive time. */
  readonly objective: number;
}

const BALANCE = 1.01;

/**
 * Lower bounds; M = ⌈n/P⌉ chunks are the most rows of a rank, B the most pairs.
 *
 * - Pairs: the mean; the largest chunk with the m − 1 smallest, m = ⌊n/P⌋; and of P + 1 chunks two are on one rank.
 * - Rows, causal document of length L: order ranks by the last row that they have of it, from the end. The rows behind the last
 *   one of rank j + 1 are on j ranks, hence at most j·M, with at most j·B pairs; so that rank reads h_j = max(L − j·M, √(L² − 2jB))
 *   keys at least. All keys that are read, less the L that are read where they are: Σ_{j ≥ 1} h_j are received.
 * - Window w: key k is read by every rank that has a row in [k, k + w). Of those, all ranks whose last row is in [k, k + w − 1)
 *   differ from the rank of row k + w − 1: summed over k, Σ_{j ≥ 1} min(w − 1, h_j).
 * - Full document: ⌈max(L/M, L²/B)⌉ ranks read all L keys.
 * - Any mask: the rank of chunk c reads its keys, of which it has M at most; the i-th smallest of the ranks' widest chunks is
 *   at least chunk n − (P − i)·M − 1 in order of width.
 * - The most rows R of a rank: rank j + 1 of a document has h_j − R of its L rows, or more: Σ max(0, h_j − R) ≤ L.
 * - Time: at t seconds no rank has more pairs than B = t / pair; the least t at which the rows that follow take no more than t.
 */
export function boundsOf(problem: DispatchProblem): DispatchBounds {
  const { model, totalPairs, ranks } = problem;
  const rank = new RowBounds(problem, "rank");
  const host = model.isTwoLevel ? new RowBounds(problem, "host") : undefined;
  const mostPairs = leastMostPairs(problem);
  const linkTime = (pairs: number): number => {
    const time = model.leastLinkTime(rank.most(pairs), rank.mean(pairs), "rank");
    return host ? Math.max(time, model.leastLinkTime(host.most(pairs), host.mean(pairs), "host")) : time;
  };
  let low = model.pair * mostPairs;
  const fits = (time: number): boolean => linkTime(model.pair > 0 ? time / model.pair : Infinity) <= time;
  if (!fits(low)) {
    let high = linkTime(mostPairs);
    for (let i = 0; i < 25 && high > low * 1.0001; i++) {
      const middle = (low + high) / 2;
      if (fits(middle)) high = middle;
      else low = middle;
    }
  }
  const hidden = model.hiddenRow("rank") * rank.mean(Infinity);
  return {
    imbalance: totalPairs === 0 ? 1 : (mostPairs * ranks) / totalPairs,
    rows: rank.mean(Infinity),
    balancedRows: rank.mean(mostPairs * BALANCE),
    time: low,
    objective: low + hidden + (host ? model.hiddenRow("host") * host.mean(Infinity) : 0),
  };
}

function leastMostPairs({ pairs, queryChunks, ranks, totalPairs }: DispatchProblem): number {
  const sorted = pairs.slice(0, queryChunks).sort().reverse();
  const each = Math.floor(queryChunks / ranks);
  const lightest = (count: number): number => {
    let sum = 0;
    for (let i = 0; i < count; i++) sum += sorted[queryChunks - 1 - i]!;
    return sum;
  };
  // A rank with the heaviest chunk may have that alone if there are fewer chunks than ranks.
  const most = Math.max(totalPairs / ranks, (sorted[0] ?? 0) + lightest(each - 1));
  if (queryChunks <= ranks) return most;
  return Math.max(most, sorted[ranks - 1]! + sorted[ranks]! + lightest(each - 2));
}

/** A stretch of rows of which each sees all before it, up to a window, or all. */
interface Document {
  readonly length: number;
  readonly isFull: boolean;
  /** Keys that a row sees at least, itself included, if there are so many. */
  readonly window: number;
  readonly samples: number;
}

/** Bounds of the rows that ranks, or hosts, receive if none of them has more than so many pairs. */
class RowBounds {
  readonly #groups: number;
  /** Ranks of a group. */
  readonly #width: number;
  /** Rows of a group at most. */
  readonly #rows: number;
  readonly #documents: readonly Document[];
  /** By any mask's bound: the mean, and the most. */
  readonly #widest: number;
  readonly #meanWidth: number;

  constructor(problem: DispatchProblem, level: Level) {
    const { masks, isSelf, ranks, chunkSize, queryChunks, chunks, model } = problem;
    this.#width = level === "rank" ? 1 : model.ranksPerHost;
    this.#groups = level === "rank" ? ranks : hostCount(problem);
    const keyChunks = isSelf ? chunks : chunks - queryChunks;
    this.#rows = Math.ceil(keyChunks / ranks) * chunkSize * this.#width;
    this.#documents = isSelf ? masks.flatMap(documentsOf) : [];
    const samples = masks.reduce((sum, mask) => sum + mask.samples, 0);
    const own = this.#rows * samples;
    const widths = chunkWidths(problem);
    const most = Math.ceil(queryChunks / ranks) * this.#width;
    this.#widest = Math.max(0, (widths.at(-1) ?? 0) - own);
    let sum = 0;
    for (let i = 1; i <= this.#groups; i++) {
      const chunk = queryChunks - (this.#groups - i) * most - 1;
      if (chunk >= 0) sum += Math.max(0, widths[chunk]! - own);
    }
    this.#meanWidth = sum / this.#groups;
  }

  mean(pairs: number): number {
    let rows = 0;
    for (const document of this.#documents) {
      const { length, isFull, samples } = document;
      if (isFull) rows += (this.#sharing(document, pairs) - 1) * length * samples;
      else for (let j = 1, read = 0; (read = this.#read(document, j, pairs)) > 0; j++) rows += read * samples;
    }
    return Math.max(this.#meanWidth, rows / this.#groups);
  }

  most(pairs: number): number {
    let most = Math.max(this.#widest, this.mean(pairs));
    for (const document of this.#documents) {
      const { length, isFull, samples } = document;
      if (length * samples <= most) continue;
      if (isFull) {
        const own = Math.min(this.#rows, length / this.#sharing(document, pairs));
        most = Math.max(most, (length - own) * samples);
      } else if (document.window >= length)
        most = Math.max(most, this.#mostOf(document, most / samples, pairs) * samples);
    }
    return most;
  }

  /** The most rows of one rank that has a part of a causal document, if that is more than `least`. */
  #mostOf(document: Document, least: number, pairs: number): number {
    const isPossible = (rows: number): boolean => {
      let own = 0;
      for (let j = 0; own <= document.length; j++) {
        const read = j === 0 ? document.length : this.#read(document, j, pairs);
        if (read <= rows) return true;
        own += read - rows;
      }
      return false;
    };
    if (isPossible(least)) return least;
    let [low, high] = [least, document.length];
    for (let i = 0; i < 30; i++) {
      const middle = (low + high) / 2;
      if (isPossible(middle)) high = middle;
      else low = middle;
    }
    return low;
  }

  /** Keys that the rank of the (j + 1)-th last row reads of those before it. */
  #read({ length, window, samples }: Document, j: number, pairs: number): number {
    const behind = length - j * this.#rows;
    if (window < length) return Math.max(0, Math.min(window - 1, behind));
    const most = (pairs * this.#width) / samples;
    // Of whole rows: one less than the root.
    return Math.max(behind, Math.sqrt(Math.max(0, length * length - 2 * j * most)) - 1, 0);
  }

  /** Ranks that share a full document. */
  #sharing({ length, samples }: Document, pairs: number): number {
    const most = (pairs * this.#width) / samples;
    return Math.max(1, Math.ceil(Math.max(length / this.#rows, (length * length) / most) - 1e-9));
  }
}

function chunkWidths({ queryChunks, required, atomRows }: DispatchProblem): Float64Array {
  const before = new Float64Array(atomRows.length + 1);
  for (const [atom, rows] of atomRows.entries()) before[atom + 1] = before[atom]! + rows;
  const widths = new Float64Array(queryChunks);
  for (let chunk = 0; chunk < queryChunks; chunk++) {
    const intervals = required[chunk]!;
    for (let i = 0; i < intervals.length; i += 2) widths[chunk]! += before[intervals[i + 1]!]! - before[intervals[i]!]!;
  }
  return widths.sort();
}

/** More slices of one document are not looked at: then it has no bound of its own. */
const MAX_SLICES = 2048;

function documentsOf({ slices, samples }: WeightedMask): Document[] {
  const starts = documentStarts(slices);
  const byStart = new Map<number, Slice[]>();
  for (const [i, slice] of slices.entries()) {
    const start = starts ? starts[i]! : 0;
    const same = byStart.get(start);
    if (same) same.push(slice);
    else byStart.set(start, [slice]);
  }
  return [...byStart.values()].flatMap((each) => documentOf(each, samples));
}

function documentOf(slices: readonly Slice[], samples: number): Document[] {
  const start = Math.min(...slices.map(({ q0, k0 }) => Math.min(q0, k0)));
  const end = Math.max(...slices.map(({ q1, k1 }) => Math.max(q1, k1)));
  const length = end - start;
  const { q0, q1, k0, k1, type } = slices[0]!;
  const isWhole = q0 === start && k0 === start && q1 === end && k1 === end;
  if (slices.length === 1 && isWhole && type === "full")
    return [{ length, isFull: true, window: Number.POSITIVE_INFINITY, samples }];
  if (slices.length > MAX_SLICES) return [];
  // Borders are straight between the first and last rows of slices: what a row sees is least at one of them.
  const rows = new Set([start, end - 1, ...slices.flatMap((slice) => [slice.q0, slice.q1 - 1])]);
  let window = Number.POSITIVE_INFINITY;
  for (const row of rows) {
    const seen = seenBefore(slices, row);
    if (seen < row - start + 1) window = Math.min(window, seen);
  }
  return window < 2 ? [] : [{ length, isFull: false, window, samples }];
}

/** How many keys a row sees up to itself, without a gap. */
function seenBefore(slices: readonly Slice[], row: number): number {
  const ranges = slices
    .filter(({ q0, q1 }) => q0 <= row && row < q1)
    .map((slice) => visibleKeyRange(slice, row))
    .sort((a, b) => b.end - a.end);
  let first = row + 1;
  for (const { start, end } of ranges) if (end >= first) first = Math.min(first, start);
  return row + 1 - first;
}
