import { type Placement, resolvePlacement, positions } from "@mosaic/core";
import type { HierarchicalMetaAttentionOptions } from "../src/index.ts";

// Positions of rows and chunks, computed position by position and without the code under test.

/** How a sequence is divided over ranks and chunks. */
export interface ChunkedShape {
  readonly options: Pick<HierarchicalMetaAttentionOptions, "placement" | "chunksPerRank">;
  readonly length: number;
}

/** Returns the global positions of the rows of each rank. */
export function createShards({ options, length }: ChunkedShape, ranks: number): number[][] {
  const placement = resolvePlacement(options.placement ?? "contiguous");
  return Array.from({ length: ranks }, (_, rank) => Array.from(positions(placement.spans(rank, ranks, length))));
}

/**
 * Returns the global positions of the tokens of each chunk, in the order of the sequence, and the rank that holds them.
 */
export function createChunks(chunkedShape: ChunkedShape, ranks: number): { owner: number; tokens: number[] }[] {
  const { options, length } = chunkedShape;
  const { chunksPerRank: count = 1 } = options;
  const placement: Placement = resolvePlacement(options.placement ?? "contiguous");
  return createShards(chunkedShape, ranks)
    .flatMap((rows, owner) => {
      const spanPositions = placement.spans(owner, ranks, length).map((span) => Array.from(positions([span])));
      const segments = count % spanPositions.length === 0 ? spanPositions : [rows];
      return segments.flatMap((segment) =>
        splitEvenly(segment, count / segments.length).map((tokens) => ({ owner, tokens })),
      );
    })
    .filter(({ tokens }) => tokens.length > 0)
    .sort((a, b) => Math.min(...a.tokens) - Math.min(...b.tokens));
}

/** Splits rows into pieces of nearly equal length, the longer ones first. */
function splitEvenly(rows: readonly number[], count: number): number[][] {
  const pieces = Array.from({ length: count }, (): number[] => []);
  const [baseLength, numLonger] = [Math.floor(rows.length / count), rows.length % count];
  rows.forEach((row, i) => {
    const isInLonger = i < numLonger * (baseLength + 1);
    const pieceIndex = isInLonger
      ? Math.floor(i / (baseLength + 1))
      : numLonger + Math.floor((i - numLonger * (baseLength + 1)) / baseLength);
    pieces[pieceIndex]!.push(row);
  });
  return pieces;
}

/** Assembles the shards [batch,rows,width] of all ranks to [batch,length,width]. */
export function assembleShards(
  shards: readonly { readonly positions: readonly number[]; readonly values: ArrayLike<number> }[],
  { batch, length }: { batch: number; length: number },
): Float64Array {
  const numbers = shards.reduce((sum, { values }) => sum + values.length, 0);
  const width = numbers / length / batch;
  const result = new Float64Array(numbers);
  for (const { positions: places, values } of shards) {
    for (let b = 0; b < batch; b++) {
      for (const [row, position] of places.entries()) {
        for (let e = 0; e < width; e++)
          result[(b * length + position) * width + e] = values[(b * places.length + row) * width + e]!;
      }
    }
  }
  return result;
}
