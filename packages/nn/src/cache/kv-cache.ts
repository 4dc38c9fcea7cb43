import {
  checkContext,
  type Context,
  defineOptions,
  dtypeBytes,
  expectValue,
  keep,
  DisposedError,
  option,
  OptionError,
  type OptionsOf,
  scope,
  type Tensor,
} from "@mosaic/core";
import { BlockPool } from "./block-pool.ts";
import { BlockTable } from "./block-table.ts";
import type { CacheMemory } from "./cache-memory.ts";
import { KvCacheLayer, type KvCacheLayerOptions } from "./cache-layer.ts";
import { CacheSequence, getTable } from "./cache-sequence.ts";

export const kvCacheOptions = defineOptions("KvCache", {
  /** Number of attention layers of the model. Default 1. */
  numLayers: option.integer({ min: 1, default: 1 }),
  /** Hkv, the number of KV heads of each layer on this rank. */
  numKvHeads: option.integer({ min: 1 }),
  /** D, the head size of queries and keys, from 1 to 256. */
  headDim: option.integer({ min: 1, max: 256 }),
  /** Dv, the head size of values, from 1 to 256. Default: headDim. */
  valueHeadDim: option.integer({ min: 1, max: 256, optional: true }),
  /**
   * Capacity in tokens, for all sequences together and over all ranks of the axis. Rounded up to whole blocks on each
   * rank.
   */
  maxTokens: option.integer({ min: 1 }),
  /** Number of tokens of a block, which is stored on one rank. Default 64. */
  blockSize: option.integer({ min: 1, default: 64 }),
  /**
   * The mesh axis over whose ranks the blocks are distributed; null: every rank holds all blocks. Default: "sp" if the
   * mesh has it, else null.
   */
  axis: option.nullable(option.string(), { optional: true }),
  /** The dtype of the stored keys and values. Default "float32". */
  dtype: option.oneOf(["float32", "bfloat16"], { default: "float32" }),
  /**
   * Number of keys that are visible to each query, including its own. Blocks that are not visible to any later query
   * are dropped. Default: all.
   */
  slidingWindow: option.integer({ min: 1, optional: true }),
});
/** Options of KvCache. */
export type KvCacheOptions = OptionsOf<typeof kvCacheOptions>;

/**
 * A cache of the keys and values of earlier tokens for inference, so that a new token attends to them without
 * recomputing them. Blocks of `blockSize` tokens are distributed over the ranks of a mesh axis, and each rank holds a
 * part of every sequence. Memory is allocated once. A sequence grows, is forked and is disposed without a copy of its
 * contents. This is vLLM's PagedAttention (Kwon et al. 2023), over the ranks of an axis.
 *
 * Prompts are passed in shards, through any backend (`sharded`). New tokens are the same on every rank of the axis, and
 * each rank attends to its own blocks: split-KV, or Flash-Decoding (Dao et al. 2023). The states are merged in rank
 * order after one all-gather per layer, and the result is the same on all ranks.
 *
 * Every rank makes the same calls in the same order, including those on sequences.
 *
 * @example
 * ```ts
 * import { init, MultiAxisAttention, noGrad, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { KvCache, RotaryEmbedding } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using positions = new RotaryEmbedding(8);
 * using attn = new MultiAxisAttention(ctx, { embedDim: 32, numHeads: 4, attentionAxis: 1, causal: true, positions });
 * using cache = new KvCache(ctx, { numKvHeads: 4, headDim: 8, maxTokens: 1024 });
 * using sequence = cache.createSequence();
 * using prompt = randn(ctx, [1, 10, 32]);
 * using token = randn(ctx, [1, 1, 32]);
 * noGrad(() => attn.forward(prompt, { cache: cache.layer(0, [sequence]) })).dispose();
 * using out = noGrad(() => attn.forward(token, { cache: cache.layer(0, [sequence]) }));
 * out.shape; // => [1, 1, 32]
 * sequence.length; // => 11
 * ```
 * @throws OptionError for incompatible options; OutOfMemoryError if the device has too little memory.
 */
export class KvCache implements Disposable {
  readonly numLayers: number;
  readonly blockSize: number;
  readonly #memory: CacheMemory;
  #isDisposed = false;

