import type { AttentionRecord, RecordedRank } from "../record.ts";
import type { PairCounts } from "../prove/visibility.ts";
import type { TapeReader } from "../symbolic/tape.ts";
import type { View } from "../symbolic/strided-layout.ts";
import type { Translations } from "./translations.ts";

/** Data used to compare two ranks. */
export interface TapeComparison {
  readonly record: Pick<AttentionRecord, "interned" | "groups">;
  readonly translations: Translations;
  /**
   * Counts of visible pairs, which must be equal so that kernels take equally long; undefined if times do not matter.
   */
  readonly pairs: PairCounts | undefined;
}

/**
 * Returns whether one rank does what another does, translated: the same operations in the same order on operands of
 * equal sizes, the same messages to and from the translated peers, and the same peak memory. The addresses of operands
 * and the order of peers in a batch may differ, because they affect neither the time nor the data that arrives.
 */
export function isEquivalent(first: RecordedRank, second: RecordedRank, comparison: TapeComparison): boolean {
  if (first.peakBytes !== second.peakBytes) return false;
  return new Equivalence(first, second, comparison).areTapesEqual();
}

class Equivalence {
  readonly #firstRank: RecordedRank;
  readonly #secondRank: RecordedRank;
  readonly #comparison: TapeComparison;
  readonly #translation: number;

  constructor(first: RecordedRank, second: RecordedRank, comparison: TapeComparison) {
    const { translations } = comparison;
    this.#firstRank = first;
    this.#secondRank = second;
    this.#comparison = comparison;
    const inverse = translations.inverse(translations.translationTo(first.tape.rank));
    this.#translation = translations.apply(translations.translationTo(second.tape.rank), inverse);
  }

  areTapesEqual(): boolean {
    const [a, b] = [this.#firstRank.tape.read(), this.#secondRank.tape.read()];
    for (;;) {
      const [hasNextA, hasNextB] = [advanceToOperation(a), advanceToOperation(b)];
      if (!hasNextA || !hasNextB) return hasNextA === hasNextB;
      if (a.op !== b.op || a.count !== b.count || !this.#areEqualOperations(a, b)) return false;
    }
  }

  #areEqualOperations(a: TapeReader, b: TapeReader): boolean {
    switch (a.op) {
      case "mark":
      case "wait":
        return a.arg(0) === b.arg(0);
      case "sendRecv":
      case "groupCast":
      case "groupReduce":
        return this.#areEqualGroups(a, b) && (this.#areEqualTransfers(a, b) || this.#areEqualTransfersByPeer(a, b));
      case "attend":
        return this.#areEqualViews(a, b, 0, 5) && this.#areEqualTiles(a, b, { q: 2, k: 3, rows: 5 });
      case "attendBackward":
        return this.#areEqualViews(a, b, 0, 9) && this.#areEqualTiles(a, b, { q: 3, k: 7, rows: 9 });
      case "fill":
        return this.#areEqualViews(a, b, 0, 1) && a.arg(1) === b.arg(1);
      case "compute":
        return a.arg(0) === b.arg(0) && a.arg(1) === b.arg(1) && this.#areEqualViews(a, b, 2, a.count);
      case "merge":
      case "rowDot":
      case "copy":
      case "add":
        return this.#areEqualViews(a, b, 0, a.count);
      default:
        return this.#areEqualGroups(a, b) && this.#areEqualCollectives(a, b);
    }
  }

  // oxlint-disable-next-line max-params -- two events and a range of their arguments
  #areEqualViews(a: TapeReader, b: TapeReader, first: number, end: number): boolean {
    for (let i = first; i < end; i++)
      if (!haveEqualSizes(this.#view(a, i), this.#view(b, i, this.#secondRank))) return false;
    return true;
  }

  #view(event: TapeReader, i: number, { tape }: RecordedRank = this.#firstRank): View | undefined {
    return tape.views[event.arg(i)];
  }

  /**
   * Whether kernels take equally long: sizes of operands, numbers of visible pairs and kinds of row strides are equal.
   */
  #areEqualTiles(
    a: TapeReader,
    b: TapeReader,
    argumentIndices: { readonly q: number; readonly k: number; readonly rows: number },
  ): boolean {
    for (const i of [argumentIndices.q, argumentIndices.k]) {
      const [boxA, boxB] = [this.#view(a, i)!.layout.box, this.#view(b, i, this.#secondRank)!.layout.box];
      for (let axis = 0; axis < 4; axis++) if (boxA.sizes[axis] !== boxB.sizes[axis]) return false;
      const [width, rowAxis] = [boxA.sizes[3]!, 2];
      if (boxA.strides[rowAxis]! > width !== boxB.strides[rowAxis]! > width) return false;
    }
    const { pairs } = this.#comparison;
    const countTilePairs = (event: TapeReader) =>
      pairs?.count(
        event.arg(argumentIndices.rows),
        event.arg(argumentIndices.rows + 1),
        event.arg(argumentIndices.rows + 2),
      );
    return countTilePairs(a) === countTilePairs(b);
  }

  /** Compares work, family of the group, and label. */
  #areEqualGroups(a: TapeReader, b: TapeReader): boolean {
    const { groups } = this.#comparison.record;
    return a.arg(0) === b.arg(0) && groups[a.arg(1)]!.family === groups[b.arg(1)]!.family && a.arg(2) === b.arg(2);
  }

