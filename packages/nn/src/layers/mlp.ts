import {
  checkContext,
  checkTensor,
  type Context,
  defineOptions,
  gelu,
  Linear,
  Module,
  option,
  type OptionsOf,
  relu,
  sigmoid,
  silu,
  tanh,
  type Tensor,
} from "@mosaic/core";
import { Dropout, dropoutProbability, shardingOptions } from "./dropout.ts";

/** Functions of one element that layers take by name. */
export type ActivationName = "gelu" | "relu" | "tanh" | "sigmoid" | "silu";

const activations: Readonly<Record<ActivationName, (x: Tensor) => Tensor>> = { gelu, relu, tanh, sigmoid, silu };

/** Their names. */
const activationNames = Object.keys(activations) as readonly ActivationName[];

/** The function of that name. */
function getActivation(name: ActivationName): (x: Tensor) => Tensor {
  return activations[name];
}

/** x · Φ(x) with the exact Φ, as a layer: Hendrycks and Gimpel 2016, PyTorch's default. */
export class GELU extends Module {
  /** x [..] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("GELU", x);
    return x.gelu();
  }
}

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
  dropout: dropoutProbability,
  /** How the tensor is cut over the ranks; only dropout uses it. Default: as Dropout's. */
  sharding: option.nested(shardingOptions, { optional: true }),
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
  readonly #dropout: Dropout;

  constructor(ctx: Context, options: MLPOptions) {
    super();
    checkContext("MLP", ctx);
    const parsed = mlpOptions.parse(options);
    const { embedDim, hiddenDim = 4 * embedDim, outDim = embedDim, dropout, sharding, bias, dtype } = parsed;
    this.#activation = getActivation(parsed.activation);
    this.fc1 = this.addChild("fc1", new Linear(ctx, embedDim, hiddenDim, { bias, dtype }));
    this.fc2 = this.addChild("fc2", new Linear(ctx, hiddenDim, outDim, { bias, dtype }));
    this.#dropout = this.addChild("drop", new Dropout(ctx, dropout, sharding));
  }

  /** x [..,embedDim] → [..,outDim]. */
  forward(x: Tensor): Tensor {
    const hidden = this.#activation(this.fc1.forward(x));
    if (this.#dropout.probability === 0) return this.fc2.forward(hidden);
    return this.#dropout.forward(this.fc2.forward(this.#dropout.forward(hidden)));
  }
}