  constructor(ctx: Context, options: KvCacheOptions) {
    checkContext("KvCache", ctx);
    const parsed = kvCacheOptions.parse(options);
    const { numLayers, numKvHeads, headDim, valueHeadDim = headDim, blockSize, dtype, slidingWindow } = parsed;
    const axis = resolveAxis(ctx, parsed.axis);
    const group = axis === undefined ? undefined : ctx.mesh.group(axis);
    const ranks = group?.size ?? 1;
    const blocksPerRank = Math.ceil(parsed.maxTokens / (blockSize * ranks));
    const rows = blocksPerRank * blockSize;
    // Allocated within a scope, which releases k if there is no memory for v.
    const [k, v] = scope(() => {
      const allocateRows = (size: number): Tensor => ctx.device.empty([numLayers, numKvHeads, rows, size], dtype);
      return [allocateRows(headDim), allocateRows(valueHeadDim)] as const;
    });
    for (const x of [k, v]) keep(x);
    const rank = group?.rank ?? 0;
    this.numLayers = numLayers;
    this.blockSize = blockSize;
    this.#memory = {
      ...{ ctx, group, rank, axis, k, v, numLayers, numKvHeads, headDim, valueHeadDim, blockSize, slidingWindow },
      pool: new BlockPool(ranks, blocksPerRank),
      revision: 0,
      copyBlock: (sourceBlock, targetBlock) => copyBlock(this.#memory, sourceBlock, targetBlock),
    };
  }

  /** Bytes of one token in all layers, on the rank that holds it: numLayers · Hkv · (D + Dv) · bytes of the dtype. */
  get bytesPerToken(): number {
    const { k, numKvHeads, headDim, valueHeadDim } = this.#memory;
    return this.numLayers * numKvHeads * (headDim + valueHeadDim) * dtypeBytes[k.dtype];
  }

  /** Capacity in tokens over all ranks of the axis. */
  get maxTokens(): number {
    const { pool } = this.#memory;
    return pool.ranks * pool.blocksPerRank * this.blockSize;
  }

  /** Capacity in tokens of the blocks that no sequence uses. */
  get freeTokens(): number {
    return this.#memory.pool.free * this.blockSize;
  }

  /** Creates an empty sequence. The caller disposes it, which releases its blocks. */
  createSequence(): CacheSequence {
    this.#assertOpen("KvCache.createSequence");
    return new CacheSequence(new BlockTable(this.#memory));
  }

  /**
   * Returns one layer of a batch of sequences. Pass it as `cache` to `forward` of an attention module, or call its
   * `append` and `attend`.
   *
   * @throws OptionError for an invalid layer index, a sequence of another cache or a duplicate sequence; DisposedError.
   */
  layer(index: number, sequences: readonly CacheSequence[], options?: KvCacheLayerOptions): KvCacheLayer {
    this.#assertOpen("KvCache.layer");
    const isValidIndex = Number.isSafeInteger(index) && index >= 0 && index < this.numLayers;
    expectValue("KvCache.layer", isValidIndex, `a layer from 0 to ${this.numLayers - 1}`, index);
    return new KvCacheLayer(this.#memory, { index, tables: this.#tables(sequences) }, options);
  }

  #tables(sequences: readonly CacheSequence[]): readonly BlockTable[] {
    const where = "KvCache.layer: sequences";
    expectValue(where, Array.isArray(sequences), "an array of sequences from createSequence()", sequences);
    const tables = sequences.map((sequence) => getTable(where, sequence));
    const areOwnSequences = tables.every(({ cache }) => cache === this.#memory);
    expectValue(where, areOwnSequences, "sequences created by this cache", sequences);
    if (new Set(tables).size === tables.length) return tables;
    throw new OptionError({
      where,
      expected: "distinct sequences",
      received: "a duplicate sequence",
      remedy: "call fork() to copy a sequence",
    });
  }

  #assertOpen(where: string): void {
    if (!this.#isDisposed) return;
    throw new DisposedError({ where, expected: "a cache that is not disposed", received: "a disposed KvCache" });
  }

  /** Releases the memory in stream order. The sequences of the cache can no longer be used. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.#memory.k.dispose();
    this.#memory.v.dispose();
  }
}

function resolveAxis({ mesh }: Context, axis: string | null | undefined): string | undefined {
  if (axis === null) return undefined;
  if (axis === undefined) return mesh.axes.includes("sp") ? "sp" : undefined;
  mesh.group(axis);
  return axis;
}

function copyBlock({ pool, rank, blockSize, k, v }: CacheMemory, sourceBlock: number, targetBlock: number): void {
  if (pool.getOwner(sourceBlock) !== rank) return;
  const firstBlockRow = (block: number): number => (block - rank * pool.blocksPerRank) * blockSize;
  for (const cacheTensor of [k, v]) {
    using source = cacheTensor.slice(2, firstBlockRow(sourceBlock), firstBlockRow(sourceBlock) + blockSize);
    using target = cacheTensor.slice(2, firstBlockRow(targetBlock), firstBlockRow(targetBlock) + blockSize);
    cacheTensor.device.kernels.copy(target, source);
  }
}
