import { checkContext, type Context, defineOptions, expectValue, option, type OptionsOf } from "@mosaic/core";
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
export function cacheAxis({ ctx, settings }: CachedModel): { axis: string | null; isSharded: boolean } {
  const { axes } = ctx.backend(settings.backend ?? "local");
  // A prompt is cut along one axis; beyond that every rank computes all of it, and the cache is shared out all the same.
  return { axis: axes.find((axis) => ctx.mesh.shape[axis]! > 1) ?? null, isSharded: axes.length === 1 };
}

/**
 * Memory for keys and values of texts that a model generates: a `KvCache` for the layers of each sliding window, another for those that see all
 * tokens. `generate` makes one for a call unless it is given one, which several calls share, one after another or at once.
 *
 * @throws OutOfMemoryError beyond the device's memory.
 */
export class GenerationCache implements Disposable {
  readonly #caches: readonly KvCache[];
  /** Of each layer: its cache, and its number in it. */
  readonly #layers: readonly { readonly cache: number; readonly index: number }[];

  constructor(model: CachedModel, options: GenerationCacheOptions) {
    const isModel = Array.isArray(model?.config?.layers) && typeof model.settings === "object";
    expectValue("GenerationCache: model", isModel, "a CausalLM, as loadModel returns it", model);
    checkContext("GenerationCache", model.ctx);
    const { maxTokens, blockSize, dtype } = generationCacheOptions.parse(options);
    const { ctx, config, settings } = model;
    const windows = [...new Set(config.layers.map(({ window }) => window))];
    const counts = windows.map(() => 0);
    this.#layers = config.layers.map(({ window }) => {
      const cache = windows.indexOf(window);
      return { cache, index: counts[cache]!++ };
    });
    const { axis } = cacheAxis(model);
    this.#caches = windows.map(
      (window, i) =>
        new KvCache(ctx, {
          numLayers: counts[i]!,
          numKvHeads: config.numKvHeads,
          headSize: config.headDim,
          ...{ maxTokens, blockSize, axis },
          dtype: dtype ?? (settings.dtype === "bfloat16" ? "bfloat16" : "float32"),
          ...(window !== null && { slidingWindow: window }),
        }),
    );
  }

  /** Tokens for which there is memory that no text uses. */
  get freeTokens(): number {
    return Math.min(...this.#caches.map(({ freeTokens }) => freeTokens));
  }

  /** Tokens for which there is memory. */
  get maxTokens(): number {
    return this.#caches[0]!.maxTokens;
  }

  /** Tokens of a block: a text takes whole ones. */
  get blockSize(): number {
    return this.#caches[0]!.blockSize;
  }

  /** The memory of one text; it grows with it. */
  createSequence(): GenerationSequence {
    return new GenerationSequence(this.#caches.map((cache) => cache.createSequence()));
  }

  /** For a model's forward: one text for each sample of the call; they may have different lengths. */
  forCall(sequences: readonly GenerationSequence[], options?: OptionsOf<typeof forCallOptions>): DecoderCache {
    const { sharded } = forCallOptions.parse(options);
    const where = "GenerationCache.forCall: sequences";
    const areSequences = Array.isArray(sequences) && sequences.every((each) => each instanceof GenerationSequence);
    expectValue(where, areSequences, "an array of sequences from createSequence()", sequences);
    return {
      layer: (index) => {
        const { cache, index: own } = this.#layers[index]!;
        const batch = sequences.map((sequence) => sequence.parts[cache]!);
        return this.#caches[cache]!.layer(own, batch, { sharded });
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

/** One text in a `GenerationCache`. */
export class GenerationSequence implements Disposable {
  /** Its part of each `KvCache`. */
  readonly parts: readonly CacheSequence[];

  /** `GenerationCache.createSequence` makes them. */
  constructor(parts: readonly CacheSequence[]) {
    this.parts = parts;
  }

  /** Gives its memory back. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const part of this.parts) part.dispose();
  }
}
