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
  /** Attention layers of the model. Default 1. */
  numLayers: option.integer({ min: 1, default: 1 }),
  /** Hkv, the KV heads that this rank has of each layer. */
  numKvHeads: option.integer({ min: 1 }),
  /** D, from 1 to 256. */
  headDim: option.integer({ min: 1, max: 256 }),
  /** Dv, of values. Default: headDim. */
  valueHeadDim: option.integer({ min: 1, max: 256, optional: true }),
  /** Tokens of all sequences together for which there is memory, over all ranks of the axis; whole blocks on each. */
  maxTokens: option.integer({ min: 1 }),
  /** Tokens of a block, which is on one rank. Default 64. */
  blockSize: option.integer({ min: 1, default: 64 }),
  /** The mesh axis whose ranks share out the blocks; null: every rank holds them all. Default: "sp" if the mesh has it, else null. */
  axis: option.nullable(option.string(), { optional: true }),
  /** Of what is stored. Default "float32". */
  dtype: option.oneOf(["float32", "bfloat16"], { default: "float32" }),
  /** How many keys each query sees, its own included; blocks that no later query sees are dropped. Default: all. */
  slidingWindow: option.integer({ min: 1, optional: true }),
});
/** What KvCache takes. */
export type KvCacheOptions = OptionsOf<typeof kvCacheOptions>;

/**
 * Keys and values of the tokens so far, for inference: a new token attends to them instead of computing them again. Blocks of `blockSize`
 * tokens are dealt out to the ranks of a mesh axis, so that each holds its part of every sequence; memory is reserved once, and a sequence
 * grows, forks and ends without a copy of what it holds. vLLM's PagedAttention (Kwon et al. 2023), over the ranks of an axis.
 *
 * Prompts come in shards, through any backend (`sharded`); new tokens are the same on every rank of the axis, each of which attends to
 * its own blocks: split-KV, or Flash-Decoding (Dao et al. 2023). The states are merged in the order of the ranks, by one all-gather for
 * each layer, and the result is the same on all of them.
 *
 * Every rank makes the same calls in the same order, those of sequences included.
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
 * @throws OptionError for options that do not go together; OutOfMemoryError beyond the device's memory.
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
    // Within a scope, which releases the keys if there is no memory for the values.
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

  /** Tokens for which there is memory, on all ranks of the axis. */
  get maxTokens(): number {
    const { pool } = this.#memory;
    return pool.ranks * pool.blocksPerRank * this.blockSize;
  }

  /** Tokens for which there are blocks that no sequence uses. */
  get freeTokens(): number {
    return this.#memory.pool.free * this.blockSize;
  }

  /** A sequence without tokens. The caller disposes it, which releases its blocks. */
  createSequence(): CacheSequence {
    this.#assertOpen("KvCache.createSequence");
    return new CacheSequence(new BlockTable(this.#memory));
  }

  /**
   * One layer of some sequences, the batch of the next call: for the `cache` of an attention module's `forward`, or to append and to
   * attend yourself.
   *
   * @throws OptionError for a layer that there is not, a sequence of another cache or one that is in the list twice; DisposedError.
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

  /** Gives the memory back in stream order. Its sequences are of no more use. Idempotent. */
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
