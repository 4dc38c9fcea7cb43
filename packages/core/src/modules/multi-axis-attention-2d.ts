import type { Context } from "../context.ts";
import { ShapeError } from "../errors.ts";
import { checkOptionNames } from "../options.ts";
import type { Layout } from "../placement/layout.ts";
import { type Span, spansLength } from "../placement/span.ts";
import { trustLayout } from "../placement/verify.ts";
import type { Tensor } from "../tensor.ts";
import {
  type AttentionForwardOptions,
  type AttentionModuleOptions,
  checkInput,
  maskOf,
  resolveOptions,
} from "./attention-options.ts";
import { SelfAttention } from "./self-attention.ts";
import { toSequence } from "./sequence.ts";

/** What MultiAxisAttention2D takes; `sequenceLength` is that of axis1. */
export interface MultiAxisAttention2DOptions extends AttentionModuleOptions {
  /** The outer axis of the sequence, and the one that is cut over ranks. Negative ones count from the end. */
  readonly axis1: number;
  /** The inner axis, whole on every rank. */
  readonly axis2: number;
}

/**
 * Multi-head self-attention over two axes at once: every (i, j) attends to every other. Any two axes, adjacent or not, in
 * either order; the sequence runs over axis2 within axis1, and masks count in it: (i, j) has position i · length2 + j.
 *
 * With a backend over mesh axes, **axis1** is cut along those, by `placement`; `sequenceLength` is the whole length of
 * axis1. To cut the other one, name it axis1.
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
    super(ctx, resolveOptions("MultiAxisAttention2D", ctx, { options, own: ["axis1", "axis2"] }));
    this.#axes = [options.axis1, options.axis2];
  }

  /** x [..,E] → the same shape, dense. Collective along the backend's axes. */
  forward(x: Tensor, options: AttentionForwardOptions = {}): Tensor {
    const { ctx, settings } = this;
    ctx.assertOpen(settings.name);
    checkOptionNames(`${settings.name}.forward`, options, ["mask", "documents", "sequenceLength"]);
    checkInput(settings, x, settings.embed);
    const sequence = toSequence(settings.name, x, this.#axes);
    const [outer, inner] = sequence.lengths as [number, number];
    const narrow = this.layout(outer, options.sequenceLength);
    checkOuterRows(settings.name, narrow, { ctx, rows: outer });
    const layout = repeated(narrow, inner);
    return sequence.restore(this.attend(sequence.rows, maskOf(settings, options), layout));
  }
}

/** Of a length that is not the input's the spans of each row would be made, however many there are. */
function checkOuterRows(where: string, layout: Layout, { ctx, rows }: { ctx: Context; rows: number }): void {
  const expected = spansLength(layout.spans(ctx.mesh.coordinate));
  if (rows === expected) return;
  throw new ShapeError({
    where: `${where}, rank ${ctx.rank}`,
    expected: `${expected} rows along axis1, this rank's share of ${layout.length}`,
    received: String(rows),
    remedy: "give the placement and the length that the sequence was sharded with",
  });
}

/** The layout in which every row of `outer` stands for `inner` rows one after another. */
function repeated(outer: Layout, inner: number): Layout {
  const widen = ({ start, length, step }: Span): Span[] =>
    step === 1
      ? [{ start: start * inner, length: length * inner, step: 1 }]
      : Array.from({ length }, (_, i) => ({ start: (start + i * step) * inner, length: inner, step: 1 }));
  const known = new Map<readonly Span[], readonly Span[]>();
  // What was verified of the outer layout holds for this one.
  return trustLayout({
    length: outer.length * inner,
    axes: outer.axes,
    spans(at) {
      const narrow = outer.spans(at);
      const wide = known.get(narrow) ?? narrow.flatMap(widen);
      known.set(narrow, wide);
      return wide;
    },
  });
}
