import { type Span, spansLength } from "@mosaic/core";
import type { InternPool } from "../symbolic/intern-pool.ts";

/** Maximum number of spans of a list whose subsets are cached. */
const MAX_CACHED_SPANS = 16;

/** A range of rows of a position list. */
export interface PositionRange {
  readonly positions: PositionList;
  readonly first: number;
  readonly count: number;
}

/** Global positions of some rows, in order. Equal span lists of one table are one object. */
export class PositionList {
  /** Number of the span list in the intern pool. */
  readonly id: number;
  readonly spans: readonly Span[];
  readonly length: number;
  readonly #table: PositionTable;
  /** The same positions in ascending order, with adjacent spans merged, because counts do not depend on the order. */
  readonly sortedSpans: readonly Span[];
  /** First position; `end` is the one after the last. */
  readonly first: number;
  readonly end: number;
  #subsets: Map<number, PositionList> | undefined;
  #firstRows: Float64Array | undefined;
  #runs: string | undefined;

  constructor(table: PositionTable, id: number, spans: readonly Span[]) {
    this.#table = table;
    this.id = id;
    this.spans = spans;
    this.length = spansLength(spans);
    this.sortedSpans = sortedSpans(spans);
    this.first = this.sortedSpans[0]?.start ?? 0;
    this.end = this.sortedSpans.reduce(
      (end, { start, length, step }) => Math.max(end, start + (length - 1) * step + 1),
      0,
    );
  }

  /** Returns `count` positions, from index `first` on. */
  subset(first: number, count: number): PositionList {
    if (first === 0 && count === this.length) return this;
    const key = first * (this.length + 1) + count;
    let subset = this.#subsets?.get(key);
    if (!subset) {
      subset = this.#table.fromSpans(this.#slice(first, count));
      // A rank's share of rows from a thousand ranks is cut a thousand times, and each part is used once. Such parts
      // are not cached.
      if (this.spans.length <= MAX_CACHED_SPANS) (this.#subsets ??= new Map<number, PositionList>()).set(key, subset);
    }
    return subset;
  }

  /** Concatenates ranges of several lists. */
  static concatenate(ranges: readonly PositionRange[]): PositionList {
    const [{ positions, first, count }] = ranges as [PositionRange];
    if (ranges.length === 1) return positions.subset(first, count);
    const spans: Span[] = [];
    for (const range of ranges)
      for (const span of range.positions.#spansOf(range.first, range.count)) appendSpan(spans, span);
    return positions.#table.fromSpans(spans);
  }

  #spansOf(first: number, count: number): readonly Span[] {
    return first === 0 && count === this.length ? this.spans : this.#slice(first, count);
  }

  #slice(first: number, count: number): readonly Span[] {
    const { spans } = this;
    const slicedSpans: Span[] = [];
    for (let i = this.#spanAt(first); i < spans.length; i++) {
      const { start, length, step } = spans[i]!;
      const row = this.#rowOfSpan(i);
      if (row >= first + count) break;
      const firstRow = Math.max(first, row);
      const end = Math.min(first + count, row + length);
      if (firstRow < end) slicedSpans.push({ start: start + (firstRow - row) * step, length: end - firstRow, step });
    }
    return slicedSpans;
  }

  /** Returns the index of the span that contains a row. */
  #spanAt(row: number): number {
    let [low, high] = [0, this.spans.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#rowOfSpan(middle) <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Returns the index of the first row of a span. */
  #rowOfSpan(i: number): number {
    if (!this.#firstRows) {
      this.#firstRows = new Float64Array(this.spans.length);
      for (let index = 1; index < this.spans.length; index++)
        this.#firstRows[index] = this.#firstRows[index - 1]! + this.spans[index - 1]!.length;
    }
    return this.#firstRows[i]!;
  }

  /** Whether another list has the same positions in the same order, regardless of how both are divided into spans. */
  equals(other: PositionList): boolean {
    return this === other || (this.length === other.length && this.#canonicalRuns() === other.#canonicalRuns());
  }

  #canonicalRuns(): string {
    return (this.#runs ??= canonicalRuns(this.spans));
  }
}

/** All position lists of a proof, by the numbers that tapes use. */
export class PositionTable {
  readonly #interned: InternPool;
  readonly #cache: (PositionList | undefined)[] = [];

  constructor(interned: InternPool) {
    this.#interned = interned;
  }

  fromSpans(spans: readonly Span[]): PositionList {
    return this.getById(this.#interned.rowsId(spans));
  }

  /** Returns the list with this number. */
  getById(id: number): PositionList {
    let positions = this.#cache[id];
    if (!positions) this.#cache[id] = positions = new PositionList(this, id, this.#interned.rows[id]!);
    return positions;
  }
}

function sortedSpans(spans: readonly Span[]): readonly Span[] {
  return spans.length < 2 ? spans : mergeAdjacentSpans(spans.toSorted((a, b) => a.start - b.start));
}

/** Merges adjacent spans, as in layouts. */
export function mergeAdjacentSpans(spans: readonly Span[]): readonly Span[] {
  const merged: Span[] = [];
  for (const span of spans) appendSpan(merged, span);
  return merged;
}

/** Appends a span, or extends the last one if the span continues it. */
function appendSpan(spans: Span[], span: Span): void {
  if (span.length === 0) return;
  const last = spans.at(-1);
  const isAdjacent = last?.step === span.step && last.start + last.length * last.step === span.start;
  if (isAdjacent) spans[spans.length - 1] = { ...last, length: last.length + span.length };
  else spans.push(span);
}

/**
 * Returns the positions as runs of one step each. The boundaries of runs do not depend on how the list is divided into
 * spans.
 */
function canonicalRuns(spans: readonly Span[]): string {
  const runs: number[][] = [];
  let [start, length, step] = [0, 0, 0];
  const closeRun = (): void => {
    if (length > 0) runs.push([start, length, length > 1 ? step : 1]);
    length = 0;
  };
  for (const span of spans) {
    let [nextPosition, remaining] = [span.start, span.length];
    while (remaining > 0) {
      if (length === 1 && nextPosition > start) step = nextPosition - start;
      else if (length === 0 || nextPosition !== start + length * step) {
        closeRun();
        start = nextPosition;
      }
      // One row determines the step. The rest of the span follows at once if it has the same step.
      const count = length > 0 && step === span.step ? remaining : 1;
      length += count;
      nextPosition += count * span.step;
      remaining -= count;
    }
  }
  closeRun();
  return runs.join(";");
}

/**
 * Returns the positions that two spans share: a span whose step is the least common multiple of theirs (Chinese
 * remainder theorem).
 */
export function commonPositions(a: Span, b: Span): Span | undefined {
  const low = Math.max(a.start, b.start);
  const high = Math.min(a.start + (a.length - 1) * a.step, b.start + (b.length - 1) * b.step);
  if (a.length === 0 || b.length === 0 || low > high) return undefined;
  const divisor = greatestCommonDivisor(a.step, b.step);
  if ((b.start - a.start) % divisor !== 0) return undefined;
  const step = (a.step / divisor) * b.step;
  let start = a.start + Math.ceil((low - a.start) / a.step) * a.step;
  while (start <= high && (start - b.start) % b.step !== 0) start += a.step;
  return start > high ? undefined : { start, length: Math.floor((high - start) / step) + 1, step };
}

function greatestCommonDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
