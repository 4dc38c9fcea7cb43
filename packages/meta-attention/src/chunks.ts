import {
  concatenate,
  type Context,
  contiguous,
  isVisible,
  type Mask,
  OptionError,
  type Placement,
  resolveShards,
  resolveSlices,
  ShapeError,
  type Slice,
  hasDiagonalEnd,
  type Span,
  spansLength,
  type Tensor,
} from "@mosaic/core";
import { type ChunkVisibility, chunkVisibility } from "./route/choose.ts";

/** One chunk: one or more rows of a rank that are summarized, chosen and sent as a whole. */
export interface Chunk extends ShardRange {
  /** Index of the chunk, in the order of the sequence. */
  readonly index: number;
  /** The rank, along the axis, that holds it. */
  readonly owner: number;
  /**
   * Index of the chunk in the gather, in which each rank has `chunksPerRank` slots, in rank order, and fills its first
   * ones.
   */
  readonly slot: number;
}

/** The chunks of a sequence, and which of them may attend to which. */
export interface Chunks {
  /** All chunks, in the order of the sequence. */
  readonly all: readonly Chunk[];
  /** This rank's chunks, in the same order. A short shard has fewer than `chunksPerRank`, an empty shard none. */
  readonly own: readonly Chunk[];
  readonly chunksPerRank: number;
  /** Index of this rank along the axis, and the number of ranks. */
  readonly rank: number;
  readonly ranks: number;
  /** Positions that each rank holds. */
  readonly shards: readonly (readonly Span[])[];
  /** Length of the whole sequence. */
  readonly length: number;
  /** The keys that are visible to each query, in positions of the whole sequence. */
  readonly mask: readonly Slice[];
  readonly visibility: ChunkVisibility;
}

/** Parameters that determine the chunks. */
interface ChunkingOptions {
  readonly axis: string;
  readonly placement: Placement;
  readonly mask: Mask;
  readonly chunksPerRank: number;
  /** Length of the whole sequence. */
  readonly length: number;
}

/** Returns the number of ranks that share the sequence. Throws an OptionError if the mesh lacks the axis. */
export function axisSize(where: string, ctx: Context, axis: string): number {
  const ranks = Object.hasOwn(ctx.mesh.shape, axis) ? ctx.mesh.shape[axis] : undefined;
  if (ranks !== undefined) return ranks;
  throw new OptionError({
    where,
    expected: `one of the mesh's axes ${ctx.mesh.axes.join(", ")}`,
    received: `"${axis}"`,
    remedy: "add the axis to init({ mesh }), or pass an existing axis",
  });
}

/** Creates the chunks of a sequence. Invalid arguments are the same error on every rank. */
export function createChunks(where: string, ctx: Context, call: ChunkingOptions): Chunks {
  const { axis, placement, chunksPerRank, length } = call;
  const ranks = axisSize(where, ctx, axis);
  const rank = ctx.mesh.coordinate[axis]!;
  const shards = resolveShards(placement, ranks, length);
  const ranges = shards.flatMap((shard, owner) =>
    splitShard(shard, chunksPerRank).map((range) => ({ ...range, owner })),
  );
  const filledSlotCounts = new Array<number>(ranks).fill(0);
  const all = ranges
    .filter((range) => range.length > 0)
    .sort((a, b) => firstPosition(a) - firstPosition(b))
    .map(
      (range, index): Chunk => ({
        ...range,
        index,
        slot: range.owner * chunksPerRank + filledSlotCounts[range.owner]!++,
      }),
    );
  const mask = resolveSlices(call.mask, length, length);
  const causal = mask.length > 0 && mask.every(isCausalSlice);
  if (causal) checkOrder(where, all, placement);
  const visibility = chunkVisibility(all.length, {
    causal,
    maskAllows: (i, j) => isVisible(all[i]!.spans, all[j]!.spans, mask),
  });
  const own = all.filter(({ owner }) => owner === rank);
  return { all, own, chunksPerRank, rank, ranks, shards, length, mask, visibility };
}

/** Returns whether no query of the slice attends to a later key. */
function isCausalSlice({ q0, q1, k1, type }: Slice): boolean {
  const isEndDiagonal = hasDiagonalEnd(type);
  return isEndDiagonal ? k1 <= q1 : k1 - 1 <= q0;
}

