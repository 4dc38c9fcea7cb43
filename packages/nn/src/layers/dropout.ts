import {
  type Context,
  defineOp,
  Module,
  type Tensor,
  checkArgument,
  checkContext,
  checkTensor,
  option,
} from "@mosaic/core";
import { type Stretch, stretchesOf, type Where, type WhereOptions, whereOptions } from "./where.ts";

/** Of an element to become 0. */
export const dropProbability = option.number({ min: 0, below: 1, default: 0 });

interface Draw {
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  readonly stretches: readonly Stretch[];
}

/** x with its zeros, in memory of its own. The mask is drawn, never kept: the backward draws the same again. */
function dropped(x: Tensor, { stretches, ...random }: Draw): Tensor {
  const out = x.device.empty(x.shape, x.dtype);
  for (const { rows, offset, strides } of stretches) {
    using to = rows ? out.slice(rows.axis, rows.from, rows.to) : out.detach();
    using from = rows ? x.slice(rows.axis, rows.from, rows.to) : x.detach();
    if (to.size > 0) x.device.kernels.dropout(to, from, { ...random, offset, strides });
  }
  return out;
}

const dropoutOp = defineOp({
  name: "dropout",
  forward([x]: [Tensor], draw: Draw) {
    return { output: dropped(x, draw), saved: { draw } };
  },
  backward: ({ draw }, dOut) => [dropped(dOut, draw)],
});

/**
 * While training, makes each element 0 with the given probability and divides the others by what remains (Srivastava et
 * al. 2014); does nothing after `eval()`.
 *
 * Which elements become 0 depends on the context's seed, the number of the call, and where the element lies in the *whole*
 * tensor: the same on one rank, on four and on any placement, if the options state how the tensor is cut: by default axis -2,
 * contiguously over all axes of the mesh but "dp", which cuts axis 0. For a tensor that ranks of a sequence hold whole,
 * pass `sequenceAxis: null`. Nothing is kept for the backward.
 *
 * @example
 * ```ts
 * import { init, ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { Dropout } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const drop = new Dropout(ctx, 0.5);
 * using x = ones(ctx, [1, 2, 4]);
 * using y = drop.forward(x);
 * Array.from(new Set(await y.read())).toSorted(); // => [0, 2]
 * using same = drop.eval().forward(x);
 * Array.from(await same.read()); // => [1, 1, 1, 1, 1, 1, 1, 1]
 * ```
 * @throws OptionError for a probability outside [0, 1).
 */
export class Dropout extends Module {
  readonly probability: number;
  readonly #ctx: Context;
  readonly #where: Where;

  constructor(ctx: Context, probability = 0.5, options?: WhereOptions) {
    super();
    checkContext("Dropout", ctx);
    checkArgument("Dropout: probability", probability, dropProbability);
    this.#ctx = ctx;
    this.#where = whereOptions.parse(options);
    this.probability = probability;
  }

  /** x [..] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("Dropout", x);
    // A handle of its own in any case: what a layer returns is the caller's to dispose.
    if (!this.training || this.probability === 0) return x.reshape(x.shape);
    const ctx = this.#ctx;
    const stretches = stretchesOf(ctx, x, this.#where);
    const { probability } = this;
    return dropoutOp([x], { probability, seed: ctx.seed, stream: ctx.nextRandomStream(), stretches });
  }
}
