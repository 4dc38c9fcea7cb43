import type { ProcessGroup, Transfer, Work } from "@mosaic/core";
import { type Chunk, ChunkBuffers, recvTransfers, sendTransfers } from "@mosaic/core/context-parallel";
import type { Operand, OperandChunks, Pass, PassExecutor, Tile } from "./pass.ts";
import type { Schedule } from "./schedule.ts";
import type { TilePeers } from "./tile.ts";
import { type ChunkTransfer, rowKinds } from "./timeline.ts";

/**
 * Executes schedules: posts batches ahead, computes blocks as their chunks arrive, and overlaps each transfer with
 * other blocks.
 */
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
    // Waits for all transfers before the chunks are released, also on errors.
    using batches = this.#batches;
    const queries = this.#queries;
    const keys = new TileAxis(tile.keys, buffers);
    for (const step of this.#getSchedule(tile).steps) {
      if (step.kind === "batch") this.#postMoves(step.chunkTransfers, tile, keys);
      else {
        this.#computeBlock(step.x, step.y, tile, keys);
        if (tile.isLast) queries.completeBlock(step.x, tile.keys.peers);
        keys.completeBlock(step.y, this.#pass.queries.peers);
      }
    }
    batches.wait();
  }

  /**
   * Posts the transfers of one batch. Queries are received with the first tile, and their sums are sent with the last.
   */
  #postMoves(chunkTransfers: readonly ChunkTransfer[], { isFirst, isLast }: Tile, keys: TileAxis): void {
    const transfers: Transfer[] = [];
    const arrivalCallbacks: (() => void)[] = [];
    for (const { kind, offset } of chunkTransfers) {
      const axis = rowKinds.includes(kind) ? this.#queries : keys;
      if (kind === "kv" || (kind === "q" && isFirst)) axis.receiveInputs(offset, transfers);
      else if (kind === "dkv" || (kind === "out" && isLast))
        arrivalCallbacks.push(axis.reduceToOwner(offset, transfers));
    }
    const batch = this.#batches.post(transfers, arrivalCallbacks);
    for (const { kind, offset } of chunkTransfers) {
      if (kind === "kv") keys.setBatchIndex(offset, batch);
      if (kind === "q" && isFirst) this.#queries.setBatchIndex(offset, batch);
    }
  }

  #computeBlock(x: number, y: number, tile: Tile, keys: TileAxis): void {
    const queries = this.#queries;
    const [queryRank, keyRank] = [this.#pass.queries.peers.sources[x], tile.keys.peers.sources[y]];
    if (queryRank === undefined || keyRank === undefined || !tile.needsCompute(queryRank, keyRank)) return;
    this.#batches.wait(Math.max(queries.getBatchIndex(x), keys.getBatchIndex(y)));
    tile.compute(queries.getChunk(x), keys.getChunk(y));
  }

  [Symbol.dispose](): void {
    this.#buffers[Symbol.dispose]();
  }
}

/** A posted batch, and the callbacks that run once it has completed. */
interface Batch {
  readonly work: Work | undefined;
  readonly arrivalCallbacks: readonly (() => void)[];
}

/**
 * A queue of message batches that are posted and waited for in the same order on all ranks. Two ranks that exchange
 * several messages must post them in the same order, even if they need them in different orders. Batches complete in
 * posting order, so waiting in this order costs no time.
 */
class BatchQueue implements Disposable {
  readonly #group: ProcessGroup;
  readonly #label: string;
  readonly #postedBatches: Batch[] = [];
  #numWaitedBatches = 0;

  constructor(group: ProcessGroup, label: string) {
    this.#group = group;
    this.#label = label;
  }

  /** Posts a batch, which may be empty. `wait` calls `arrivalCallbacks`. Returns the batch's number, counted from 1. */
  post(transfers: readonly Transfer[], arrivalCallbacks: readonly (() => void)[]): number {
    const work = transfers.length > 0 ? this.#group.sendRecv(transfers, { label: this.#label }) : undefined;
    return this.#postedBatches.push({ work, arrivalCallbacks });
  }

  /** Makes work enqueued later wait for the first `count` batches; by default for all batches posted so far. */
  wait(count: number = this.#postedBatches.length): void {
    while (this.#numWaitedBatches < count) {
      const { work, arrivalCallbacks: callbacks } = this.#postedBatches[this.#numWaitedBatches++]!;
      work?.wait();
      for (const onArrival of callbacks) onArrival();
    }
  }

