import { checkContext } from "../arguments.ts";
import { attention } from "../attention/attention.ts";
import { checkpoint } from "../autograd/checkpoint.ts";
import type { Context } from "../context.ts";
import type { Mask } from "../mask/slice.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import type { Layout } from "../placement/placement.ts";
import { scope } from "../scope.ts";
import type { Tensor } from "../tensor.ts";
import {
  type AttentionForwardOptions,
  attentionForwardOptions,
  attentionModuleOptions,
  checkInput,
  type ResolvedOptions,
  resolveMask,
  resolveOptions,
} from "./attention-options.ts";
import { Linear } from "./linear.ts";
import { Module } from "./module.ts";
import { applyPositionEncoding, mergeHeads, sequenceLayout, splitHeads, toSequence } from "./sequence.ts";

/** Projections to queries, keys and values, laid out [q|k|v], and back: what self-attention modules share. */
export abstract class SelfAttention extends Module {
  protected readonly ctx: Context;
  protected readonly settings: ResolvedOptions;
  readonly qkvProjection: Linear;
  readonly outProjection: Linear;

  protected constructor(ctx: Context, settings: ResolvedOptions) {
    super();
    const { embedDim, numHeads, numKvHeads, headDim, bias, dtype } = settings;
    this.ctx = ctx;
    this.settings = settings;
    const projected = (numHeads + 2 * numKvHeads) * headDim;
    this.qkvProjection = this.addChild("qkv_proj", new Linear(ctx, embedDim, projected, { bias, dtype }));
    this.outProjection = this.addChild("out_proj", new Linear(ctx, numHeads * headDim, embedDim, { bias, dtype }));
  }

  /** Where this module's sequence lies; `rows` are those of this rank. */
  protected layout(rows: number, sequenceLength: number | undefined): Layout {
    return sequenceLayout(this.ctx, this.settings, { rows, length: sequenceLength ?? this.settings.sequenceLength });
  }

  /** rows [B,S,E] → [B,S,E]. */
  protected attend(rows: Tensor, mask: Mask, layout: Layout): Tensor {
    const run = (x: Tensor) => scope(() => this.#attend(x, mask, layout));
    return this.settings.useCheckpoint ? checkpoint(run, rows) : run(rows);
  }

  #attend(rows: Tensor, mask: Mask, layout: Layout): Tensor {
    const { numHeads, numKvHeads, headDim: size, backend, scale, positions } = this.settings;
    const encode = (x: Tensor) => applyPositionEncoding(this.ctx, x, { positions, layout });
    const qkv = this.qkvProjection.forward(rows);
    const q = encode(splitHeads(qkv, { first: 0, count: numHeads, size }));
    const k = encode(splitHeads(qkv, { first: numHeads, count: numKvHeads, size }));
    const v = splitHeads(qkv, { first: numHeads + numKvHeads, count: numKvHeads, size });
    const out = attention(this.ctx, q, k, v, { backend, mask, scale, queries: layout, keys: layout });
    return this.outProjection.forward(mergeHeads(out));
  }
}

export const multiAxisAttentionOptions = defineOptions("MultiAxisAttention", {
  /** The tensor axis to attend along; negative ones count from the end, the last is the embedding and not legal. */
  attentionAxis: option.integer(),
  ...attentionModuleOptions.fields,
});
/** What MultiAxisAttention takes. */
export type MultiAxisAttentionOptions = OptionsOf<typeof multiAxisAttentionOptions>;

/**
 * Multi-head self-attention along one axis of a tensor of any rank; all other axes are batch.
 *
 * Parameters: qkv_proj.weight [(H + 2·Hkv)·D, E] and bias, laid out [q|k|v]; out_proj.weight [E, H·D] and bias.
 *
 * With a backend over mesh axes, the attention axis is cut along those: each rank passes its shard, gets its shard's result
 * and communicates inside. With "local" the axis lies whole on every rank.
 *
 * @example
 * ```ts
 * import { init, MultiAxisAttention, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new MultiAxisAttention(ctx, { embedDim: 32, numHeads: 4, attentionAxis: 1, causal: true });
 * using x = randn(ctx, [2, 10, 3, 32]);
 * using out = attn.forward(x);
 * out.shape; // => [2, 10, 3, 32]
 * ```
 * @throws OptionError for options that do not exist or do not go together.
 */
export class MultiAxisAttention extends SelfAttention {
  readonly #axis: number;

  constructor(ctx: Context, options: MultiAxisAttentionOptions) {
    checkContext("MultiAxisAttention", ctx);
    const parsed = multiAxisAttentionOptions.parse(options);
    super(ctx, resolveOptions("MultiAxisAttention", ctx, parsed));
    this.#axis = parsed.attentionAxis;
  }

  /**
   * x [..,E] → the same shape, dense: this rank's shard. Collective along the backend's axes.
   *
   * @throws ShapeError for an embedding, axis or number of rows that does not fit; DTypeError; ClosedError.
   */
  forward(x: Tensor, options?: AttentionForwardOptions): Tensor {
    const { ctx, settings } = this;
    ctx.assertOpen(settings.name);
    const call = attentionForwardOptions.parse(options, `${settings.name}.forward`);
    checkInput(settings, x, settings.embedDim);
    const sequence = toSequence(settings.name, x, [this.#axis]);
    const layout = this.layout(sequence.lengths[0]!, call.sequenceLength);
    return sequence.restore(this.attend(sequence.rows, resolveMask(settings, call), layout));
  }
}
