import { checkContext } from "../arguments.ts";
import type { Context } from "../context.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import type { Layout } from "../placement/placement.ts";
import { withAxisSharding } from "../placement/sharding.ts";
import type { Span } from "../placement/span.ts";
import { MAX_CACHED_SHARDINGS, markVerified } from "../placement/verify.ts";
import type { Tensor } from "../tensor.ts";
import { WeakCache } from "../weak-cache.ts";
import {
  type AttentionForwardOptions,
  attentionForwardOptions,
  attentionModuleOptions,
  checkInput,
  rejectCache,
  resolveMask,
  resolveOptions,
} from "./attention-options.ts";
import { checkInputSharding } from "./attention-module.ts";
import { SelfAttention } from "./multi-axis-attention.ts";
import { toSequence } from "./sequence.ts";

export const multiAxisAttention2DOptions = defineOptions("MultiAxisAttention2D", {
  /** The outer axis of the sequence, which is sharded over ranks. Negative values count from the end. */
  axis1: option.integer(),
  /** The inner axis, complete on every rank. */
  axis2: option.integer(),
  ...attentionModuleOptions.fields,
});
/** Options of MultiAxisAttention2D. `sequenceLength` is the length of axis1. */
export type MultiAxisAttention2DOptions = OptionsOf<typeof multiAxisAttention2DOptions>;

/**
 * Multi-head self-attention over two axes at once: every (i, j) attends to every other. The axes may be any two,
 * adjacent or not, in either order. They are flattened to one sequence with axis2 as the inner axis, to which masks
 * refer: (i, j) has position i · length2 + j.
 *
 * With a backend over mesh axes, **axis1** is sharded along these by `placement`, and `sequenceLength` is the whole
 * length of axis1. To shard the other axis, pass it as axis1.
 *
 * @example
 * ```ts
 * import { init, MultiAxisAttention2D, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new MultiAxisAttention2D(ctx, { embedDim: 16, numHeads: 2, axis1: 1, axis2: 3 });
 * using x = randn(ctx, [2, 5, 3, 4, 16]);
 * using out = attn.forward(x);
 * out.shape; // => [2, 5, 3, 4, 16]
 * ```
 */
export class MultiAxisAttention2D extends SelfAttention {
  readonly #axes: readonly [number, number];

  constructor(ctx: Context, options: MultiAxisAttention2DOptions) {
    checkContext("MultiAxisAttention2D", ctx);
    const parsedOptions = multiAxisAttention2DOptions.parse(options);
    super(ctx, resolveOptions("MultiAxisAttention2D", ctx, parsedOptions));
    this.#axes = [parsedOptions.axis1, parsedOptions.axis2];
  }

  /**
   * Maps x [..,E] to the same shape, contiguous. Collective along the backend's axes. `lengths` refer to the flattened
   * sequence, as masks do; `placement` refers to axis1.
   */
  forward(x: Tensor, options?: AttentionForwardOptions): Tensor {
    const { ctx, settings } = this;
    ctx.assertOpen(settings.name);
    const call = attentionForwardOptions.parse(options, `${settings.name}.forward`);
    checkInput(settings, x, settings.embedDim);
    rejectCache(settings, call);
    const sequence = toSequence(settings.name, x, this.#axes);
    const [outerLength, innerLength] = sequence.lengths as [number, number];
    const axisLayout = this.layout(outerLength, { ...call, axisName: "axis1" });
    const axisSharding = checkInputSharding(ctx, x, { where: settings.name, axis: this.#axes[0], layout: axisLayout });
    const layout = repeatRows(ctx, axisLayout, innerLength);
    const out = sequence.restore(this.attend(sequence.rows, resolveMask(settings, call), layout));
    out.sharding = withAxisSharding(x.sharding, axisSharding);
    return out;
  }
}

/** Repeated layouts, by the layout of axis1 and the length of axis2. */
const repeatedLayouts = new WeakCache<Layout, number, Layout>(MAX_CACHED_SHARDINGS);

/**
 * Returns the layout in which every row of `outerLayout` is replaced by `repeatCount` consecutive rows. Equal arguments
 * return the same layout object.
 */
function repeatRows(ctx: Context, outerLayout: Layout, repeatCount: number): Layout {
  return repeatedLayouts.getOrCreate(outerLayout, repeatCount, () =>
    createRepeatedLayout(ctx, outerLayout, repeatCount),
  );
}

function createRepeatedLayout({ mesh }: Context, outerLayout: Layout, repeatCount: number): Layout {
  const repeatSpan = ({ start, length, step }: Span): Span[] =>
    step === 1
      ? [{ start: start * repeatCount, length: length * repeatCount, step: 1 }]
      : Array.from({ length }, (_, i) => ({ start: (start + i * step) * repeatCount, length: repeatCount, step: 1 }));
  const cachedSpans = new Map<readonly Span[], readonly Span[]>();
  const layout: Layout = Object.freeze<Layout>({
    length: outerLayout.length * repeatCount,
    axes: outerLayout.axes,
    spans(at) {
      const outerSpans = outerLayout.spans(at);
      const repeatedSpans =
        cachedSpans.get(outerSpans) ?? Object.freeze(outerSpans.flatMap(repeatSpan).map((span) => Object.freeze(span)));
      cachedSpans.set(outerSpans, repeatedSpans);
      return repeatedSpans;
    },
  });
  // The verification of the outer layout also holds for this one.
  return markVerified(layout, mesh.shape);
}