  #areEqualTransfers(a: TapeReader, b: TapeReader): boolean {
    for (let i = 3; i < a.count; i += 3) if (!this.#areEqualMessages(a, i, b, i)) return false;
    return true;
  }

  // oxlint-disable-next-line max-params -- two messages, each by its event and index
  #areEqualMessages(a: TapeReader, i: number, b: TapeReader, j: number): boolean {
    if (b.arg(j) !== this.#translateRank(a.arg(i)) || a.arg(i + 1) !== b.arg(j + 1)) return false;
    return haveEqualSizes(this.#view(a, i + 2), this.#view(b, j + 2, this.#secondRank));
  }

  /**
   * As `#areEqualTransfers`, peer by peer. Messages in one direction to one peer are ordered; messages to different
   * peers are not.
   */
  #areEqualTransfersByPeer(a: TapeReader, b: TapeReader): boolean {
    const transfersByPeer = new Map<number, number[]>();
    const transferKey = (peer: number, direction: number): number => 2 * peer + direction;
    for (let j = 3; j < b.count; j += 3) {
      const key = transferKey(b.arg(j), b.arg(j + 1));
      const transferIndices = transfersByPeer.get(key);
      if (transferIndices) transferIndices.push(j);
      else transfersByPeer.set(key, [j]);
    }
    for (let i = 3; i < a.count; i += 3) {
      const j = transfersByPeer.get(transferKey(this.#translateRank(a.arg(i)), a.arg(i + 1)))?.shift();
      if (j === undefined || !this.#areEqualMessages(a, i, b, j)) return false;
    }
    return true;
  }

  /**
   * Compares the number of the call, the operands, and the counts of each member. Members, and the root of a broadcast,
   * are translated.
   */
  #areEqualCollectives(a: TapeReader, b: TapeReader): boolean {
    if (a.arg(3) !== b.arg(3) || !this.#areEqualViews(a, b, 4, 6)) return false;
    const { groups } = this.#comparison.record;
    const [ranksA, ranksB] = [groups[a.arg(1)]!.ranks, groups[b.arg(1)]!.ranks];
    const indicesInB = ranksA.map((rank) => ranksB.indexOf(this.#translateRank(rank)));
    const isRooted = a.op === "broadcast";
    if (isRooted ? indicesInB[a.arg(6)] !== b.arg(6) : a.arg(6) !== b.arg(6)) return false;
    for (let i = 7; i < a.count; i++) {
      const [side, member] = [Math.floor((i - 7) / ranksA.length), (i - 7) % ranksA.length];
      if (a.arg(i) !== b.arg(7 + side * ranksA.length + indicesInB[member]!)) return false;
    }
    return true;
  }

  #translateRank(rank: number): number {
    return this.#comparison.translations.apply(this.#translation, rank);
  }
}

/** Advances to the next event that is not an allocation or a free, because ranks may allocate memory differently. */
function advanceToOperation(event: TapeReader): boolean {
  while (event.next()) if (event.op !== "empty" && event.op !== "free") return true;
  return false;
}

function haveEqualSizes(a: View | undefined, b: View | undefined): boolean {
  return a === b || (a?.dtype === b?.dtype && a?.layout.size === b?.layout.size);
}
