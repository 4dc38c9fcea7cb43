import { attention } from "../attention/attention.ts";
import { checkpoint } from "../autograd/checkpoint.ts";
import type { Context } from "../context.ts";
import type { Mask } from "../mask/slice.ts";
import type { Layout } from "../placement/layout.ts";
import { layoutOf } from "../placement/layout-of.ts";
import { scope } from "../scope.ts";
import type { Tensor } from "../tensor.ts";
import type { ResolvedOptions } from "./attention-options.ts";
import { mergeHeads, applyPositionEncoding, splitHeads } from "./heads.ts";
import { Linear } from "./linear.ts";
import { Module } from "./module.ts";

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

/** The layout of a sequence cut along the backend's axes; its length defaults to that of equal shards. */
export function sequenceLayout(
  ctx: Context,
  { backend, placement }: Pick<ResolvedOptions, "backend" | "placement">,
  { rows, length }: { rows: number; length: number | undefined },
): Layout {
  const mesh = ctx.mesh.shape;
  const shards = backend.axes.reduce((product, axis) => product * (mesh[axis] ?? 1), 1);
  return layoutOf({ mesh, axes: backend.axes, placement, length: length ?? rows * shards });
}
