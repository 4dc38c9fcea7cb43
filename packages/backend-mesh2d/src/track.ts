import type { Transfer } from "@mosaic/core";
import type { Chunk, Chunks } from "./chunk.ts";
import type { Side } from "./need.ts";
import type { Lane, Part } from "./pass.ts";

/** One dimension of the tile: chunks come in offset by offset, and so do their sums leave. */
export class Track {
  readonly #lane: Lane;
  readonly #chunks: Chunks;
  /** This rank's rows as others get them. */
  readonly #own: Chunk | undefined;
  // By offset.
  readonly #inputs: (Chunk | undefined)[] = [];
  readonly #sums: (Chunk | undefined)[] = [];
  readonly #parts: (Part | undefined)[] = [];
  /** The batches that bring chunks. */
  readonly #batches: number[] = [];
  /** Blocks that were passed, computed or not. */
  readonly #passed: number[] = [];

  constructor(lane: Lane, chunks: Chunks) {
    this.#lane = lane;
    this.#chunks = chunks;
    const isTaken = lane.side.takers.some((taker) => taker !== undefined);
    this.#own = isTaken ? chunks.dense(lane.inputs) : undefined;
  }

  /** Adds to a batch: the chunk at an offset comes, and this rank's own goes to the one that has it there. */
  bring(offset: number, batch: Transfer[]): void {
    const { side, inputs } = this.#lane;
    const from = side.sources[offset];
    const to = side.takers[offset];
    if (to !== undefined) for (const tensor of this.#own!.wire) batch.push({ tensor, to });
    if (from === undefined) return;
    const room = this.#chunks.empty(inputs, side.length(from));
    this.#inputs[offset] = room;
    for (const tensor of room.wire) batch.push({ tensor, from });
  }

  /** Says which batch brings the chunk at an offset. */
  expect(offset: number, batch: number): void {
    this.#batches[offset] = batch;
  }

  /** Adds to a batch: the sums at an offset go home, and those over this rank's own rows come. Returns what to do then. */
  send(offset: number, batch: Transfer[]): () => void {
    const { side, sums } = this.#lane;
    const chunks = this.#chunks;
    const to = side.sources[offset];
    const from = side.takers[offset];
    const leaving = to === undefined ? undefined : this.#sums[offset]!;
    const coming = from === undefined ? undefined : chunks.empty(sums, sums[0]!.shape[2]!);
    if (leaving) for (const tensor of leaving.wire) batch.push({ tensor, to: to! });
    if (coming) for (const tensor of coming.wire) batch.push({ tensor, from: from! });
    return () => {
      if (coming) this.#lane.absorb(sums, coming.rows);
      if (leaving) chunks.release(leaving);
      if (coming) chunks.release(coming);
    };
  }

  /** After each block of the last tile; gives a chunk's rows back after one for every chunk of the other dimension. */
  leave(offset: number, { sources }: Side): void {
    const passed = (this.#passed[offset] ?? 0) + 1;
    this.#passed[offset] = passed;
    const inputs = this.#inputs[offset];
    if (passed === sources.length && inputs) this.#chunks.release(inputs);
  }

  /** The batch that brings the chunk at an offset; 0 if it is here. */
  batchOf(offset: number): number {
    return this.#batches[offset] ?? 0;
  }

  /** The rows at an offset and their sums, which begin when they are first asked for. */
  part(offset: number): Part {
    return (this.#parts[offset] ??= this.#part(offset));
  }

  /** One's own rows are where they were, and their sums go where they belong; others' lie in memory of this pass. */
  #part(offset: number): Part {
    const { side, inputs, sums } = this.#lane;
    const source = side.sources[offset]!;
    if (offset === 0) return { ranks: [source], inputs, sums };
    const own = this.#chunks.empty(sums, side.length(source));
    this.#lane.clear(own.rows);
    this.#sums[offset] = own;
    return { ranks: [source], inputs: this.#inputs[offset]!.rows, sums: own.rows };
  }
}
