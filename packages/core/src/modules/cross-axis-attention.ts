import { attention } from "../attention/attention.ts";
import { checkpoint } from "../autograd/checkpoint.ts";
import type { Context } from "../context.ts";
import { ShapeError } from "../errors.ts";
import type { Mask } from "../mask/slice.ts";
import { checkOptionNames, checkPositive } from "../options.ts";
import type { Layout } from "../placement/layout.ts";
import { type Placement, type PlacementName, placementOf } from "../placement/placement.ts";
import { scope } from "../scope.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { type AttentionModuleOptions, checkInput, type ResolvedOptions, resolveOptions } from "./attention-options.ts";
import { mergeHeads, applyPositionEncoding, splitHeads } from "./heads.ts";
import { Linear } from "./linear.ts";
import { Module } from "./module.ts";
import { sequenceLayout } from "./self-attention.ts";
import { toSequence } from "./sequence.ts";

/** What CrossAxisAttention takes; the common options speak of the queries. */
export interface CrossAxisAttentionOptions extends AttentionModuleOptions {
  /** The axis of the query source to attend along. */
  readonly qAxis: number;
  /** The axis of the key and value source to attend along. */
  readonly kvAxis: number;
  /** Length of the key source's last axis. Default embedDim. */
  readonly kvEmbedDim?: number;
  /** How the keys are cut into shards. Default: as the queries, by `placement`. */
  readonly kvPlacement?: PlacementName | Placement;
  /** Rows of all the keys over all shards. Default: local rows times shards. */
  readonly kvSequenceLength?: number;
}

/** What one call of CrossAxisAttention may change. */
export interface CrossForwardOptions {
  /** Instead of the module's mask. */
  readonly mask?: Mask;
  /** Instead of the module's. */
  readonly sequenceLength?: number;
  readonly kvSequenceLength?: number;
}

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
    const own = ["qAxis", "kvAxis", "kvEmbedDim", "kvPlacement", "kvSequenceLength"];
    const settings = resolveOptions("CrossAxisAttention", ctx, { options, own });
    const { embed, numHeads, numKvHeads, headDim, bias, dtype } = settings;
    const { kvEmbedDim = embed, kvPlacement, kvSequenceLength } = options;
    checkPositive(settings.name, "kvEmbedDim", kvEmbedDim);
    if (kvSequenceLength !== undefined) checkPositive(settings.name, "kvSequenceLength", kvSequenceLength);
    this.#ctx = ctx;
    this.#settings = settings;
    this.#axis = options.qAxis;
    this.#kv = {
      axis: options.kvAxis,
      embed: kvEmbedDim,
      placement: kvPlacement === undefined ? settings.placement : placementOf(kvPlacement),
      ...(kvSequenceLength !== undefined && { length: kvSequenceLength }),
    };
    this.qProjection = this.addChild("q_proj", new Linear(ctx, embed, numHeads * headDim, { bias, dtype }));
    this.kvProjection = this.addChild(
      "kv_proj",
      new Linear(ctx, kvEmbedDim, 2 * numKvHeads * headDim, { bias, dtype }),
    );
    this.outProjection = this.addChild("out_proj", new Linear(ctx, numHeads * headDim, embed, { bias, dtype }));
  }

  /** qSource [..,E], kvSource [..,kvE] → qSource's shape, dense. Collective along the backend's axes. */
  forward(qSource: Tensor, kvSource: Tensor, options: CrossForwardOptions = {}): Tensor {
    const settings = this.#settings;
    this.#ctx.assertOpen(settings.name);
    checkOptionNames(`${settings.name}.forward`, options, ["mask", "sequenceLength", "kvSequenceLength"]);
    checkInput(settings, qSource, settings.embed);
    checkInput(settings, kvSource, this.#kv.embed);
    const queries = toSequence(settings.name, qSource, [this.#axis]);
    const q = queries.rows;
    const kv = toSequence(settings.name, kvSource, [this.#kv.axis]).rows;
    if (q.shape[0] !== kv.shape[0]) {
      throw new ShapeError({
        where: settings.name,
        expected: "sources whose other axes have as many elements",
        received: `${formatShape(qSource.shape)} along ${this.#axis}, ${formatShape(kvSource.shape)} along ${this.#kv.axis}`,
      });
    }
    const layouts = this.#layouts({ queries: q.shape[1]!, keys: kv.shape[1]! }, options);
    const mask = options.mask ?? settings.mask;
    const run = (q: Tensor, kv: Tensor) => scope(() => this.#attend({ q, kv }, mask, layouts));
    return queries.restore(settings.useCheckpoint ? checkpoint(run, q, kv) : run(q, kv));
  }

  #layouts(rows: { queries: number; keys: number }, options: CrossForwardOptions): Layouts {
    const { backend, placement, sequenceLength } = this.#settings;
    const queryLength = options.sequenceLength ?? sequenceLength;
    const keyLength = options.kvSequenceLength ?? this.#kv.length;
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
    const place = (x: Tensor, layout: Layout) => applyPositionEncoding(this.#ctx, x, { positions, layout });
    const projected = this.qProjection.forward(rows.q);
    const kv = this.kvProjection.forward(rows.kv);
    const q = place(splitHeads(projected, { first: 0, count: numHeads, size }), layouts.queries);
    const k = place(splitHeads(kv, { first: 0, count: numKvHeads, size }), layouts.keys);
    const v = splitHeads(kv, { first: numKvHeads, count: numKvHeads, size });
    const out = attention(this.#ctx, q, k, v, { backend, mask, scale, ...layouts });
    return this.outProjection.forward(mergeHeads(out));
  }
}
