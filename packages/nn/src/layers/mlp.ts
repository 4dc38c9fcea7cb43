import {
  checkContext,
  type Context,
  Linear,
  Module,
  type Tensor,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { activationNames, activationOf } from "./activations.ts";
import { dropProbability, Dropout } from "./dropout.ts";
import { whereOptions } from "./where.ts";

export const mlpOptions = defineOptions("MLP", {
  /** Features that come in. */
  embedDim: option.integer({ min: 1 }),
  /** Features between. Default: 4 · embedDim. */
  hiddenDim: option.integer({ min: 1, optional: true }),
  /** Features that go out. Default: embedDim. */
  outDim: option.integer({ min: 1, optional: true }),
  /** The function between the layers. Default "gelu". */
  activation: option.oneOf(activationNames, { default: "gelu" }),
  /** Probability of dropout after the activation and after the second layer. Default 0. */
  dropout: dropProbability,
  /** How the tensor is cut over the ranks; only dropout uses it. Default: as Dropout's. */
  where: option.nested(whereOptions, { optional: true }),
  /** Whether both layers have biases. Default true. */
  bias: option.boolean({ default: true }),
  /** Of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** What MLP takes. */
export type MLPOptions = OptionsOf<typeof mlpOptions>;

/**
 * The transformer's feed-forward layer: fc2(activation(fc1(x))) over the last axis.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { MLP } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using mlp = new MLP(ctx, { embedDim: 8, hiddenDim: 32 });
 * using x = randn(ctx, [2, 5, 8]);
 * using y = mlp.forward(x);
 * mlp.namedParameters().map(([name]) => name); // => ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
 * y.shape; // => [2, 5, 8]
 * ```
 */
export class MLP extends Module {
  readonly fc1: Linear;
  readonly fc2: Linear;
  readonly #activation: (x: Tensor) => Tensor;
  readonly #drop: Dropout;

  constructor(ctx: Context, options: MLPOptions) {
    super();
    checkContext("MLP", ctx);
    const parsed = mlpOptions.parse(options);
    const { embedDim, hiddenDim = 4 * embedDim, outDim = embedDim, dropout, where, bias, dtype } = parsed;
    this.#activation = activationOf(parsed.activation);
    this.fc1 = this.addChild("fc1", new Linear(ctx, embedDim, hiddenDim, { bias, dtype }));
    this.fc2 = this.addChild("fc2", new Linear(ctx, hiddenDim, outDim, { bias, dtype }));
    this.#drop = this.addChild("drop", new Dropout(ctx, dropout, where));
  }

  /** x [..,embedDim] → [..,outDim]. */
  forward(x: Tensor): Tensor {
    const hidden = this.#activation(this.fc1.forward(x));
    if (this.#drop.probability === 0) return this.fc2.forward(hidden);
    return this.#drop.forward(this.fc2.forward(this.#drop.forward(hidden)));
  }
}
