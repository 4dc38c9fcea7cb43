import type { ProcessGroup, Transfer, Work } from "@mosaic/core";
import { type Chunk, ChunkBuffers, recvTransfers, sendTransfers } from "@mosaic/core/context-parallel";
import type { Operand, OperandChunks, Pass, PassExecutor, Tile } from "./pass.ts";
import type { Schedule } from "./schedule.ts";
import type { TilePeers } from "./tile.ts";
import { type ChunkTransfer, rowKinds } from "./timeline.ts";

/** Replays schedules: batches are posted ahead, blocks computed as their chunks come, each transfer behind others' blocks. */
export class OverlappedExecutor implements PassExecutor {
  readonly #pass: Pass;
  readonly #getSchedule: (tile: Tile) => Schedule;
  readonly #buffers: ChunkBuffers;
  readonly #batches: BatchQueue;
  readonly #queries: TileAxis;

  constructor(pass: Pass, getSchedule: (tile: Tile) => Schedule) {
    const { device } = pass.group;
    this.#pass = pass;
    this.#getSchedule = getSchedule;
    this.#buffers = new ChunkBuffers({ device, order: "sbhd" });
    this.#batches = new BatchQueue(pass.group, pass.label);
    this.#queries = new TileAxis(pass.queries, this.#buffers);
  }

  add(tile: Tile): void {
    const { device } = this.#pass.group;
    using buffers = new ChunkBuffers({ device, order: "sbhd" });
    // Whatever happens, nothing is under way when the chunks are given back.
    using batches = this.#batches;
    const queries = this.#queries;
    const keys = new TileAxis(tile.keys, buffers);
    for (const step of this.#getSchedule(tile).steps) {
      if (step.kind === "batch") this.#post(step.moves, tile, keys);
      else {
        this.#computeBlock(step.x, step.y, tile, keys);
        if (tile.last) queries.blockDone(step.x, tile.keys.peers);
        keys.blockDone(step.y, this.#pass.queries.peers);
      }
    }
    batches.wait();
  }

  /** Queries come with the first tile, and the sums over them leave with the last. */
  #post(moves: readonly ChunkTransfer[], { first, last }: Tile, keys: TileAxis): void {
    const transfers: Transfer[] = [];
    const arrivals: (() => void)[] = [];
    for (const { kind, offset } of moves) {
      const axis = rowKinds.includes(kind) ? this.#queries : keys;
      if (kind === "kv" || (kind === "q" && first)) axis.receiveInputs(offset, transfers);
      else if (kind === "dkv" || (kind === "out" && last)) arrivals.push(axis.reduceToOwner(offset, transfers));
    }
    const batch = this.#batches.post(transfers, arrivals);
    for (const { kind, offset } of moves) {
      if (kind === "kv") keys.setBatch(offset, batch);
      if (kind === "q" && first) this.#queries.setBatch(offset, batch);
    }
  }

  #computeBlock(x: number, y: number, tile: Tile, keys: TileAxis): void {
    const queries = this.#queries;
    const [row, column] = [this.#pass.queries.peers.sources[x], tile.keys.peers.sources[y]];
    if (row === undefined || column === undefined || !tile.needsCompute(row, column)) return;
    this.#batches.wait(Math.max(queries.batchAt(x), keys.batchAt(y)));
    tile.compute(queries.chunkAt(x), keys.chunkAt(y));
  }

  [Symbol.dispose](): void {
    this.#buffers[Symbol.dispose]();
  }
}

/** A batch under way, and what to do with what it brought. */
interface Batch {
  readonly work: Work | undefined;
  readonly arrivals: readonly (() => void)[];
}

/**
 * Batches of messages that are posted one after the other and waited for in the same order, on all ranks: two ranks that
 * exchange several messages must agree on their order, and may not agree on which they need first. Batches run in that
 * order anyway, so nothing waits longer for it.
 */
class BatchQueue implements Disposable {
  readonly #group: ProcessGroup;
  readonly #label: string;
  readonly #postedBatches: Batch[] = [];
  #waitedBatches = 0;

  constructor(group: ProcessGroup, label: string) {
    this.#group = group;
    this.#label = label;
  }

  /** Posts a batch, perhaps an empty one; `arrivals` are called when it is waited for. Returns its number, from 1 on. */
  post(transfers: readonly Transfer[], arrivals: readonly (() => void)[]): number {
    const work = transfers.length > 0 ? this.#group.sendRecv(transfers, { label: this.#label }) : undefined;
    return this.#postedBatches.push({ work, arrivals });
  }