  /** Waits for all batches in flight, also after an error. */
  [Symbol.dispose](): void {
    while (this.#numWaitedBatches < this.#postedBatches.length)
      this.#postedBatches[this.#numWaitedBatches++]!.work?.wait();
  }
}

/** One dimension of the tile. Chunks are received and their sums are sent one offset at a time. */
class TileAxis {
  readonly #operand: Operand;
  readonly #buffers: ChunkBuffers;
  /** Contiguous copy of this rank's rows, for sending; undefined if no rank needs them. */
  readonly #ownChunk: Chunk | undefined;
  // Indexed by offset.
  readonly #inputs: (Chunk | undefined)[] = [];
  readonly #sums: (Chunk | undefined)[] = [];
  readonly #chunks: (OperandChunks | undefined)[] = [];
  /** The number of the batch that receives each chunk. */
  readonly #batchIndexByOffset: number[] = [];
  /** The number of blocks processed so far, whether computed or skipped. */
  readonly #numCompletedBlocks: number[] = [];

  constructor(operand: Operand, buffers: ChunkBuffers) {
    this.#operand = operand;
    this.#buffers = buffers;
    const isSent = operand.peers.destinations.some((rank) => rank !== undefined);
    this.#ownChunk = isSent ? buffers.contiguous(operand.inputs) : undefined;
  }

  /**
   * Adds messages to a batch: receives the chunk at an offset, and sends the local chunk to the rank that needs it at
   * that offset.
   */
  receiveInputs(offset: number, transfers: Transfer[]): void {
    const { peers, inputs } = this.#operand;
    const source = peers.sources[offset];
    const destination = peers.destinations[offset];
    if (destination !== undefined) transfers.push(...sendTransfers(this.#ownChunk!, destination));
    if (source === undefined) return;
    const chunk = this.#buffers.empty(inputs, peers.rows(source));
    this.#inputs[offset] = chunk;
    transfers.push(...recvTransfers(chunk, source));
  }

  /** Sets the batch that receives the chunk at an offset. */
  setBatchIndex(offset: number, batchIndex: number): void {
    this.#batchIndexByOffset[offset] = batchIndex;
  }

  /**
   * Adds messages to a batch: sends the sums at an offset to their owner, and receives sums over the local rows.
   * Returns the callback to run when the batch has completed.
   */
  reduceToOwner(offset: number, transfers: Transfer[]): () => void {
    const { peers, sums, accumulate } = this.#operand;
    const buffers = this.#buffers;
    const owner = peers.sources[offset];
    const contributor = peers.destinations[offset];
    const outgoingSums = owner === undefined ? undefined : this.#sums[offset]!;
    const incomingSums = contributor === undefined ? undefined : buffers.empty(sums, sums[0]!.shape[2]!);
    if (outgoingSums) transfers.push(...sendTransfers(outgoingSums, owner!));
    if (incomingSums) transfers.push(...recvTransfers(incomingSums, contributor!));
    return () => {
      if (incomingSums) accumulate(sums, incomingSums.tensors);
      if (outgoingSums) buffers.release(outgoingSums);
      if (incomingSums) buffers.release(incomingSums);
    };
  }

  /**
   * Counts a processed block of the last tile that uses a chunk. Releases a chunk once it was combined with every chunk
   * of the other dimension.
   */
  completeBlock(offset: number, { sources }: TilePeers): void {
    const numCompletedBlocks = (this.#numCompletedBlocks[offset] ?? 0) + 1;
    this.#numCompletedBlocks[offset] = numCompletedBlocks;
    const inputs = this.#inputs[offset];
    if (numCompletedBlocks === sources.length && inputs) this.#buffers.release(inputs);
  }

  /** Returns the number of the batch that receives the chunk at an offset; 0 if the chunk is local. */
  getBatchIndex(offset: number): number {
    return this.#batchIndexByOffset[offset] ?? 0;
  }

  /** Returns the rows at an offset and their sums. Sums are created on first use. */
  getChunk(offset: number): OperandChunks {
    return (this.#chunks[offset] ??= this.#createChunk(offset));
  }

  /** Local rows and their sums are used in place; those of other ranks are buffers of this pass. */
  #createChunk(offset: number): OperandChunks {
    const { peers, inputs, sums, clear } = this.#operand;
    const source = peers.sources[offset]!;
    if (offset === 0) return { ranks: [source], inputs, sums };
    const ownSums = this.#buffers.empty(sums, peers.rows(source));
    clear(ownSums.tensors);
    this.#sums[offset] = ownSums;
    return { ranks: [source], inputs: this.#inputs[offset]!.tensors, sums: ownSums.tensors };
  }
}
