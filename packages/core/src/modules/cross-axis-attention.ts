import { attention } from "../attention/attention.ts";
import { checkContext } from "../arguments.ts";
import type { Context } from "../context.ts";
import { ShapeError } from "../errors.ts";
import { batchMaskOptions, checkDistances } from "../mask/samples.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { type Layout, type Placement, type PlacementName, resolvePlacement } from "../placement/placement.ts";
import { withAxisSharding } from "../placement/sharding.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { attendInScope, AttentionModule, checkInputSharding } from "./attention-module.ts";
import {
  attentionModuleOptions,
  type BatchMask,
  checkInput,
  resolveOptions,
  scoreOptions,
} from "./attention-options.ts";
import { encodeHeads, mergeHeads, sequenceLayout, splitHeads, toSequence } from "./sequence.ts";
import { Linear } from "./linear.ts";

export const crossAxisAttentionOptions = defineOptions("CrossAxisAttention", {
  /** The attention axis of the query source. */
  qAxis: option.integer(),
  /** The attention axis of the key and value source. */
  kvAxis: option.integer(),
  /** Length of the key source's last axis. Default: embedDim. */
  kvEmbedDim: option.integer({ min: 1, optional: true }),
  /** Placement of the keys. Default: `placement`, as for the queries. */
  kvPlacement: option.placement({ optional: true }),
  /** Total number of keys over all shards. Default: local rows times shards. */
  kvSequenceLength: option.integer({ min: 1, optional: true }),
  ...attentionModuleOptions.fields,
});
/** Options of CrossAxisAttention. The common options refer to the queries. */
export type CrossAxisAttentionOptions = OptionsOf<typeof crossAxisAttentionOptions>;

export const crossAxisForwardOptions = defineOptions("CrossAxisAttention.forward", {
  /**
   * The keys that are visible to each query in this call: one mask, or one per sample of the batch. Default: the
   * module's mask.
   */
  mask: option.either(option.mask(), option.array(option.mask()), { optional: true }),
  /**
   * Number of tokens of each sample, `{ queries: [5, 8], keys: [5, 8] }`, if sequences are padded to one length. A
   * sample's mask applies to its own tokens, as if it were alone. Padding neither attends nor is attended to. Default:
   * no padding.
   */
  lengths: batchMaskOptions.fields.lengths,
  /** The side of the padding: before the tokens ("left") or after them ("right"). Default "right". */
  padding: batchMaskOptions.fields.padding,
  /** Placement of the queries in this call. Default: that of the module. */
  placement: option.placement({ optional: true }),
  /** Placement of the keys in this call. Default: that of the module. */
  kvPlacement: option.placement({ optional: true }),
  /** Total number of queries in this call. Default: that of the module. */
  sequenceLength: option.integer({ min: 0, optional: true }),
  /** Total number of keys in this call. Default: that of the module. */
  kvSequenceLength: option.integer({ min: 0, optional: true }),
});
/** Options of one call of CrossAxisAttention, which override those of the module. */
export type CrossAxisForwardOptions = OptionsOf<typeof crossAxisForwardOptions>;

interface CrossAxisLayouts {
  readonly queries: Layout;
  readonly keys: Layout;
}

