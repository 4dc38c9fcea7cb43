import {
  checkContext,
  type Context,
  defineOptions,
  expectValue,
  option,
  OptionError,
  type OptionsOf,
  OutOfMemoryError,
} from "@mosaic/core";
import { type CacheSequence, KvCache } from "@mosaic/nn";
import type { ModelConfig } from "../config/config.ts";
import type { DecoderCache, ModelSettings } from "../model/decoder-layer.ts";

export const generationCacheOptions = defineOptions("GenerationCache", {
  /** Capacity in tokens, for all texts that are generated at a time, including prompts, over all ranks of the axis. */
  maxTokens: option.integer({ min: 1 }),
  /** Number of tokens of a block, which is stored on one rank. Default 64. */
  blockSize: option.integer({ min: 1, default: 64 }),
  /** The dtype of keys and values. Default: the model's dtype, or float32 if that is float16. */
  dtype: option.oneOf(["float32", "bfloat16"], { optional: true }),
  /** Maximum number of texts at a time. Default 32. */
  maxSequences: option.integer({ min: 1, default: 32 }),
  /**
   * Maximum number of prompt tokens that a step processes. A longer prompt needs several steps, between which other
   * texts continue. Default 2048.
   */
  maxPrefillTokens: option.integer({ min: 1, default: 2048 }),
});
/** Options of `GenerationCache`. */
export type GenerationCacheOptions = OptionsOf<typeof generationCacheOptions>;

export const forCallOptions = defineOptions("GenerationCache.forCall", {
  /**
   * Whether the new tokens are this rank's shard (prefill). Otherwise every rank passes all new tokens. Default false.
   */
  sharded: option.boolean({ default: false }),
});

/** The model that uses a cache. */
export interface CachedModel {
  readonly ctx: Context;
  readonly config: ModelConfig;
  readonly settings: ModelSettings;
}

/** Returns the mesh axis over which a model's keys are distributed, and whether prompts are sharded along it. */
export function resolveCacheAxis({ ctx, settings }: CachedModel): { axis: string | null; isSharded: boolean } {
  const { axes } = ctx.backend(settings.backend ?? "local");
  // A prompt is sharded only if the backend has one axis. With several axes every rank computes the whole prompt, but
  // the cache is still distributed.
  return { axis: axes.find((axis) => ctx.mesh.shape[axis]! > 1) ?? null, isSharded: axes.length === 1 };
}

/**
 * Memory for keys and values of texts that a model generates: one `KvCache` for the layers of each sliding window, and
 * one for layers with full attention. A cache with a window has capacity for what `maxSequences` texts keep of it,
 * window + maxPrefillTokens tokens each, instead of for all tokens. By default, `generate` creates one for each call.
 * Several calls can share one, one after another or at the same time.
 *
 * @example
 * ```ts
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { createModel, GenerationCache } from "@mosaic/models";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const sizes = { vocab_size: 50, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1 };
 * using model = createModel(ctx, { model_type: "llama", num_attention_heads: 2, eos_token_id: 2, ...sizes });
 * using cache = new GenerationCache(model, { maxTokens: 256, blockSize: 16 });
 * const generated: number[] = [];
 * for await (const { token } of model.generate({ tokens: [1, 7], maxNewTokens: 3, eosTokenIds: [], cache }))
 *   generated.push(token);
 * [generated.length, cache.freeTokens]; // => [3, 256]
 * ```
 * @throws OutOfMemoryError if the device has too little memory.
 */
export class GenerationCache implements Disposable {
  /** Maximum number of texts at a time. */
  readonly maxSequences: number;
  /** Maximum number of tokens of a prompt in one forward. */
  readonly maxPrefillTokens: number;
  /** Number of tokens of a block. A text uses whole blocks. */
  readonly blockSize: number;
  /** Capacity in tokens. */
  readonly maxTokens: number;
  readonly #caches: readonly KvCache[];
  /** For each layer, the number of its cache and the layer's index in that cache. */
  readonly #layers: readonly { readonly cache: number; readonly index: number }[];
  readonly #sequences = new Set<GenerationSequence>();

