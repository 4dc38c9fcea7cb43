import { contiguous, type Span, spansLength } from "@mosaic/core";

/** Some rows of a shard that follow one another. */
export interface Piece {
  /** Where they stand in the whole sequence. */
  readonly spans: readonly Span[];
  /** The first of them in the shard, and how many. */
  readonly offset: number;
  readonly length: number;
}

/**
 * A shard in so many pieces, as equal as can be. If the spans can share them evenly no piece reaches over the end of a span:
 * the two stretches of a zigzag shard become pieces of their own.
 */
export function cut(shard: readonly Span[], count: number): Piece[] {
  const parts = count % shard.length === 0 ? shard.map((span) => [span]) : [shard];
  let offset = 0;
  return parts.flatMap((part) => {
    const rows = spansLength(part);
    const pieces = Array.from({ length: count / parts.length }, (_, i): Piece => {
      const { start, length } = contiguous().spans(i, count / parts.length, rows)[0]!;
      return { spans: between(part, start, start + length), offset: offset + start, length };
    });
    offset += rows;
    return pieces;
  });
}

/** Rows [from, to) of some spans. */
function between(spans: readonly Span[], from: number, to: number): Span[] {
  let before = 0;
  return spans.flatMap(({ start, length, step }) => {
    const [first, end] = [Math.max(0, from - before), Math.min(length, to - before)];
    before += length;
    return first < end ? [{ start: start + first * step, length: end - first, step }] : [];
  });
}