/**
 * Multi-head attention from one tensor to another: queries along `qAxis` of the first attend to keys along `kvAxis` of
 * the second. Lengths, placements and embedding sizes may differ. All other axes are batch axes, with the same total
 * number of elements in both tensors. Both sequences are sharded along the backend's axes. A causal mask is
 * bottom-right aligned.
 *
 * Parameters: q_proj, kv_proj (laid out [k|v]) and out_proj, each with weight and bias; with `sinks`, sinks [H].
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
export class CrossAxisAttention extends AttentionModule {
  readonly qProjection: Linear;
  readonly kvProjection: Linear;
  readonly #kv: { readonly axis: number; readonly embedDim: number; readonly placement: Placement; length?: number };
  readonly #axis: number;

  constructor(ctx: Context, options: CrossAxisAttentionOptions) {
    checkContext("CrossAxisAttention", ctx);
    const parsedOptions = crossAxisAttentionOptions.parse(options);
    const settings = resolveOptions("CrossAxisAttention", ctx, parsedOptions);
    const { embedDim, numHeads, numKvHeads, headDim, bias, dtype } = settings;
    const { kvEmbedDim = embedDim, kvPlacement, kvSequenceLength } = parsedOptions;
    const qProjection = new Linear(ctx, embedDim, numHeads * headDim, { bias, dtype });
    const kvProjection = new Linear(ctx, kvEmbedDim, 2 * numKvHeads * headDim, { bias, dtype });
    super(ctx, settings, { q_proj: qProjection, kv_proj: kvProjection });
    this.qProjection = qProjection;
    this.kvProjection = kvProjection;
    this.#axis = parsedOptions.qAxis;
    this.#kv = {
      axis: parsedOptions.kvAxis,
      embedDim: kvEmbedDim,
      placement: kvPlacement === undefined ? settings.placement : resolvePlacement(kvPlacement),
      ...(kvSequenceLength !== undefined && { length: kvSequenceLength }),
    };
  }

  /**
   * Maps qSource [..,E] and kvSource [..,kvE] to the shape of qSource, contiguous. Collective along the backend's axes.
   */
  forward(qSource: Tensor, kvSource: Tensor, options?: CrossAxisForwardOptions): Tensor {
    const { settings } = this;
    this.ctx.assertOpen(settings.name);
    const call = crossAxisForwardOptions.parse(options);
    checkInput(settings, qSource, settings.embedDim);
    checkInput(settings, kvSource, this.#kv.embedDim);
    const queries = toSequence(settings.name, qSource, [this.#axis]);
    const q = queries.rows;
    const kv = toSequence(settings.name, kvSource, [this.#kv.axis]).rows;
    if (q.shape[0] !== kv.shape[0]) {
      throw new ShapeError({
        where: settings.name,
        expected: "the same batch size (the product of all other axes) for both sources",
        received: `${formatShape(qSource.shape)} along ${this.#axis}, ${formatShape(kvSource.shape)} along ${this.#kv.axis}`,
      });
    }
    const layouts = this.#layouts({ queries: q.shape[1]!, keys: kv.shape[1]! }, call);
    const axisSharding = checkInputSharding(this.ctx, qSource, {
      where: `${settings.name}: queries`,
      axis: this.#axis,
      layout: layouts.queries,
    });
    checkInputSharding(this.ctx, kvSource, {
      where: `${settings.name}: keys`,
      axis: this.#kv.axis,
      layout: layouts.keys,
    });
    const { mask = settings.mask, lengths, padding } = call;
    const batchMask = { mask, padding, ...(lengths && { lengths }) };
    const attendQkv = (q: Tensor, kv: Tensor) => this.#attend({ q, kv }, batchMask, layouts);
    const out = queries.restore(attendInScope(settings, attendQkv, q, kv));
    out.sharding = withAxisSharding(qSource.sharding, axisSharding);
    return out;
  }

  #layouts(
    rows: { queries: number; keys: number },
    call: ResolvedOptionsOf<typeof crossAxisForwardOptions>,
  ): CrossAxisLayouts {
    const { name, backend, sequenceLength } = this.settings;
    const sequenceOptions = (placement: Placement | PlacementName | undefined, defaultPlacement: Placement) => ({
      name,
      backend,
      placement: placement === undefined ? defaultPlacement : resolvePlacement(placement),
    });
    const queryLength = call.sequenceLength ?? sequenceLength;
    const keyLength = call.kvSequenceLength ?? this.#kv.length;
    const queryOptions = sequenceOptions(call.placement, this.settings.placement);
    return {
      queries: sequenceLayout(this.ctx, queryOptions, {
        rows: rows.queries,
        length: queryLength,
        axisName: "qAxis",
      }),
      keys: sequenceLayout(this.ctx, sequenceOptions(call.kvPlacement, this.#kv.placement), {
        rows: rows.keys,
        length: keyLength,
        axisName: "kvAxis",
      }),
    };
  }

  #attend(rows: { q: Tensor; kv: Tensor }, mask: BatchMask, layouts: CrossAxisLayouts): Tensor {
    const { numHeads, numKvHeads, headDim: size, backend, positions, qNorm, kNorm } = this.settings;
    const where = this.settings.name;
    const batchSizes = { batch: rows.q.shape[0]!, queries: layouts.queries.length, keys: layouts.keys.length };
    if (positions) checkDistances(where, "positions", mask, batchSizes);
    const projectedQ = this.qProjection.forward(rows.q);
    const kv = this.kvProjection.forward(rows.kv);
    const queryHeads = splitHeads(projectedQ, { first: 0, count: numHeads, size });
    const keyHeads = splitHeads(kv, { first: 0, count: numKvHeads, size });
    const q = encodeHeads(this.ctx, queryHeads, { where, norm: qNorm, positions, layout: layouts.queries });
    const k = encodeHeads(this.ctx, keyHeads, { where, norm: kNorm, positions, layout: layouts.keys });
    const v = splitHeads(kv, { first: numKvHeads, count: numKvHeads, size });
    const out = attention(this.ctx, q, k, v, { backend, ...scoreOptions(this.settings, this), ...mask, ...layouts });
    return this.outProjection.forward(mergeHeads(out));
  }
}
