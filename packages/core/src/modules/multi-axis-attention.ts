import { checkContext } from "../arguments.ts";
import { attention } from "../attention/attention.ts";
import type { Context } from "../context.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { type Layout, type Placement, type PlacementName, resolvePlacement } from "../placement/placement.ts";
import { withAxisSharding } from "../placement/sharding.ts";
import type { Span } from "../placement/span.ts";
import { scope } from "../scope.ts";
import type { Tensor } from "../tensor.ts";
import type { AttentionCache } from "./attention-cache.ts";
import { attendInScope, AttentionModule, checkInputSharding } from "./attention-module.ts";
import {
  type AttentionForwardOptions,
  attentionForwardOptions,
  attentionModuleOptions,
  type BatchMask,
  checkInput,
  type HeadNorm,
  type ResolvedOptions,
  rejectDropout,
  resolveCachedMask,
  resolveMask,
  resolveOptions,
  scoreOptions,
} from "./attention-options.ts";
import { Linear } from "./linear.ts";
import { encodeHeads, mergeHeads, sequenceLayout, splitHeads, toSequence } from "./sequence.ts";

/** Base class of self-attention modules, with one projection to queries, keys and values, laid out [q|k|v]. */
export abstract class SelfAttention extends AttentionModule {
  readonly qkvProjection: Linear;

  protected constructor(ctx: Context, settings: ResolvedOptions) {
    const { embedDim, numHeads, numKvHeads, headDim, bias, dtype } = settings;
    const qkv = new Linear(ctx, embedDim, (numHeads + 2 * numKvHeads) * headDim, { bias, dtype });
    super(ctx, settings, { qkv_proj: qkv });
    this.qkvProjection = qkv;
  }

  /** Returns the layout of the sequence in a call. `rows` is the number of rows of this rank. */
  protected layout(
    rows: number,
    {
      placement,
      sequenceLength,
      axisName = "the attention axis",
    }: { placement: Placement | PlacementName | undefined; sequenceLength: number | undefined; axisName?: string },
  ): Layout {
    const { name, backend } = this.settings;
    const resolvedPlacement = placement === undefined ? this.settings.placement : resolvePlacement(placement);
    const length = sequenceLength ?? this.settings.sequenceLength;
    return sequenceLayout(this.ctx, { name, backend, placement: resolvedPlacement }, { rows, length, axisName });
  }

  /** Computes attention of rows [B,S,E] → [B,S,E]. */
  protected attend(rows: Tensor, mask: BatchMask, layout: Layout): Tensor {
    return attendInScope(this.settings, (x: Tensor) => this.#attend(x, mask, layout), rows);
  }

  #attend(rows: Tensor, mask: BatchMask, layout: Layout): Tensor {
    const { numHeads, numKvHeads, headDim: size, backend, positions, qNorm, kNorm } = this.settings;
    const encode = (x: Tensor, norm: HeadNorm | null) =>
      encodeHeads(this.ctx, x, { where: this.settings.name, norm, positions, layout });
    const qkv = this.qkvProjection.forward(rows);
    const q = encode(splitHeads(qkv, { first: 0, count: numHeads, size }), qNorm);
    const k = encode(splitHeads(qkv, { first: numHeads, count: numKvHeads, size }), kNorm);
    const v = splitHeads(qkv, { first: numHeads + numKvHeads, count: numKvHeads, size });
    const scores = scoreOptions(this.settings, this);
    const out = attention(this.ctx, q, k, v, { backend, ...scores, ...mask, queries: layout, keys: layout });
    return this.outProjection.forward(mergeHeads(out));
  }

