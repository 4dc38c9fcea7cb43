import { attention } from "../attention/attention.ts";
import { checkpoint } from "../autograd/checkpoint.ts";
import { checkContext } from "../arguments.ts";
import type { Context } from "../context.ts";
import { ShapeError } from "../errors.ts";
import type { Mask } from "../mask/slice.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { type Layout, type Placement, resolvePlacement } from "../placement/placement.ts";
import { scope } from "../scope.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { attentionModuleOptions, checkInput, type ResolvedOptions, resolveOptions } from "./attention-options.ts";
import { applyPositionEncoding, mergeHeads, sequenceLayout, splitHeads, toSequence } from "./sequence.ts";
import { Linear } from "./linear.ts";
import { Module } from "./module.ts";

export const crossAxisAttentionOptions = defineOptions("CrossAxisAttention", {
  /** The axis of the query source to attend along. */
  qAxis: option.integer(),
  /** The axis of the key and value source to attend along. */
  kvAxis: option.integer(),
  /** Length of the key source's last axis. Default: embedDim. */
  kvEmbedDim: option.integer({ min: 1, optional: true }),
  /** How the keys are cut into shards. Default: as the queries, by `placement`. */
  kvPlacement: option.placement({ optional: true }),
  /** Rows of all the keys over all shards. Default: local rows times shards. */
  kvSequenceLength: option.integer({ min: 1, optional: true }),
  ...attentionModuleOptions.fields,
});
/** What CrossAxisAttention takes; the common options are those of the queries. */
export type CrossAxisAttentionOptions = OptionsOf<typeof crossAxisAttentionOptions>;

export const crossAxisForwardOptions = defineOptions("CrossAxisAttention.forward", {
  /** Which keys each query sees in this call. Default: the module's. */
  mask: option.mask({ optional: true }),
  /** Rows of all the queries in this call. Default: the module's. */
  sequenceLength: option.integer({ min: 0, optional: true }),
  /** Rows of all the keys in this call. Default: the module's. */
  kvSequenceLength: option.integer({ min: 0, optional: true }),
});
/** What one call of CrossAxisAttention may change. */
export type CrossAxisForwardOptions = OptionsOf<typeof crossAxisForwardOptions>;

interface Layouts {
  readonly queries: Layout;
  readonly keys: Layout;
}

/**
 * Multi-head attention from one tensor to another: queries along `qAxis` of the first see keys along `kvAxis` of the
 * second. Lengths, placements and embeddings may differ; all other axes are batch and must have as many elements in both.
 * Both sequences are cut along the backend's axes. A causal mask is bottom-right aligned.
 *
 * Parameters: q_proj, kv_proj (laid out [k|v]) and out_proj, each with weight and bias.
 *
 * @example
 * ```ts
 * import { CrossAxisAttention, init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new CrossAxisAttention(ctx, { embedDim: 16, numHeads: 2, qAxis: 1, kvAxis: 2 });
 * using rows = randn(ctx, [3, 7, 16]);
 * using memory = randn(ctx, [3, 1, 5, 16]);
 * using out = attn.forward(rows, memory);
 * out.shape; // => [3, 7, 16]
 * ```
 */
export class CrossAxisAttention extends Module {
  readonly qProjection: Linear;
  readonly kvProjection: Linear;
  readonly outProjection: Linear;
  readonly #ctx: Context;
  readonly #settings: ResolvedOptions;
  readonly #kv: { readonly axis: number; readonly embed: number; readonly placement: Placement; length?: number };
  readonly #axis: number;

