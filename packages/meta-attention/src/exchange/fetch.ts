import type { KvBlock, Tensor, Transfer, Work } from "@mosaic/core";
import type { RoutedAttentionConfig } from "../options.ts";
import { chunkRows, ResourceStack } from "../tensor-views.ts";
import type { Chunk } from "../chunks.ts";
import {
  type DisposableKv,
  unpackKv,
  KvChunkBuffers,
  type ChunkTransfers,
  localKv,
  type BatchRun,
} from "./chunk-transfers.ts";

/**
 * Returns the gradients of fetched chunks to their owners, over the same transfers in reverse, in float32.
 * Contributions are added to the views of `gradientSums`, `post` sends them, and `accumulate` adds the received ones to
 * this rank's own dk and dv.
 */
export class GradientExchange implements Disposable {
  readonly #config: RoutedAttentionConfig;
  readonly #transfers: ChunkTransfers;
  readonly #ownKv: KvBlock;
  readonly #memory: KvChunkBuffers;
  readonly #resources = new ResourceStack();
  #arrivingGradients: (BatchRun & { readonly tensor: Tensor })[] = [];
  #work: Work | undefined;

  /** `own`: this rank's dk and dv, float32 [B,Hkv,S,D]. */
  constructor(config: RoutedAttentionConfig, plannedTransfers: ChunkTransfers, own: KvBlock) {
    this.#config = config;
    this.#transfers = plannedTransfers;
    this.#ownKv = own;
    this.#memory = this.#resources.use(
      new KvChunkBuffers(own.k.device, plannedTransfers.receives, { ...config, dtype: "float32" }).clear(),
    );
  }

  /** Returns the views to which the gradients of a run's keys and values are added: dk as k, dv as v. */
  gradientSums({ chunk, b0, b1 }: BatchRun): DisposableKv {
    if (chunk.owner !== this.#config.chunks.rank) return this.#memory.kv({ chunk, b0, b1 });
    return localKv(this.#ownKv, { chunk, b0, b1 });
  }

  post(): void {
    const { sends, receives } = this.#transfers;
    if (sends.length + receives.length === 0) return;
    const { group, label, numKvHeads, headDim } = this.#config;
    const { device } = group;
    this.#arrivingGradients = sends.map((run) => {
      const shape = [run.b1 - run.b0, 2, numKvHeads, run.chunk.length, headDim];
      return { ...run, tensor: this.#resources.use(device.empty(shape, "float32")) };
    });
    const transfers: Transfer[] = [
      ...receives.map((run) => ({ tensor: this.#resources.use(this.#memory.viewOfRun(run)), to: run.peer })),
      ...sends.map((run, i) => ({ tensor: this.#arrivingGradients[i]!.tensor, from: run.peer })),
    ];
    this.#work = group.sendRecv(transfers, { label: `${label} backward` });
  }

  accumulate(): void {
    this.#work?.wait();
    this.#work = undefined;
    for (const { chunk, b0, b1, tensor } of this.#arrivingGradients) {
      using receivedGradients = unpackKv(tensor);
      for (const kvName of ["k", "v"] as const) {
        using ownGradient = chunkRows(this.#ownKv[kvName], chunk, b0, b1);
        ownGradient.device.kernels.binary("add", ownGradient, ownGradient, receivedGradients[kvName]);
      }
    }
  }

  [Symbol.dispose](): void {
    this.#work?.wait();
    this.#resources[Symbol.dispose]();
  }
}

/**
 * The transfer of the chosen chunks' keys and values to the ranks that chose them. Posted by the constructor, complete
 * after `wait`. Uses the dtype of this rank's own k and v, which are [B,Hkv,S,D].
 */
export class ChunkFetch implements Disposable {
  readonly transfers: ChunkTransfers;
  readonly #rank: number;
  readonly #ownKv: KvBlock;
  readonly #memory: KvChunkBuffers;
  /** The messages that are sent, kept until the transfer is complete. */
  readonly #messages = new ResourceStack();
  #work: Work | undefined;

  constructor(config: RoutedAttentionConfig, plannedTransfers: ChunkTransfers, own: KvBlock) {
    this.transfers = plannedTransfers;
    this.#rank = config.chunks.rank;
    this.#ownKv = own;
    this.#memory = new KvChunkBuffers(own.k.device, plannedTransfers.receives, { ...config, dtype: own.k.dtype });
    this.#work = this.#post(config);
  }

  #post({ group, label, numKvHeads, headDim }: RoutedAttentionConfig): Work | undefined {
    const { sends, receives } = this.transfers;
    if (sends.length + receives.length === 0) return undefined;
    const resources = this.#messages;
    const packedChunks = new Map<number, KvChunkBuffers>();
    for (const run of sends) {
      if (packedChunks.has(run.chunk.index)) continue;
      const { device, dtype, shape } = this.#ownKv.k;
      const wholeBatch: BatchRun = { chunk: run.chunk, b0: 0, b1: shape[0]! };
      const memory = resources.use(new KvChunkBuffers(device, [wholeBatch], { numKvHeads, headDim, dtype }));
      this.#pack(memory, wholeBatch);
      packedChunks.set(run.chunk.index, memory);
    }
    const transfers: Transfer[] = [
      ...sends.map((run) => ({
        tensor: resources.use(packedChunks.get(run.chunk.index)!.viewOfRun(run)),
        to: run.peer,
      })),
      ...receives.map((run) => ({ tensor: resources.use(this.#memory.viewOfRun(run)), from: run.peer })),
    ];
    return group.sendRecv(transfers, { label });
  }

  /** Packs this rank's keys and values of a chunk into one buffer. */
  #pack(memory: KvChunkBuffers, run: BatchRun): void {
    using block = memory.kv(run);
    for (const kvName of ["k", "v"] as const) {
      using rows = chunkRows(this.#ownKv[kvName], run.chunk);
      rows.device.kernels.copy(block[kvName], rows);
    }
  }

  /** Orders later work after the transfer. */
  wait(): void {
    this.#work?.wait();
    this.#work = undefined;
    this.#messages[Symbol.dispose]();
  }

  /** Returns whether a chunk of another rank is fetched for a batch element. */
  isFetched(chunk: Chunk, b: number): boolean {
    return this.transfers.receives.some((run) => run.chunk === chunk && run.b0 <= b && b < run.b1);
  }

  /** Returns the keys and values of a run, whether fetched or this rank's own. */
  kv({ chunk, b0, b1 }: BatchRun): DisposableKv {
    if (chunk.owner !== this.#rank) return this.#memory.kv({ chunk, b0, b1 });
    return localKv(this.#ownKv, { chunk, b0, b1 });
  }

  [Symbol.dispose](): void {
    this.wait();
    this.#memory[Symbol.dispose]();
  }
}