  /** What is computed next comes after batch `number` and all before it; by default after all. */
  wait(number: number = this.#postedBatches.length): void {
    while (this.#waitedBatches < number) {
      const { work, arrivals } = this.#postedBatches[this.#waitedBatches++]!;
      work?.wait();
      for (const arrived of arrivals) arrived();
    }
  }

  /** Leaves nothing under way, whatever happened. */
  [Symbol.dispose](): void {
    while (this.#waitedBatches < this.#postedBatches.length) this.#postedBatches[this.#waitedBatches++]!.work?.wait();
  }
}

/** One dimension of the tile: chunks come in offset by offset, and so do their sums leave. */
class TileAxis {
  readonly #operand: Operand;
  readonly #buffers: ChunkBuffers;
  /** This rank's rows as others get them. */
  readonly #own: Chunk | undefined;
  // By offset.
  readonly #inputs: (Chunk | undefined)[] = [];
  readonly #sums: (Chunk | undefined)[] = [];
  readonly #chunks: (OperandChunks | undefined)[] = [];
  /** The batches that bring chunks. */
  readonly #batches: number[] = [];
  /** Blocks that were passed, computed or not. */
  readonly #completedBlocks: number[] = [];

  constructor(operand: Operand, buffers: ChunkBuffers) {
    this.#operand = operand;
    this.#buffers = buffers;
    const isSent = operand.peers.destinations.some((rank) => rank !== undefined);
    this.#own = isSent ? buffers.contiguous(operand.inputs) : undefined;
  }

  /** Adds to a batch: the chunk at an offset comes, and this rank's own goes to the one that has it there. */
  receiveInputs(offset: number, batch: Transfer[]): void {
    const { peers, inputs } = this.#operand;
    const from = peers.sources[offset];
    const to = peers.destinations[offset];
    if (to !== undefined) batch.push(...sendTransfers(this.#own!, to));
    if (from === undefined) return;
    const chunk = this.#buffers.empty(inputs, peers.rows(from));
    this.#inputs[offset] = chunk;
    batch.push(...recvTransfers(chunk, from));
  }

  /** Sets which batch brings the chunk at an offset. */
  setBatch(offset: number, batch: number): void {
    this.#batches[offset] = batch;
  }

  /**
   * Adds to a batch: the sums at an offset go to their owner, and those over this rank's own rows come. Returns what to do
   * when it has run.
   */
  reduceToOwner(offset: number, batch: Transfer[]): () => void {
    const { peers, sums, accumulate } = this.#operand;
    const buffers = this.#buffers;
    const to = peers.sources[offset];
    const from = peers.destinations[offset];
    const outgoing = to === undefined ? undefined : this.#sums[offset]!;
    const incoming = from === undefined ? undefined : buffers.empty(sums, sums[0]!.shape[2]!);
    if (outgoing) batch.push(...sendTransfers(outgoing, to!));
    if (incoming) batch.push(...recvTransfers(incoming, from!));
    return () => {
      if (incoming) accumulate(sums, incoming.tensors);
      if (outgoing) buffers.release(outgoing);
      if (incoming) buffers.release(incoming);
    };
  }

  /** After each block of the last tile; gives a chunk's rows back after one for every chunk of the other dimension. */
  blockDone(offset: number, { sources }: TilePeers): void {
    const blocksDone = (this.#completedBlocks[offset] ?? 0) + 1;
    this.#completedBlocks[offset] = blocksDone;
    const inputs = this.#inputs[offset];
    if (blocksDone === sources.length && inputs) this.#buffers.release(inputs);
  }

  /** The batch that brings the chunk at an offset; 0 if it is here. */
  batchAt(offset: number): number {
    return this.#batches[offset] ?? 0;
  }

  /** The rows at an offset and their sums, which are created on first use. */
  chunkAt(offset: number): OperandChunks {
    return (this.#chunks[offset] ??= this.#createChunk(offset));
  }

  /** One's own rows are where they were, and their sums go where they belong; others' lie in memory of this pass. */
  #createChunk(offset: number): OperandChunks {
    const { peers, inputs, sums, clear } = this.#operand;
    const source = peers.sources[offset]!;
    if (offset === 0) return { ranks: [source], inputs, sums };
    const own = this.#buffers.empty(sums, peers.rows(source));
    clear(own.tensors);
    this.#sums[offset] = own;
    return { ranks: [source], inputs: this.#inputs[offset]!.tensors, sums: own.tensors };
  }
}
