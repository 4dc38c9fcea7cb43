import { type Coordinate, coordinateOf, type Layout, type Span, spansLength } from "@mosaic/core";

/** Consecutive rows of one shard. */
export interface Segment {
  readonly shard: number;
  readonly first: number;
  readonly count: number;
}

/** A span of some shard, and the index in the shard of its first row. */
interface ShardSpan extends Span {
  readonly shard: number;
  readonly firstRow: number;
}

/**
 * The shards of a layout by number, row-major over its axes, and the shard and row of each position. Translations move
 * shards, and with them positions, whatever the placement.
 */
export class Shards {
  readonly layout: Layout;
  readonly count: number;
  readonly #shape: Coordinate;
  readonly #numRows: number[] = [];
  /** Spans from left to right, by step and by the start modulo the step. */
  #spansByStep: Map<number, Map<number, ShardSpan[]>> | undefined;

  constructor(layout: Layout, mesh: Coordinate) {
    this.layout = layout;
    this.#shape = Object.fromEntries(layout.axes.map((axis) => [axis, mesh[axis]!]));
    this.count = Object.values(this.#shape).reduce((product, length) => product * length, 1);
  }

  spans(shard: number): readonly Span[] {
    return this.layout.spans(coordinateOf(shard, this.#shape));
  }

  numRows(shard: number): number {
    return (this.#numRows[shard] ??= spansLength(this.spans(shard)));
  }

  /** Returns all spans from left to right if all have this step, else undefined. */
  spansWithStep(step: number): readonly (Span & { readonly shard: number })[] | undefined {
    const spansByStep = this.#indexSpans();
    if (spansByStep.size !== 1 || !spansByStep.has(step)) return undefined;
    return [...spansByStep.get(step)!.values()].flat();
  }

  /** Returns the rows of shards at these positions, in order; undefined if a position belongs to no shard. */
  findSegments(spans: readonly Span[]): Segment[] | undefined {
    const segments: Segment[] = [];
    for (const { start, length, step } of spans) {
      let [position, remaining] = [start, length];
      while (remaining > 0) {
        const shardSpan = this.#findSpan(position);
        if (!shardSpan) return undefined;
        const row = (position - shardSpan.start) / shardSpan.step;
        // Rows with the step of the shard's span continue together; others are looked up one by one.
        const count = step === shardSpan.step ? Math.min(remaining, shardSpan.length - row) : 1;
        const last = segments.at(-1);
        const first = shardSpan.firstRow + row;
        if (last?.shard === shardSpan.shard && last.first + last.count === first) {
          segments[segments.length - 1] = { ...last, count: last.count + count };
        } else segments.push({ shard: shardSpan.shard, first, count });
        remaining -= count;
        position += count * step;
      }
    }
    return segments;
  }

  /** Returns the positions of the rows of a segment, in order. */
  segmentSpans({ shard, first, count }: Segment): Span[] {
    const spans: Span[] = [];
    let row = 0;
    for (const { start, length, step } of this.spans(shard)) {
      const firstRow = Math.max(first, row);
      const end = Math.min(first + count, row + length);
      if (firstRow < end) spans.push({ start: start + (firstRow - row) * step, length: end - firstRow, step });
      row += length;
    }
    return spans;
  }

  #findSpan(position: number): ShardSpan | undefined {
    for (const [step, spansByRemainder] of this.#indexSpans()) {
      const spans = spansByRemainder.get(position % step);
      if (!spans) continue;
      let [low, high] = [0, spans.length];
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (spans[middle]!.start <= position) low = middle;
        else high = middle;
      }
      const { start, length } = spans[low]!;
      if (start <= position && position <= start + (length - 1) * step) return spans[low];
    }
    return undefined;
  }

  #indexSpans(): Map<number, Map<number, ShardSpan[]>> {
    if (this.#spansByStep) return this.#spansByStep;
    const spansByStep = new Map<number, Map<number, ShardSpan[]>>();
    for (let shard = 0; shard < this.count; shard++) {
      let row = 0;
      for (const span of this.spans(shard)) {
        const { length } = span;
        // The step of a single position is arbitrary.
        const step = length > 1 ? span.step : 1;
        if (length > 0) {
          const spansByRemainder = getOrCreate(spansByStep, step, () => new Map<number, ShardSpan[]>());
          getOrCreate(spansByRemainder, span.start % step, (): ShardSpan[] => []).push({
            ...span,
            step,
            shard,
            firstRow: row,
          });
        }
        row += length;
      }
    }
    for (const spansByRemainder of spansByStep.values()) {
      for (const list of spansByRemainder.values()) list.sort((a, b) => a.start - b.start);
    }
    this.#spansByStep = spansByStep;
    return spansByStep;
  }
}

function getOrCreate<K, V>(map: Map<K, V>, key: K, create: () => V): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = create()));
  return value;
}