  /**
   * Computes attention of new tokens, rows [B,S,E] → [B,S,E]. They attend to the cached tokens, and their keys and
   * values are stored in the cache.
   */
  protected attendCached(rows: Tensor, cache: AttentionCache, call: CachedForwardOptions): Tensor {
    const { numHeads, numKvHeads, headDim: size, backend, scale, softcap } = this.settings;
    if (this.training) rejectDropout(this.settings);
    const mask = resolveCachedMask(this.settings, call, rows.shape[0]!);
    const layout = this.#cachedLayout(rows.shape[1]!, cache, call);
    checkInputSharding(this.ctx, rows, { where: this.settings.name, axis: 1, layout });
    return scope(() => {
      const [batch, length] = rows.shape as [number, number, number];
      const spans = layout.spans(this.ctx.mesh.coordinate);
      // Samples start at different positions, so that all samples are encoded as one sequence of tokens.
      const qkv = this.qkvProjection.forward(rows);
      // All lengths are explicit instead of -1, because a shard may be empty.
      const tokens = qkv.reshape([1, batch * length, qkv.shape[2]!]);
      const encodedHeads = this.#encodeQueriesAndKeys(tokens, {
        length: layout.length + Math.max(0, ...cache.starts),
        axes: [],
        spans: () =>
          cache.starts.flatMap((start) => spans.map((span): Span => ({ ...span, start: span.start + start }))),
      });
      const v = splitHeads(tokens, { first: numHeads + numKvHeads, count: numKvHeads, size });
      const [q, k, values] = [...encodedHeads, v].map((x) => splitBatch(x, batch)) as [Tensor, Tensor, Tensor];
      const out = cache.forward(q, k, values, { mask, scale, softcap, sinks: this.sinks, backend, layout });
      return this.outProjection.forward(mergeHeads(out));
    });
  }

  /** Returns encoded queries [1,H,S,D] and keys [1,Hkv,S,D]. Without norms, both are encoded in one call. */
  #encodeQueriesAndKeys(tokens: Tensor, layout: Layout): readonly [q: Tensor, k: Tensor] {
    const { name: where, numHeads, numKvHeads, headDim: size, positions, qNorm, kNorm } = this.settings;
    const encodeHeadRange = (firstHead: number, count: number, norm: HeadNorm | null) =>
      encodeHeads(this.ctx, splitHeads(tokens, { first: firstHead, count, size }), { where, norm, positions, layout });
    if (qNorm || kNorm) return [encodeHeadRange(0, numHeads, qNorm), encodeHeadRange(numHeads, numKvHeads, kNorm)];
    const qkHeads = encodeHeadRange(0, numHeads + numKvHeads, null);
    return [qkHeads.slice(1, 0, numHeads), qkHeads.slice(1, numHeads)];
  }

  /** Returns the layout of a call's new tokens: sharded, or all of them on every rank. */
  #cachedLayout(rows: number, cache: AttentionCache, call: CachedForwardOptions): Layout {
    if (cache.sharded) return this.layout(rows, call);
    const spans = [{ start: 0, length: rows, step: 1 }];
    return { length: rows, axes: [], spans: () => spans };
  }
}

type CachedForwardOptions = Parameters<typeof resolveCachedMask>[1];

/** Returns [1,H,B·S,D] as a view [B,H,S,D]. */
function splitBatch(x: Tensor, batch: number): Tensor {
  if (batch === 1) return x;
  const [, heads, rows, size] = x.shape as [number, number, number, number];
  const tokens = x.permute([0, 2, 1, 3]).reshape([batch, batch === 0 ? 0 : rows / batch, heads, size]);
  return tokens.permute([0, 2, 1, 3]);
}

export const multiAxisAttentionOptions = defineOptions("MultiAxisAttention", {
  /**
   * The tensor axis along which to attend. Negative values count from the end. The last axis is the embedding and is
   * not allowed.
   */
  attentionAxis: option.integer(),
  ...attentionModuleOptions.fields,
});
/** Options of MultiAxisAttention. */
export type MultiAxisAttentionOptions = OptionsOf<typeof multiAxisAttentionOptions>;

/**
 * Multi-head self-attention along one axis of a tensor of any rank. All other axes are batch axes.
 *
 * Parameters: qkv_proj.weight [(H + 2·Hkv)·D, E] and bias, laid out [q|k|v]; out_proj.weight [E, H·D] and bias; with
 * `sinks`, sinks [H].
 *
 * With a backend over mesh axes, the attention axis is sharded along these: each rank passes its shard and receives the
 * result of its shard, and ranks communicate in `forward`. With "local", every rank holds the complete axis.
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
 * @throws OptionError for unknown or incompatible options.
 */
export class MultiAxisAttention extends SelfAttention {
  readonly #axis: number;

  constructor(ctx: Context, options: MultiAxisAttentionOptions) {
    checkContext("MultiAxisAttention", ctx);
    const parsedOptions = multiAxisAttentionOptions.parse(options);
    super(ctx, resolveOptions("MultiAxisAttention", ctx, parsedOptions));
    this.#axis = parsedOptions.attentionAxis;
  }

  /**
   * Maps x [..,E], this rank's shard, to the same shape, contiguous. Collective along the backend's axes. If masks or
   * `lengths` are passed per sample, samples are indexed row-major over all axes except the attention axis and the
   * embedding.
   *
   * @throws ShapeError for an embedding, axis or number of rows that does not match, and for x that is known to be sharded
   * differently (`Tensor.sharding`); DTypeError; ClosedError.
   */
  forward(x: Tensor, options?: AttentionForwardOptions): Tensor {
    const { ctx, settings } = this;
    ctx.assertOpen(settings.name);
    const call = attentionForwardOptions.parse(options, `${settings.name}.forward`);
    checkInput(settings, x, settings.embedDim);
    const sequence = toSequence(settings.name, x, [this.#axis]);
    if (call.cache) return sequence.restore(this.attendCached(sequence.rows, call.cache, call));
    const layout = this.layout(sequence.lengths[0]!, call);
    const axisSharding = checkInputSharding(this.ctx, x, { where: this.settings.name, axis: this.#axis, layout });
    const out = sequence.restore(this.attend(sequence.rows, resolveMask(settings, call), layout));
    out.sharding = withAxisSharding(x.sharding, axisSharding);
    return out;
  }
}