  constructor(model: CachedModel, options: GenerationCacheOptions) {
    const isModel = Array.isArray(model?.config?.layers) && typeof model.settings === "object";
    expectValue("GenerationCache: model", isModel, "a CausalLM returned by loadModel", model);
    checkContext("GenerationCache", model.ctx);
    const parsed = generationCacheOptions.parse(options);
    const { blockSize, dtype } = parsed;
    const { ctx, config, settings } = model;
    modelsByCache.set(this, model);
    const windows = [...new Set(config.layers.map(({ window }) => window))];
    const layerCounts = windows.map(() => 0);
    this.#layers = config.layers.map(({ window }) => {
      const cache = windows.indexOf(window);
      return { cache, index: layerCounts[cache]!++ };
    });
    const { axis } = resolveCacheAxis(model);
    const ranks = axis === null ? 1 : ctx.mesh.shape[axis]!;
    const numBlocks = Math.ceil(parsed.maxTokens / (blockSize * ranks)) * ranks;
    this.maxSequences = parsed.maxSequences;
    this.maxPrefillTokens = parsed.maxPrefillTokens;
    this.blockSize = blockSize;
    this.maxTokens = numBlocks * blockSize;
    this.#caches = windows.map(
      (window, i) =>
        new KvCache(ctx, {
          numLayers: layerCounts[i]!,
          numKvHeads: config.numKvHeads,
          headDim: config.headDim,
          maxTokens: Math.min(numBlocks, countMaxWindowBlocks(window, parsed)) * blockSize,
          ...{ blockSize, axis },
          dtype: dtype ?? (settings.dtype === "bfloat16" ? "bfloat16" : "float32"),
          ...(window !== null && { slidingWindow: window }),
        }),
    );
  }

  /**
   * Capacity in tokens that no text uses. A text counts with all its tokens, in whole blocks, including those that a
   * window has dropped.
   */
  get freeTokens(): number {
    let numUsedBlocks = 0;
    for (const { length } of this.#sequences) numUsedBlocks += Math.ceil(length / this.blockSize);
    return this.maxTokens - numUsedBlocks * this.blockSize;
  }

  /** Bytes that are reserved for keys and values, over all ranks of the axis. */
  get bytes(): number {
    return this.#caches.reduce((sum, { maxTokens, bytesPerToken }) => sum + maxTokens * bytesPerToken, 0);
  }

  /**
   * Creates the memory of one text, which grows with the text.
   *
   * @throws OutOfMemoryError if `maxSequences` sequences are not disposed.
   */
  createSequence(): GenerationSequence {
    const { size } = this.#sequences;
    if (size >= this.maxSequences) {
      throw new OutOfMemoryError({
        where: "GenerationCache.createSequence",
        expected: `at most ${this.maxSequences} sequences at a time`,
        received: `${size} sequences that are not disposed`,
        remedy: "dispose finished sequences, or raise maxSequences",
      });
    }
    const parts = this.#caches.map((cache) => cache.createSequence());
    const sequence: GenerationSequence = new GenerationSequence(parts, () => this.#sequences.delete(sequence));
    this.#sequences.add(sequence);
    return sequence;
  }

  /**
   * Returns the cache for a call of the model's forward, with one text per sample. The texts may have different
   * lengths.
   */
  forCall(sequences: readonly GenerationSequence[], options?: OptionsOf<typeof forCallOptions>): DecoderCache {
    const { sharded } = forCallOptions.parse(options);
    const where = "GenerationCache.forCall: sequences";
    const areSequences = Array.isArray(sequences) && sequences.every((each) => each instanceof GenerationSequence);
    expectValue(where, areSequences, "an array of sequences from createSequence()", sequences);
    return {
      layer: (index) => {
        const numLayers = this.#layers.length;
        const isLayer = Number.isSafeInteger(index) && index >= 0 && index < numLayers;
        expectValue(
          "GenerationCache: layer",
          isLayer,
          `a layer from 0 to ${numLayers - 1} of the model of the cache`,
          index,
        );
        const { cache, index: layerIndex } = this.#layers[index]!;
        const batch = sequences.map((sequence) => sequence.parts[cache]!);
        return this.#caches[cache]!.layer(layerIndex, batch, { sharded });
      },
    };
  }

  /** Releases the memory in stream order. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const cache of this.#caches) cache.dispose();
  }
}

/** For each cache, the model that it was created for. */
const modelsByCache = new WeakMap<GenerationCache, CachedModel>();

/**
 * Throws an OptionError if the cache was created for a model with another context, or with layers of another number or
 * size.
 */
export function checkCachedModel(where: string, cache: GenerationCache, model: CachedModel): void {
  const cacheModel = modelsByCache.get(cache)!;
  const isSameContext = cacheModel.ctx === model.ctx;
  const [received, expected] = [cacheModel, model].map(describeLayers) as [string, string];
  if (isSameContext && received === expected) return;
  throw new OptionError({
    where,
    expected: `a cache created with this model, of ${expected}`,
    received: `one created with a model of ${received}${isSameContext ? "" : " in another context"}`,
    remedy: "create a GenerationCache with the model that uses it",
  });
}

/** Describes the sizes on which the memory of a cache depends. */
function describeLayers({ config: { layers, numKvHeads, headDim } }: CachedModel): string {
  const windows = layers.map(({ window }) => window);
  const windowsText = windows.every((window) => window === null) ? "" : `, windows [${windows.join(", ")}]`;
  return `numLayers ${layers.length}, numKvHeads ${numKvHeads}, headDim ${headDim}${windowsText}`;
}

/**
 * Returns the maximum number of blocks that the texts of a cache hold with a window: the keys that are visible to the
 * first token of the next part of a prompt, and that part. Both may begin and end within a block.
 */
function countMaxWindowBlocks(
  window: number | null,
  { blockSize, maxSequences, maxPrefillTokens }: { blockSize: number; maxSequences: number; maxPrefillTokens: number },
): number {
  if (window === null) return Number.POSITIVE_INFINITY;
  return maxSequences * (Math.ceil((window - 1 + maxPrefillTokens) / blockSize) + 1);
}

/** One text in a `GenerationCache`. */
export class GenerationSequence implements Disposable {
  /** The text's sequence in each `KvCache`. */
  readonly parts: readonly CacheSequence[];
  readonly #onDispose: () => void;

  /** Called by `GenerationCache.createSequence`. */
  constructor(parts: readonly CacheSequence[], onDispose: () => void) {
    this.parts = parts;
    this.#onDispose = onDispose;
  }

  /** Number of tokens that every layer has stored, including those that a sliding window has dropped. */
  get length(): number {
    return Math.min(...this.parts.map(({ length }) => length));
  }

  /** Releases the memory of the text. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const part of this.parts) part.dispose();
    this.#onDispose();
  }
}
