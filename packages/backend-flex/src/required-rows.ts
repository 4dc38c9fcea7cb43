import { hasDiagonalEnd, hasDiagonalStart, type RowRange, type Slice, type Span } from "@mosaic/core";
import { visibleRowsUnchecked } from "@mosaic/core/context-parallel";
import type { PeerRows } from "./stage-time.ts";

// Computes the keys that queries attend to, and their rows in the shards of ranks. Works on intervals, not on single
// rows, unless the result itself consists of single rows.

/** The positions start + i · step + [0, width) for i < count, with width < step: `width` of every `step` positions. */
interface Band {
  readonly start: number;
  readonly width: number;
  readonly step: number;
  readonly count: number;
}

/** A set of global positions: disjoint ascending intervals, and bands, which may overlap. */
export interface VisiblePositions {
  /** Each is [start, end). */
  readonly intervals: readonly (readonly [number, number])[];
  readonly bands: readonly Band[];
}

/**
 * Returns the keys that any of the queries attends to. The result is exact. The rows of a span within a slice are
 * consecutive elements of the span, and the bounds of their keys are either constant or move with the row. The union of
 * their keys is therefore an interval, unless both bounds move and are less than a step of the span apart.
 */
export function visibleKeys(queries: readonly Span[], mask: readonly Slice[]): VisiblePositions {
  const intervals: [number, number][] = [];
  const bands: Band[] = [];
  for (const slice of mask) {
    const { q0, q1, k0, k1, type } = slice;
    const [isStartDiagonal, isEndDiagonal] = [hasDiagonalStart(type), hasDiagonalEnd(type)];
    for (const span of queries) {
      if (span.start >= q1 || span.length === 0) continue;
      const { start: first, length: count, step } = visibleRowsUnchecked(span, slice);
      if (count === 0) continue;
      const last = first + (count - 1) * step;
      const start = k0 + (isStartDiagonal ? first - q0 : 0);
      const width = k1 - k0 - (q1 - q0) + 1; // number of keys of a row if both bounds move
      if (isStartDiagonal && isEndDiagonal && width < step && count > 1) bands.push({ start, width, step, count });
      else intervals.push([start, k1 - (isEndDiagonal ? q1 - 1 - last : 0)]);
    }
  }
  return { intervals: mergeIntervals(intervals), bands };
}

/**
 * Returns the queries that attend to any of the keys; the counterpart of `visibleKeys`. The result is exact for spans
 * of keys with step 1. For other spans, it may include queries that attend to none of the keys.
 */
export function attendingQueries(keys: readonly Span[], mask: readonly Slice[]): VisiblePositions {
  const intervals: [number, number][] = [];
  for (const { q0, q1, k0, k1, type } of mask) {
    if (k0 >= k1 || q0 >= q1 || (type === "bidirectionalCausal" && k1 - k0 < q1 - q0)) continue;
    for (const span of keys) {
      const first = Math.max(span.start, k0);
      const last = Math.min(span.start + (span.length - 1) * span.step, k1 - 1);
      if (first > last) continue;
      // A bound of the keys that moves with the row limits the rows to those before, or after, the one at which it
      // passes a key.
      const start = hasDiagonalEnd(type) ? Math.max(q0, q1 - k1 + first) : q0;
      const end = hasDiagonalStart(type) ? Math.min(q1, q0 + last - k0 + 1) : q1;
      if (start < end) intervals.push([start, end]);
    }
  }
  return { intervals: mergeIntervals(intervals), bands: [] };
}

/**
 * Returns the union of intervals [start, end) as ascending, disjoint intervals. Sorts the passed intervals, and may
 * extend them in place.
 */
export function mergeIntervals(intervals: [number, number][]): [number, number][] {
  intervals.sort((a, b) => a[0] - b[0]);
  const mergedIntervals: [number, number][] = [];
  for (const [start, end] of intervals) {
    const last = mergedIntervals.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else mergedIntervals.push([start, end]);
  }
  return mergedIntervals;
}

/** A span of a rank's shard, and the local row of its first position. */
interface OwnedSpan extends Span {
  readonly owner: number;
  readonly firstRow: number;
}