  constructor(ctx: Context, options: CrossAxisAttentionOptions) {
    super();
    checkContext("CrossAxisAttention", ctx);
    const parsed = crossAxisAttentionOptions.parse(options);
    const settings = resolveOptions("CrossAxisAttention", ctx, parsed);
    const { embedDim, numHeads, numKvHeads, headDim, bias, dtype } = settings;
    const { kvEmbedDim = embedDim, kvPlacement, kvSequenceLength } = parsed;
    this.#ctx = ctx;
    this.#settings = settings;
    this.#axis = parsed.qAxis;
    this.#kv = {
      axis: parsed.kvAxis,
      embed: kvEmbedDim,
      placement: kvPlacement === undefined ? settings.placement : resolvePlacement(kvPlacement),
      ...(kvSequenceLength !== undefined && { length: kvSequenceLength }),
    };
    this.qProjection = this.addChild("q_proj", new Linear(ctx, embedDim, numHeads * headDim, { bias, dtype }));
    this.kvProjection = this.addChild(
      "kv_proj",
      new Linear(ctx, kvEmbedDim, 2 * numKvHeads * headDim, { bias, dtype }),
    );
    this.outProjection = this.addChild("out_proj", new Linear(ctx, numHeads * headDim, embedDim, { bias, dtype }));
  }

  /** qSource [..,E], kvSource [..,kvE] → qSource's shape, dense. Collective along the backend's axes. */
  forward(qSource: Tensor, kvSource: Tensor, options?: CrossAxisForwardOptions): Tensor {
    const settings = this.#settings;
    this.#ctx.assertOpen(settings.name);
    const call = crossAxisForwardOptions.parse(options);
    checkInput(settings, qSource, settings.embedDim);
    checkInput(settings, kvSource, this.#kv.embed);
    const queries = toSequence(settings.name, qSource, [this.#axis]);
    const q = queries.rows;
    const kv = toSequence(settings.name, kvSource, [this.#kv.axis]).rows;
    if (q.shape[0] !== kv.shape[0]) {
      throw new ShapeError({
        where: settings.name,
        expected: "equal batch sizes (the product of all other axes) of both sources",
        received: `${formatShape(qSource.shape)} along ${this.#axis}, ${formatShape(kvSource.shape)} along ${this.#kv.axis}`,
      });
    }
    const layouts = this.#layouts({ queries: q.shape[1]!, keys: kv.shape[1]! }, call);
    const mask = call.mask ?? settings.mask;
    const run = (q: Tensor, kv: Tensor) => scope(() => this.#attend({ q, kv }, mask, layouts));
    return queries.restore(settings.useCheckpoint ? checkpoint(run, q, kv) : run(q, kv));
  }

  #layouts(rows: { queries: number; keys: number }, call: ResolvedOptionsOf<typeof crossAxisForwardOptions>): Layouts {
    const { backend, placement, sequenceLength } = this.#settings;
    const queryLength = call.sequenceLength ?? sequenceLength;
    const keyLength = call.kvSequenceLength ?? this.#kv.length;
    return {
      queries: sequenceLayout(this.#ctx, { backend, placement }, { rows: rows.queries, length: queryLength }),
      keys: sequenceLayout(
        this.#ctx,
        { backend, placement: this.#kv.placement },
        { rows: rows.keys, length: keyLength },
      ),
    };
  }

  #attend(rows: { q: Tensor; kv: Tensor }, mask: Mask, layouts: Layouts): Tensor {
    const { numHeads, numKvHeads, headDim: size, backend, scale, positions } = this.#settings;
    const encode = (x: Tensor, layout: Layout) => applyPositionEncoding(this.#ctx, x, { positions, layout });
    const projected = this.qProjection.forward(rows.q);
    const kv = this.kvProjection.forward(rows.kv);
    const q = encode(splitHeads(projected, { first: 0, count: numHeads, size }), layouts.queries);
    const k = encode(splitHeads(kv, { first: 0, count: numKvHeads, size }), layouts.keys);
    const v = splitHeads(kv, { first: numKvHeads, count: numKvHeads, size });
    const out = attention(this.#ctx, q, k, v, { backend, mask, scale, ...layouts });
    return this.outProjection.forward(mergeHeads(out));
  }
}