/** Throws an OptionError unless each chunk ends before the next begins. */
function checkOrder(where: string, chunks: readonly Chunk[], placement: Placement): void {
  const [starts, ends] = [chunks.map(firstPosition), chunks.map(lastPosition)];
  const interleavedIndex = starts.findIndex((start, i) => i > 0 && start <= Math.max(...ends.slice(0, i)));
  if (interleavedIndex < 0) return;
  const formatChunk = (i: number): string => `chunk ${i} (positions ${starts[i]} to ${ends[i]})`;
  throw new OptionError({
    where,
    expected:
      "chunks that do not interleave: under a causal mask, routing of a chunk depends only on positions before the whole chunk",
    received: `placement ${placement.name} with interleaved chunks: ${formatChunk(interleavedIndex - 1)} and ${formatChunk(interleavedIndex)}`,
    remedy: 'use placement "contiguous", or "zigzag" with an even chunksPerRank, which also balances causal work',
  });
}

function firstPosition({ spans }: ShardRange): number {
  return Math.min(...spans.map(({ start }) => start));
}

function lastPosition({ spans }: ShardRange): number {
  return Math.max(...spans.map(({ start, length, step }) => start + (length - 1) * step));
}

/** Throws a ShapeError unless `rows` is the length of this rank's shard, and the sequence is not empty. */
export function checkRows(where: string, rows: number, { shards, rank, length }: Chunks): void {
  const expected = spansLength(shards[rank]!);
  if (length > 0 && expected === rows) return;
  throw new ShapeError({
    where,
    expected: length > 0 ? `${expected} rows, this rank's shard of ${length} rows` : "a sequence of at least one token",
    received: length > 0 ? `${rows} rows` : `a sequence of ${length} tokens`,
    remedy:
      "pass the placement that the sequence was sharded with, and the length of the whole sequence as sequenceLength",
  });
}

/** Consecutive rows of a shard. */
interface ShardRange {
  /** Positions of the rows in the whole sequence. */
  readonly spans: readonly Span[];
  /** Index of the first row in the shard, and the number of rows. */
  readonly offset: number;
  readonly length: number;
}

/**
 * Splits a shard into `count` pieces of nearly equal length. If `count` is divisible by the number of spans, no piece
 * crosses the end of a span, and the two spans of a zigzag shard have separate pieces.
 */
function splitShard(shard: readonly Span[], count: number): ShardRange[] {
  const spanGroups = count % shard.length === 0 ? shard.map((span) => [span]) : [shard];
  let offset = 0;
  return spanGroups.flatMap((spanGroup) => {
    const rows = spansLength(spanGroup);
    const ranges = Array.from({ length: count / spanGroups.length }, (_, i): ShardRange => {
      const { start, length } = contiguous().spans(i, count / spanGroups.length, rows)[0]!;
      return { spans: sliceSpans(spanGroup, start, start + length), offset: offset + start, length };
    });
    offset += rows;
    return ranges;
  });
}

/** Returns rows [firstRow, endRow) of some spans. */
function sliceSpans(spans: readonly Span[], firstRow: number, endRow: number): Span[] {
  let numPrecedingRows = 0;
  return spans.flatMap(({ start, length, step }) => {
    const [first, end] = [Math.max(0, firstRow - numPrecedingRows), Math.min(length, endRow - numPrecedingRows)];
    numPrecedingRows += length;
    return first < end ? [{ start: start + first * step, length: end - first, step }] : [];
  });
}

/** Returns the runs [from, to) of the indices 0 … count − 1 for which the predicate holds. */
export function findRuns(
  count: number,
  predicate: (index: number) => boolean,
): (readonly [from: number, to: number])[] {
  const runs: (readonly [number, number])[] = [];
  for (let start = 0; start < count; ) {
    let end = start;
    while (end < count && predicate(end)) end++;
    if (end > start) runs.push([start, end]);
    start = end + 1;
  }
  return runs;
}

/** Returns the rows of this rank's chunks, [B,N,N] → [B,c,N], with history. */
export function sliceOwnRows(x: Tensor, { own, all }: Chunks): Tensor {
  const ownIndices = new Set(own.map(({ index }) => index));
  const runs = findRuns(all.length, (index) => ownIndices.has(index));
  if (runs.length <= 1) return x.slice(1, ...(runs[0] ?? [0, 0]));
  const ownSlices = runs.map(([from, to]) => x.slice(1, from, to));
  const rows = concatenate(ownSlices, 1);
  for (const ownSlice of ownSlices) ownSlice.dispose();
  return rows;
}
