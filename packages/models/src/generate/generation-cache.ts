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
  /** Tokens of all texts that are generated at a time, prompts included, over all ranks of the axis. */
  maxTokens: option.integer({ min: 1 }),
  /** Tokens of a block, which is on one rank. Default 64. */
  blockSize: option.integer({ min: 1, default: 64 }),
  /** Of keys and values. Default: the model's dtype, float32 if that is float16. */
  dtype: option.oneOf(["float32", "bfloat16"], { optional: true }),
  /** The most texts at a time. Default 32. */
  maxSequences: option.integer({ min: 1, default: 32 }),
  /** The most tokens of prompts that a step takes in: a longer prompt takes several, between which other texts go on. Default 2048. */
  maxPrefillTokens: option.integer({ min: 1, default: 2048 }),
});
/** What `GenerationCache` takes beside the model. */
export type GenerationCacheOptions = OptionsOf<typeof generationCacheOptions>;

export const forCallOptions = defineOptions("GenerationCache.forCall", {
  /** Whether the new tokens are this rank's shard (prefill), not all of them on every rank. Default false. */
  sharded: option.boolean({ default: false }),
});

/** The model that a cache is for. */
export interface CachedModel {
  readonly ctx: Context;
  readonly config: ModelConfig;
  readonly settings: ModelSettings;
}

/** The mesh axis over which a model's keys are shared out, and whether prompts come in shards along it. */
export function resolveCacheAxis({ ctx, settings }: CachedModel): { axis: string | null; isSharded: boolean } {
  const { axes } = ctx.backend(settings.backend ?? "local");
  // A prompt is cut along one axis; beyond that every rank computes all of it, and the cache is shared out all the same.
  return { axis: axes.find((axis) => ctx.mesh.shape[axis]! > 1) ?? null, isSharded: axes.length === 1 };
}

/**
 * Memory for keys and values of texts that a model generates: a `KvCache` for the layers of each sliding window, another for those that see all
 * tokens. One of a window has room for what `maxSequences` texts keep of it, window + maxPrefillTokens tokens each, not for all tokens. `generate`
 * makes one for a call unless it is given one, which several calls share, one after another or at once.
 *
 * @throws OutOfMemoryError beyond the device's memory.
 */
export class GenerationCache implements Disposable {
  /** The most texts at a time. */
  readonly maxSequences: number;
  /** The most tokens of a prompt in one forward. */
  readonly maxPrefillTokens: number;
  /** Tokens of a block: a text takes whole ones. */
  readonly blockSize: number;
  /** Tokens for which there is memory. */
  readonly maxTokens: number;
  readonly #caches: readonly KvCache[];
  /** Of each layer: its cache, and its number in it. */
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

  /** Tokens for which there is memory that no text uses. A text counts with all its tokens, in whole blocks, whatever windows have dropped. */
  get freeTokens(): number {
    let numUsedBlocks = 0;
    for (const { length } of this.#sequences) numUsedBlocks += Math.ceil(length / this.blockSize);
    return this.maxTokens - numUsedBlocks * this.blockSize;
  }

  /** Bytes of keys and values that are reserved, over all ranks of the axis. */
  get bytes(): number {
    return this.#caches.reduce((sum, { maxTokens, bytesPerToken }) => sum + maxTokens * bytesPerToken, 0);
  }

  /**
   * The memory of one text; it grows with it.
   *
   * @throws OutOfMemoryError beyond `maxSequences` that are not disposed.
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

  /** For a model's forward: one text for each sample of the call; they may have different lengths. */
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

  /** Gives the memory back in stream order. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const cache of this.#caches) cache.dispose();
  }
}

const modelsByCache = new WeakMap<GenerationCache, CachedModel>();

/** Throws an OptionError for a cache that was created for a model of another context, or of layers of other sizes. */
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

/** What a cache's memory depends on. */
function describeLayers({ config: { layers, numKvHeads, headDim } }: CachedModel): string {
  const windows = layers.map(({ window }) => window);
  const windowsText = windows.every((window) => window === null) ? "" : `, windows [${windows.join(", ")}]`;
  return `numLayers ${layers.length}, numKvHeads ${numKvHeads}, headSize ${headDim}${windowsText}`;
}

/**
 * Blocks that the texts of a cache hold at most of a window: the keys that the first token of a prompt's next part sees, and that part. Both
 * may begin and end within a block.
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
  /** Its part of each `KvCache`. */
  readonly parts: readonly CacheSequence[];
  readonly #onDispose: () => void;

  /** `GenerationCache.createSequence` makes them. */
  constructor(parts: readonly CacheSequence[], onDispose: () => void) {
    this.parts = parts;
    this.#onDispose = onDispose;
  }

  /** Tokens that every layer holds, or has dropped as its window moved on. */
  get length(): number {
    return Math.min(...this.parts.map(({ length }) => length));
  }

  /** Gives its memory back. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const part of this.parts) part.dispose();
    this.#onDispose();
  }
}
