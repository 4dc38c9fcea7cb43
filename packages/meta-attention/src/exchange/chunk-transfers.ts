import type { Device, DType, KvBlock, Tensor } from "@mosaic/core";
import { chunkRows, ResourceStack } from "../tensor-views.ts";
import { type Chunk, type Chunks, findRuns } from "../chunks.ts";
import type { ChosenChunks } from "../route/choose.ts";

/** Keys and values, or their gradients, [n,Hkv,S,D] each: views to be disposed. */
export interface DisposableKv extends KvBlock, Disposable {}

/** What a block of keys is made of. */
interface KvFormat {
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly dtype: DType;
}

/**
 * Room for K and V, or dK and dV, of foreign chunks: for each, the batch elements that are wanted, [n,2,Hkv,S,D]. A run of
 * them is dense, so that it travels as one message.
 */
export class KvChunkBuffers implements Disposable {
  readonly #resources = new ResourceStack();
  readonly #chunks = new Map<number, { readonly slots: ReadonlyMap<number, number>; readonly memory: Tensor }>();

  /** Uninitialised. */
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

  /** All zeros. */
  clear(): this {
    for (const { memory } of this.#chunks.values()) memory.device.kernels.fill(memory, 0);
    return this;
  }

  /** The run as it travels, dense [b1 − b0,2,Hkv,S,D]. */
  viewOfRun({ chunk, b0, b1 }: BatchRun): Tensor {
    const { slots, memory } = this.#chunks.get(chunk.index)!;
    const first = slots.get(b0)!;
    return memory.slice(0, first, first + b1 - b0);
  }

  /** The run as kernels see it, [b1 − b0,Hkv,S,D] each. */
  kv(run: BatchRun): DisposableKv {
    using message = this.viewOfRun(run);
    return unpackKv(message);
  }

  [Symbol.dispose](): void {
    this.#resources[Symbol.dispose]();
    this.#chunks.clear();
  }
}

/** The two halves of [n,2,Hkv,S,D]. */
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

/** A run of this rank's own k and v, or dk and dv. */
export function localKv({ k, v }: KvBlock, { chunk, b0, b1 }: BatchRun): DisposableKv {
  return disposableKv(chunkRows(k, chunk, b0, b1), chunkRows(v, chunk, b0, b1));
}

function disposableKv(k: Tensor, v: Tensor): DisposableKv {
  return { k, v, [Symbol.dispose]: () => [k, v].forEach((tensor) => tensor.dispose()) };
}

// Every rank has what every query chunk chose, so each works out alone what it sends and receives.

/** A chunk for consecutive batch elements, [b0, b1). */
export interface BatchRun {
  readonly chunk: Chunk;
  readonly b0: number;
  readonly b1: number;
}

/** A message of K and V: a run that goes to or comes from a rank. */
export interface ChunkTransfer extends BatchRun {
  readonly peer: number;
}

/** What a rank sends and receives; the list that `a` sends to `b` is, in order, what `b` receives from `a`. */
export interface ChunkTransfers {
  readonly sends: readonly ChunkTransfer[];
  readonly receives: readonly ChunkTransfer[];
}

/** A query chunk of this rank that attends to another chunk. */
export interface ChunkRead extends BatchRun {
  /** The number of the query chunk among this rank's. */
  readonly query: number;
}

/** The chunks to fetch now, and those fetched before, which ranks still hold. */
interface ChunkRequests {
  readonly chosen: ChosenChunks;
  readonly previousSelections: readonly ChosenChunks[];
}

/** This rank's messages. */
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

/** Which of some chunks a rank must be sent, by rising chunk and batch element; each once, however many of its own look. */
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

/** What this rank's query chunks attend to among the chunks that `isAvailable` accepts, those of the first before those of the second. */
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

/** The chunks and batch elements for which a rule holds. */
function batchRuns(
  candidateChunks: readonly Chunk[],
  batch: number,
  isIncluded: (chunk: number, b: number) => boolean,
): BatchRun[] {
  return candidateChunks.flatMap((chunk) =>
    findRuns(batch, (b) => isIncluded(chunk.index, b)).map(([b0, b1]) => ({ chunk, b0, b1 })),
  );
}