/** The shards of all ranks of an axis, used to find the owner and the local row of positions. */
export class RowOwners {
  readonly size: number;
  /** Spans of step 1, in ascending order of positions. */
  readonly #denseSpans: OwnedSpan[] = [];
  readonly #stridedSpans: OwnedSpan[] = [];

  constructor(shards: readonly (readonly Span[])[]) {
    this.size = shards.length;
    for (const [owner, spans] of shards.entries()) {
      let row = 0;
      for (const span of spans) {
        if (span.length > 0)
          (span.step === 1 || span.length === 1 ? this.#denseSpans : this.#stridedSpans).push({
            ...span,
            owner,
            firstRow: row,
          });
        row += span.length;
      }
    }
    this.#denseSpans.sort((a, b) => a.start - b.start);
  }

  /** Returns the rows of all ranks other than `rank` that hold one of the positions. */
  collectRequiredRows({ intervals, bands }: VisiblePositions, rank: number, order?: OwnerOrder): RequiredRows {
    const collector = new RowCollector(rank);
    for (const [start, end] of intervals) {
      this.#collectInterval(collector, start, end);
      for (const span of this.#stridedSpans) collectRows(collector, span, start, end);
    }
    for (const band of bands) {
      this.#collectDense(collector, band);
      for (const span of this.#stridedSpans) collectStrided(collector, band, span);
    }
    return collector.finish(order ?? descendingOwnerOrder(rank, this.size));
  }

  #collectInterval(collector: RowCollector, start: number, end: number): void {
    for (let i = this.#firstSpanEndingAfter(start); i < this.#denseSpans.length; i++) {
      const span = this.#denseSpans[i]!;
      if (span.start >= end) return;
      collectRows(collector, span, start, end);
    }
  }

  #collectDense(collector: RowCollector, { start, width, step, count }: Band): void {
    const first = this.#denseSpans[0];
    if (first === undefined) return;
    const last = this.#denseSpans.at(-1)!;
    const startIndex = Math.max(0, Math.floor((first.start - start - width) / step));
    const endIndex = Math.min(count, Math.ceil((last.start + last.length - start) / step));
    for (let i = startIndex; i < endIndex; i++)
      this.#collectInterval(collector, start + i * step, start + i * step + width);
  }

  /** Returns the index of the first dense span that contains a position or starts after it. */
  #firstSpanEndingAfter(position: number): number {
    let [low, high] = [0, this.#denseSpans.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const { start, length } = this.#denseSpans[middle]!;
      if (start + length > position) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function collectRows(
  collector: RowCollector,
  { owner, firstRow: row, start, length, step }: OwnedSpan,
  intervalStart: number,
  intervalEnd: number,
): void {
  const first = Math.max(0, Math.ceil((intervalStart - start) / step));
  const end = Math.min(length, Math.ceil((intervalEnd - start) / step));
  if (first < end) collector.add(owner, row + first, end - first);
}

/**
 * Collects the rows of a strided span that are in a band. If the span's step is a multiple of the band's, either all of
 * its positions within the band's extent are in the band or none is. Otherwise the intervals of the band are looked up
 * one by one.
 */
function collectStrided(collector: RowCollector, { start, width, step, count }: Band, span: OwnedSpan): void {
  if (span.step % step === 0) {
    const offset = (((span.start - start) % step) + step) % step;
    if (offset < width) collectRows(collector, span, start, start + count * step);
    return;
  }
  for (let i = 0; i < count; i++) collectRows(collector, span, start + i * step, start + i * step + width);
}

/** Collects ranges of rows by owner. Ranges may be added in any order and may overlap. */
class RowCollector {
  readonly #rank: number;
  readonly #collectedRanges: (readonly [owner: number, start: number, length: number])[] = [];

  constructor(rank: number) {
    this.#rank = rank;
  }

  add(owner: number, start: number, length: number): void {
    if (owner !== this.#rank) this.#collectedRanges.push([owner, start, length]);
  }

  finish(order: OwnerOrder): RequiredRows {
    this.#collectedRanges.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const [owners, starts, ends]: [number[], number[], number[]] = [[], [], []];
    for (const [owner, start, length] of this.#collectedRanges) {
      const lastIndex = starts.length - 1;
      if (lastIndex >= 0 && owners[lastIndex] === owner && start <= ends[lastIndex]!)
        ends[lastIndex] = Math.max(ends[lastIndex]!, start + length);
      else {
        owners.push(owner);
        starts.push(start);
        ends.push(start + length);
      }
    }
    return new RequiredRows(order, { owners, starts, ends });
  }
}

/** The order in which the rows of other ranks are received: a permutation of their owners, with indices from 0. */
export interface OwnerOrder {
  readonly size: number;
  ownerAt(index: number): number;
  orderIndex(owner: number): number;
}

/**
 * Returns the order that starts with the rank before this one and descends around the axis, so that not all ranks
 * receive from the same owner at the same time.
 */
export function descendingOwnerOrder(rank: number, size: number): OwnerOrder {
  return {
    size,
    ownerAt: (index) => (rank - 1 - index + size) % size,
    orderIndex: (owner) => (rank - 1 - owner + size) % size,
  };
}

/** A cut in required rows: before local row `row` of the owner at index `runIndex` of the order. */
export interface RowCut {
  readonly runIndex: number;
  readonly row: number;
}

const emptyRanges: readonly RowRange[] = [];

/**
 * Cache of recent ranges, indexed by a hash. Among a thousand ranks there are millions of ranges with few distinct
 * values.
 */
const cachedRanges: (readonly RowRange[])[] = [];

function singleRange(start: number, length: number): readonly RowRange[] {
  const hash = (Math.imul(start, 0x9e37_79b1) ^ Math.imul(length, 0x85eb_ca6b)) >>> 24;
  const cachedRange = cachedRanges[hash];
  if (cachedRange && cachedRange[0]!.start === start && cachedRange[0]!.length === length) return cachedRange;
  return (cachedRanges[hash] = [{ start, length }]);
}

/**
 * The rows of other ranks that one rank requires, in the order in which it receives them: by owner, and ascending for
 * each owner. Stored in typed arrays because a thousand ranks have a million such lists.
 */
export class RequiredRows {
  /** Total number of rows. */
  readonly count: number;
  readonly #order: OwnerOrder;
  readonly #starts: Int32Array;
  readonly #lengths: Int32Array;
  /** By owner: the index of its first range. */
  readonly #ranges: Int32Array;
  /** By index in the order: the number of rows of preceding owners. */
  readonly #rowsBefore: Int32Array;

  constructor(order: OwnerOrder, { owners, starts, ends }: { owners: number[]; starts: number[]; ends: number[] }) {
    this.#order = order;
    const { size } = order;
    this.#starts = Int32Array.from(starts);
    this.#lengths = Int32Array.from(starts, (start, i) => ends[i]! - start);
    this.#ranges = new Int32Array(size + 1);
    for (const owner of owners) this.#ranges[owner + 1]!++;
    for (let owner = 0; owner < size; owner++) this.#ranges[owner + 1]! += this.#ranges[owner]!;
    this.#rowsBefore = new Int32Array(size + 1);
    for (let position = 0; position < size; position++) {
      this.#rowsBefore[position + 1] = this.#rowsBefore[position]! + this.#rowsOfOwner(order.ownerAt(position));
    }
    this.count = this.#rowsBefore[size]!;
  }

  /** Returns the rows that at least one of several ranks requires. */
  static union(order: OwnerOrder, rowsByRank: readonly RequiredRows[]): RequiredRows {
    const collector = new RowCollector(-1);
    for (const each of rowsByRank) {
      for (let owner = 0; owner < order.size; owner++) {
        for (let i = each.#ranges[owner]!; i < each.#ranges[owner + 1]!; i++)
          collector.add(owner, each.#starts[i]!, each.#lengths[i]!);
      }
    }
    return collector.finish(order);
  }

  /** Returns the cut after the first `rows` rows. */
  cutAt(rows: number): RowCut {
    const { size } = this.#order;
    if (rows >= this.count) return { runIndex: size, row: 0 };
    let runIndex = 0;
    while (this.#rowsBefore[runIndex + 1]! <= rows) runIndex++;
    const [nextRange] = this.ranges(this.#order.ownerAt(runIndex), rows, rows + 1);
    return { runIndex, row: nextRange!.start };
  }

  /** Returns the number of rows before a cut. */
  countBefore({ runIndex, row }: RowCut): number {
    let count = this.#rowsBefore[runIndex]!;
    if (runIndex === this.#order.size) return count;
    const owner = this.#order.ownerAt(runIndex);
    for (let i = this.#ranges[owner]!; i < this.#ranges[owner + 1]!; i++)
      count += Math.max(0, Math.min(this.#lengths[i]!, row - this.#starts[i]!));
    return count;
  }

  /** Returns the rows of the owners for which `predicate` is true. */
  filter(predicate: (owner: number) => boolean): RequiredRows {
    const [owners, starts, ends]: [number[], number[], number[]] = [[], [], []];
    for (let owner = 0; owner < this.#order.size; owner++) {
      if (!predicate(owner)) continue;
      for (let i = this.#ranges[owner]!; i < this.#ranges[owner + 1]!; i++) {
        owners.push(owner);
        starts.push(this.#starts[i]!);
        ends.push(this.#starts[i]! + this.#lengths[i]!);
      }
    }
    return new RequiredRows(this.#order, { owners, starts, ends });
  }

  /** Returns the number of rows from one owner. */
  numRowsFrom(owner: number): number {
    const position = this.#order.orderIndex(owner);
    return this.#rowsBefore[position + 1]! - this.#rowsBefore[position]!;
  }

  /** Returns, for each owner in receiving order, the number of rows and the number of ranges that contain them. */
  peers(): Omit<PeerRows, "pairs">[] {
    const peers: Omit<PeerRows, "pairs">[] = [];
    for (let position = 0; position < this.#order.size; position++) {
      const rows = this.#rowsBefore[position + 1]! - this.#rowsBefore[position]!;
      if (rows === 0) continue;
      const owner = this.#order.ownerAt(position);
      peers.push({ owner, rows, ranges: this.#ranges[owner + 1]! - this.#ranges[owner]! });
    }
    return peers;
  }

  /**
   * Returns the part of the rows [startRow, endRow) from one owner, as ascending, disjoint ranges of its local rows.
   */
  ranges(owner: number, startRow: number, endRow: number): readonly RowRange[] {
    const position = this.#order.orderIndex(owner);
    let rowsBefore = this.#rowsBefore[position]!;
    if (rowsBefore >= endRow || this.#rowsBefore[position + 1]! <= startRow) return emptyRanges;
    const firstRange = this.#ranges[owner]!;
    if (this.#ranges[owner + 1] === firstRange + 1) {
      const [start, length] = [this.#starts[firstRange]!, this.#lengths[firstRange]!];
      const numSkippedRows = Math.max(0, startRow - rowsBefore);
      const count = Math.min(length, endRow - rowsBefore) - numSkippedRows;
      return count > 0 ? singleRange(start + numSkippedRows, count) : emptyRanges;
    }
    const ranges: RowRange[] = [];
    for (let i = this.#ranges[owner]!; i < this.#ranges[owner + 1]!; i++) {
      const [start, length] = [this.#starts[i]!, this.#lengths[i]!];
      const first = Math.max(0, startRow - rowsBefore);
      const end = Math.min(length, endRow - rowsBefore);
      if (first < end) ranges.push({ start: start + first, length: end - first });
      rowsBefore += length;
    }
    return ranges;
  }

  /** Returns the owners of the rows [startRow, endRow), ascending: the order of received rows in memory. */
  owners(startRow: number, endRow: number): number[] {
    const owners: number[] = [];
    for (let position = 0; position < this.#order.size; position++) {
      const [rowsBefore, rowsThrough] = [this.#rowsBefore[position]!, this.#rowsBefore[position + 1]!];
      if (rowsBefore < rowsThrough && rowsBefore < endRow && rowsThrough > startRow)
        owners.push(this.#order.ownerAt(position));
    }
    return owners.sort((a, b) => a - b);
  }

  #rowsOfOwner(owner: number): number {
    let rows = 0;
    for (let i = this.#ranges[owner]!; i < this.#ranges[owner + 1]!; i++) rows += this.#lengths[i]!;
    return rows;
  }
}
