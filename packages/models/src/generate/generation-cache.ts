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

  /** The memory of one text; it grows with it. */
  createSequence(): GenerationSequence {
    const sequences = this.#caches.map((cache) => cache.createSequence());
    const layers = this.#layers.map(({ cache, index }) => {
      const [memory, sequence] = [this.#caches[cache]!, sequences[cache]!];
      return (sharded: boolean) => memory.layer(index, [sequence], { sharded });
    });
    return new GenerationSequence(sequences, layers);
  }

  /** Gives the memory back in stream order. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const cache of this.#caches) cache.dispose();
  }
}

type LayerOf = (sharded: boolean) => ReturnType<KvCache["layer"]>;

/** One text in a `GenerationCache`. */
export class GenerationSequence implements Disposable {
  readonly #sequences: readonly CacheSequence[];
  readonly #layers: readonly LayerOf[];

  constructor(sequences: readonly CacheSequence[], layers: readonly LayerOf[]) {
    this.#sequences = sequences;
    this.#layers = layers;
  }

  /** For a model's forward; `sharded` if the new tokens are this rank's shard. */
  forCall(sharded: boolean): DecoderCache {
    return { layer: (index) => this.#layers[index]!(sharded) };
  }

  [Symbol.dispose](): void {
    for (const sequence of this.#sequences) sequence.dispose();
  }
}
