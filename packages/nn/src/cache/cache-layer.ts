import {
  type AttentionCache,
  AutogradError,
  type CachedAttentionCall,
  checkDevice,
  checkTensor,
  defineOptions,
  expectValue,
  formatShape,
  isGradEnabled,
  option,
  OptionError,
  type OptionsOf,
  type ResolvedOptionsOf,
  scope,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { attendBlocks } from "./attend-blocks.ts";
import { type BlockTable, extendTables } from "./block-table.ts";
import type { CacheMemory } from "./cache-memory.ts";
import { prefill, type PrefillCall } from "./prefill.ts";

export const kvCacheLayerOptions = defineOptions("KvCache.layer", {
  /**
   * Number of new tokens of each sequence, such as `[5, 8]`, if the batch is padded on the right. Padding is not
   * stored, and its output is 0. Default: all.
   */
  lengths: option.array(option.integer({ min: 0 }), { optional: true }),
  /**
   * Whether the new tokens are this rank's shard under the module's placement (prefill). Otherwise every rank passes
   * all new tokens. Default false.
   */
  sharded: option.boolean({ default: false }),
});
/** Options of `KvCache.layer`. */
export type KvCacheLayerOptions = OptionsOf<typeof kvCacheLayerOptions>;

export const cachedAttentionOptions = defineOptions("KvCache: attend", {
  /**
   * The keys that are visible to each query: a mask over the new tokens × all tokens so far. Default: causal, or the
   * cache's sliding window.
   */
  mask: option.mask({ optional: true }),
  /** Factor on q·k. Default 1 / √D. */
  scale: option.number({ optional: true }),
  /**
   * Replaces scores by softcap · tanh(score / softcap). Requires a device with the feature `softcap`. Default: none.
   */
  softcap: option.number({ above: 0, optional: true }),
  /**
   * Attention sinks [H], one logit per query head: e^sink is added once to the head's softmax denominator, after the
   * last key (Xiao et al. 2023; gpt-oss). Default: none.
   */
  sinks: option.tensor({ optional: true }),
});
/** Options of `attend`. */
export type CachedAttentionOptions = OptionsOf<typeof cachedAttentionOptions>;

function checkCall(call: CachedAttentionCall): CachedAttentionCall {
  const { backend, layout } = (call ?? {}) as Partial<CachedAttentionCall>;
  const isValidCall = typeof backend?.attend === "function" && Array.isArray(layout?.axes);
  expectValue("KvCache: forward", isValidCall, "a call { mask, scale, backend, layout }", call);
  return call;
}

/**
 * One layer of a cache, for a batch of sequences. Created by `KvCache.layer`. An attention module takes it as `cache`;
 * `append` and `attend` do the same for q, k and v of a custom module.
 *
 * @example
 * ```ts
 * import { init, noGrad, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { KvCache } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using cache = new KvCache(ctx, { numKvHeads: 2, headDim: 8, maxTokens: 256 });
 * using sequence = cache.createSequence();
 * const layer = cache.layer(0, [sequence]);
 * using kv = randn(ctx, [1, 2, 5, 8]); // [B,Hkv,T,D]
 * layer.append(kv, kv);
 * using out = noGrad(() => layer.attend(randn(ctx, [1, 4, 5, 8]))); // [B,H,T,D]
 * [out.shape, layer.starts]; // => [[1, 4, 5, 8], [5]]
 * ```
 */
export class KvCacheLayer implements AttentionCache {
  readonly sharded: boolean;
  readonly #memory: CacheMemory;
  readonly #layer: number;
  readonly #tables: readonly BlockTable[];
  readonly #lengths: readonly number[] | undefined;

  // oxlint-disable-next-line max-params -- of which cache, what of it, and how
  constructor(
    memory: CacheMemory,
    { index, tables }: { index: number; tables: readonly BlockTable[] },
    options?: KvCacheLayerOptions,
  ) {
    const { lengths, sharded } = kvCacheLayerOptions.parse(options);
    this.sharded = sharded;
    this.#memory = memory;
    this.#layer = index;
    this.#tables = tables;
    this.#lengths = lengths;
    if (lengths === undefined || lengths.length === tables.length) return;
    throw new ShapeError({
      where: "KvCache.layer: lengths",
      expected: `${tables.length} lengths, one for each sequence`,
      received: String(lengths.length),
    });
  }

  /** The position of the next token of each sequence, which is the number of its tokens in this layer. */
  get starts(): readonly number[] {
    return this.#tables.map((table) => table.getLayerLength(this.#layer));
  }

  /**
   * Stores k [B,Hkv,T,D] and v [B,Hkv,T,Dv] of T new tokens per sequence. The tensors are the same on every rank of the
   * axis, and each rank stores the rows of its own blocks. No communication.
   *
   * @throws OutOfMemoryError for a full cache, ShapeError, DTypeError, before anything is stored. If the call throws,
   * the sequences are unchanged.
   */
  append(k: Tensor, v: Tensor): void {
    const where = "KvCache: append";
    this.#checkInference(where, [k, v]);
    const rows = this.#checkNewKeys(where, k, v);
    const counts = this.#resolveTokenCounts(where, rows);
    const starts = this.starts;
    this.#rollBackOnError(() => {
      extendTables(this.#layer, this.#tables, counts);
      scope(() => {
        for (const [sample, start] of starts.entries()) {
          const blockRows = this.#tables[sample]!.listRankRows(this.#memory.rank, start, start + counts[sample]!);
          for (const { position, row, length } of blockRows) {
            this.#write({ k, v }, { sample, sourceRow: position - start, row, length });
          }
        }
      });
    });
  }

  /** Runs `body`. If it throws, truncates this layer's sequences to their lengths before the call. */
  #rollBackOnError<T>(body: () => T): T {
    const starts = this.starts;
    try {
      return body();
    } catch (error) {
      for (const [i, table] of this.#tables.entries()) {
        if (!table.isReleased && table.getLayerLength(this.#layer) > starts[i]!)
          table.rollBack(this.#layer, starts[i]!);
      }
      throw error;
    }
  }

  /** Writes rows of a batch element to this rank's memory. */
  #write(
    kv: { k: Tensor; v: Tensor },
    rowRange: { sample: number; sourceRow: number; row: number; length: number },
  ): void {
    const { sample, sourceRow, row, length } = rowRange;
    for (const name of ["k", "v"] as const) {
      const { device, shape, strides, offset } = this.#memory[name];
      const [x, [, heads, , size]] = [kv[name], shape as [number, number, number, number]];
      const [batchStride, headStride, rowStride, columnStride] = x.strides as [number, number, number, number];
      const source = x.view({
        shape: [heads, length, size],
        strides: [headStride, rowStride, columnStride],
        offset: x.offset + sample * batchStride + sourceRow * rowStride,
      });
      const target = this.#memory[name].view({
        shape: [heads, length, size],
        strides: strides.slice(1),
        offset: offset + this.#layer * strides[0]! + row * strides[2]!,
      });
      device.kernels.copy(target, source);
    }
  }

  /**
   * Returns the attention of q [B,H,T,D], the last T tokens of each sequence, to all keys that are visible under the
   * mask: [B,H,T,Dv] in q's dtype and in the memory order [B,T,H,Dv], the same on every rank of the axis. Collective
   * along the axis: each of R ranks sends its states, (R − 1) · B · T · H · (Dv + 1) · 4 bytes.
   *
   * @throws ShapeError, DTypeError, OptionError, before anything is sent.
   */
  attend(q: Tensor, options?: CachedAttentionOptions): Tensor {
    const where = "KvCache: attend";
    const parsedOptions = cachedAttentionOptions.parse(options, where);
    this.#checkInference(where, [q]);
    this.#checkQueries(where, q, parsedOptions);
    const counts = this.#resolveTokenCounts(where, q.shape[2]!);
    const batch = { layer: this.#layer, tables: this.#tables, counts };
    return scope(() => attendBlocks(this.#memory, batch, { q, ...parsedOptions }));
  }

  /** Stores k and v, then attends. Called by attention modules. If it throws, the sequences are unchanged. */
  // oxlint-disable-next-line max-params -- q, k and v are the field's names
  forward(q: Tensor, k: Tensor, v: Tensor, call: CachedAttentionCall): Tensor {
    const { mask, scale, softcap, sinks, layout } = checkCall(call);
    return this.#rollBackOnError(() => {
      if (this.sharded && layout.axes.length > 0) return this.#prefill({ q, k, v, ...call });
      this.append(k, v);
      return this.attend(q, { mask, scale, softcap, sinks: sinks ?? undefined });
    });
  }

  #prefill(call: PrefillCall): Tensor {
    const where = "KvCache: prefill";
    this.#checkInference(where, [call.q, call.k, call.v]);
    if (this.#lengths === undefined) {
      return prefill(this.#memory, { layer: this.#layer, tables: this.#tables }, call);
    }
    throw new OptionError({
      where,
      expected: "no `lengths` with sharded new tokens",
      received: `lengths [${this.#lengths.join(",")}]`,
      remedy: "pass sequences of different lengths one at a time, or pass whole sequences without `sharded`",
    });
  }

  /**
   * Validates the tensors, the context and the sequences. Throws an AutogradError if a gradient is required, because a
   * cache has no backward.
   */
  #checkInference(where: string, tensors: readonly Tensor[]): void {
    for (const x of tensors) checkTensor(where, x, 4);
    this.#memory.ctx.assertOpen(where);
    this.#memory.k.assertNotDisposed(where);
    for (const x of tensors) checkDevice(where, this.#memory.k, x);
    for (const table of this.#tables) {
      if (table.isReleased) throw new OptionError({ where, expected: "sequences in use", received: "a disposed one" });
    }
    if (!isGradEnabled() || !tensors.some((x) => x.requiresGrad)) return;
    throw new AutogradError({
      where,
      expected: "a call within noGrad(), because the cache supports inference only",
      received: "a tensor that requires a gradient",
      remedy: "wrap the forward in noGrad(() => …)",
    });
  }

  /** Checks the shapes of k and v, and returns the number of new tokens. */
  // oxlint-disable-next-line max-params -- k and v are the field's names
  #checkNewKeys(where: string, k: Tensor, v: Tensor): number {
    const { numKvHeads, headDim, valueHeadDim } = this.#memory;
    const [batch, rows] = [this.#tables.length, k.shape[2]!];
    const expected = [headDim, valueHeadDim].map((size) => [batch, numKvHeads, rows, size]);
    const haveExpectedShapes = [k, v].every((x, i) => x.shape.every((length, axis) => length === expected[i]![axis]));
    if (haveExpectedShapes) return rows;
    throw new ShapeError({
      where,
      expected: `k [${batch},${numKvHeads},T,${headDim}] and v [${batch},${numKvHeads},T,${valueHeadDim}], one batch element per sequence`,
      received: `${formatShape(k.shape)} and ${formatShape(v.shape)}`,
    });
  }

  #checkQueries(where: string, q: Tensor, { sinks }: ResolvedOptionsOf<typeof cachedAttentionOptions>): void {
    const { numKvHeads, headDim } = this.#memory;
    const [batch, heads, , size] = q.shape as [number, number, number, number];
    if (batch !== this.#tables.length || heads % numKvHeads !== 0 || size !== headDim) {
      throw new ShapeError({
        where,
        expected: `q [${this.#tables.length},H,T,${headDim}], H a multiple of ${numKvHeads}, one batch element per sequence`,
        received: formatShape(q.shape),
      });
    }
    if (!sinks || (sinks.rank === 1 && sinks.shape[0] === heads)) return;
    throw new ShapeError({
      where: `${where}: sinks`,
      expected: `shape [${heads}], one logit per query head`,
      received: formatShape(sinks.shape),
    });
  }

  /** Returns how many of the `rows` new rows of each sequence are tokens. The others are padding. */
  #resolveTokenCounts(where: string, rows: number): readonly number[] {
    const lengths = this.#lengths ?? this.#tables.map(() => rows);
    const sample = lengths.findIndex((length) => length > rows);
    if (sample < 0) return lengths;
    throw new ShapeError({
      where: `${where}: lengths[${sample}]`,
      expected: `at most ${rows}, the padded number of new tokens`,
      received: String(lengths[sample]),
    });
  }
}
