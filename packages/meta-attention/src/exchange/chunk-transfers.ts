import type { Device, DType, KvBlock, Tensor } from "@mosaic/core";
import { chunkRows, ResourceStack } from "../tensor-views.ts";
import { type Chunk, type Chunks, findRuns } from "../chunks.ts";
import type { ChosenChunks } from "../route/choose.ts";

/** Keys and values, or their gradients, [n,Hkv,S,D] each: views to be disposed. */
export interface DisposableKv extends KvBlock, Disposable {}

/** Format of a block of keys and values. */
interface KvFormat {
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly dtype: DType;
}

/**
 * Buffers for K and V, or dK and dV, of chunks that are transferred: for each chunk, its required batch elements
 * [n,2,Hkv,S,D]. A run of batch elements is contiguous, so that it is sent as one message.
 */
export class KvChunkBuffers implements Disposable {
  readonly #resources = new ResourceStack();
  readonly #chunks = new Map<number, { readonly slots: ReadonlyMap<number, number>; readonly memory: Tensor }>();

  /** The buffers are uninitialized. */
  constructor(device: Device, runs: readonly BatchRun[], { numKvHeads, headDim, dtype }: KvFormat) {
    const batchIndicesByChunk = new Map<number, number[]>();
    for (const { chunk, b0, b1 } of runs) {
      const batches = batchIndicesByChunk.get(chunk.index) ?? [];
      batchIndicesByChunk.set(chunk.index, batches);
      for (let b = b0; b < b1; b++) batches.push(b);
    }
    for (const { chunk } of runs) {
      if (this.#chunks.has(chunk.index)) continue;
      const batches = batchIndicesByChunk.get(chunk.index)!;
      const memory = this.#resources.use(device.empty([batches.length, 2, numKvHeads, chunk.length, headDim], dtype));
      this.#chunks.set(chunk.index, { slots: new Map(batches.map((b, slot) => [b, slot])), memory });
    }
  }

  /** Fills all buffers with zeros. */
  clear(): this {
    for (const { memory } of this.#chunks.values()) memory.device.kernels.fill(memory, 0);
    return this;
  }

  /** Returns a run as one message, contiguous [b1 − b0,2,Hkv,S,D]. */
  viewOfRun({ chunk, b0, b1 }: BatchRun): Tensor {
    const { slots, memory } = this.#chunks.get(chunk.index)!;
    const first = slots.get(b0)!;
    return memory.slice(0, first, first + b1 - b0);
  }

  /** Returns a run as keys and values for kernels, [b1 − b0,Hkv,S,D] each. */
  kv(run: BatchRun): DisposableKv {
    using message = this.viewOfRun(run);
    return unpackKv(message);
  }

  [Symbol.dispose](): void {
    this.#resources[Symbol.dispose]();
    this.#chunks.clear();
  }
}

/** Returns the two halves of [n,2,Hkv,S,D] as keys and values. */
export function unpackKv(message: Tensor): DisposableKv {
  const [n, , numHeads, rows, size] = message.shape as [number, number, number, number, number];
  const [batchStride, kvStride, ...innerStrides] = message.strides as [number, number, number, number, number];
  const viewHalf = (halfIndex: number): Tensor =>
    message.view({
      shape: [n, numHeads, rows, size],
      strides: [batchStride, ...innerStrides],
      offset: message.offset + halfIndex * kvStride,
    });
  return disposableKv(viewHalf(0), viewHalf(1));
}

/** Returns a run of this rank's own k and v, or dk and dv. */
export function localKv({ k, v }: KvBlock, { chunk, b0, b1 }: BatchRun): DisposableKv {
  return disposableKv(chunkRows(k, chunk, b0, b1), chunkRows(v, chunk, b0, b1));
}

function disposableKv(k: Tensor, v: Tensor): DisposableKv {
  return { k, v, [Symbol.dispose]: () => [k, v].forEach((tensor) => tensor.dispose()) };
}

// Every rank has the choices of all query chunks, so each derives without communication what it sends and receives.

/** A chunk for consecutive batch elements, [b0, b1). */
export interface BatchRun {
  readonly chunk: Chunk;
  readonly b0: number;
  readonly b1: number;
}

/** A message of K and V: a run that is sent to or received from a rank. */
export interface ChunkTransfer extends BatchRun {
  readonly peer: number;
}

/** Messages that a rank sends and receives. The messages from rank a to rank b have the same order on both ranks. */
export interface ChunkTransfers {
  readonly sends: readonly ChunkTransfer[];
  readonly receives: readonly ChunkTransfer[];
}

/** A query chunk of this rank that attends to another chunk. */
export interface ChunkRead extends BatchRun {
  /** Index of the query chunk among this rank's chunks. */
  readonly query: number;
}

/** The chunks to fetch now, and those that were fetched before and are still on the ranks. */
interface ChunkRequests {
  readonly chosen: ChosenChunks;
  readonly previousSelections: readonly ChosenChunks[];
}

/** Returns this rank's messages. */
export function planTransfers(requests: ChunkRequests, chunks: Chunks): ChunkTransfers {
  const { rank, ranks, all, own } = chunks;
  const remoteChunks = all.filter(({ owner }) => owner !== rank);
  const otherRanks = Array.from({ length: ranks }, (_, other) => other).filter((other) => other !== rank);
  return {
    receives: requiredChunks(rank, remoteChunks, { requests, chunks }).map((run) => ({
      ...run,
      peer: run.chunk.owner,
    })),
    sends: otherRanks.flatMap((peer) =>
      requiredChunks(peer, own, { requests, chunks }).map((run) => ({ ...run, peer })),
    ),
  };
}

/**
 * Returns the candidate chunks that a rank must receive, in ascending order of chunk and batch element. Each is listed
 * once, even if several chunks of the rank attend to it.
 */
function requiredChunks(
  rank: number,
  candidateChunks: readonly Chunk[],
  { requests: { chosen, previousSelections }, chunks: { all } }: { requests: ChunkRequests; chunks: Chunks },
): BatchRun[] {
  const queries = all.filter(({ owner }) => owner === rank);
  const isChosenBy = (selection: ChosenChunks, j: number, b: number): boolean =>
    queries.some(({ index }) => selection[b]![index]!.includes(j));
  return batchRuns(
    candidateChunks,
    chosen.length,
    (j, b) => isChosenBy(chosen, j, b) && !previousSelections.some((selection) => isChosenBy(selection, j, b)),
  );
}

/**
 * Lists the chunks that this rank's query chunks attend to, among those that `isAvailable` accepts, in the order of the
 * query chunks.
 */
export function chunkReads(
  chosen: ChosenChunks,
  { all, own }: Chunks,
  isAvailable: (chunk: Chunk, b: number) => boolean,
): ChunkRead[] {
  return own.flatMap(({ index }, query) =>
    batchRuns(all, chosen.length, (j, b) => chosen[b]![index]!.includes(j) && isAvailable(all[j]!, b)).map((run) => ({
      ...run,
      query,
    })),
  );
}

/** Returns the chunks and batch elements for which `isIncluded` holds. */
function batchRuns(
  candidateChunks: readonly Chunk[],
  batch: number,
  isIncluded: (chunk: number, b: number) => boolean,
): BatchRun[] {
  return candidateChunks.flatMap((chunk) =>
    findRuns(batch, (b) => isIncluded(chunk.index, b)).map(([b0, b1]) => ({ chunk, b0, b1 })),
  );
}
