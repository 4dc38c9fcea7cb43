import {
  checkContext,
  checkTensor,
  type Context,
  defineOptions,
  gelu,
  geluOptions,
  type GeluOptions,
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
import { Dropout, type DropoutForwardOptions, dropoutProbabilityOption, shardingOptions } from "./dropout.ts";

/** Names of the elementwise functions that layers accept. */
export type ActivationName = "gelu" | "geluTanh" | "relu" | "tanh" | "sigmoid" | "silu";

/** Activations that a Linear can apply. The others are applied to its output. */
const fusedActivations = ["gelu", "relu", "tanh", "sigmoid"] as const satisfies readonly ActivationName[];

const activations: Readonly<Record<ActivationName, (x: Tensor) => Tensor>> = {
  gelu: (x) => gelu(x),
  geluTanh: (x) => gelu(x, { approximate: "tanh" }),
  relu,
  tanh,
  sigmoid,
  silu,
};

/** The names of all activations. */
const activationNames = Object.keys(activations) as readonly ActivationName[];

/** Splits an activation into what the Linear applies and what is applied to the output of the Linear. */
function splitActivation(name: ActivationName) {
  const fusedActivation = fusedActivations.find((each) => each === name);
  return {
    linearActivation: fusedActivation ?? "identity",
    unfusedActivation: fusedActivation ? null : activations[name],
  } as const;
}

/**
 * x · Φ(x) as a layer (Hendrycks and Gimpel 2016). Exact, or approximated with `approximate: "tanh"`, as in GPT-2 and
 * Gemma.
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { GELU } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = fromArray(ctx, [0, 2], [2]);
 * using y = new GELU({ approximate: "tanh" }).forward(x);
 * Array.from(await y.read(), (value) => value.toFixed(4)); // => ["0.0000", "1.9546"]
 * ```
 */
export class GELU extends Module {
  readonly #options: GeluOptions;

  constructor(options?: GeluOptions) {
    super();
    this.#options = geluOptions.parse(options, "GELU");
  }

  /** x [..] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("GELU", x);
    return x.gelu(this.#options);
  }
}

/**
 * x · sigmoid(x), also called swish, as a layer (Elfwing et al. 2017).
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { SiLU } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = fromArray(ctx, [0, 2], [2]);
 * using y = new SiLU().forward(x);
 * Array.from(await y.read(), (value) => value.toFixed(4)); // => ["0.0000", "1.7616"]
 * ```
 */
export class SiLU extends Module {
  /** x [..] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("SiLU", x);
    return x.silu();
  }
}

export const mlpOptions = defineOptions("MLP", {
  /** Number of input features. */
  embedDim: option.integer({ min: 1 }),
  /** Number of hidden features. Default: 4 · embedDim. */
  hiddenDim: option.integer({ min: 1, optional: true }),
  /** Number of output features. Default: embedDim. */
  outDim: option.integer({ min: 1, optional: true }),
  /** The function between the layers. Default "gelu". */
  activation: option.oneOf(activationNames, { default: "gelu" }),
  /** Probability of dropout after the activation and after the second layer. Default 0. */
  dropout: dropoutProbabilityOption,
  /** How the input is sharded over the ranks. Used only by dropout. Default: as in Dropout. */
  sharding: option.nested(shardingOptions, { optional: true }),
  /** Whether both layers have biases. Default true. */
  bias: option.boolean({ default: true }),
  /** The dtype of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of MLP. */
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
  /** Also applies the activation, unless it is silu or geluTanh. */
  readonly fc1: Linear;
  readonly fc2: Linear;
  readonly #activation: ((x: Tensor) => Tensor) | null;
  readonly #dropout: Dropout;

  constructor(ctx: Context, options: MLPOptions) {
    super();
    checkContext("MLP", ctx);
    const parsed = mlpOptions.parse(options);
    const { embedDim, hiddenDim = 4 * embedDim, outDim = embedDim, dropout, sharding, bias, dtype } = parsed;
    const { linearActivation: activation, unfusedActivation } = splitActivation(parsed.activation);
    this.#activation = unfusedActivation;
    this.fc1 = this.addChild("fc1", new Linear(ctx, embedDim, hiddenDim, { activation, bias, dtype }));
    this.fc2 = this.addChild("fc2", new Linear(ctx, hiddenDim, outDim, { bias, dtype }));
    this.#dropout = this.addChild("drop", new Dropout(ctx, dropout, sharding));
  }

  /** x [..,embedDim] → [..,outDim]. `options` of dropout describe how the sequence is sharded in this call. */
  forward(x: Tensor, options?: DropoutForwardOptions): Tensor {
    const features = this.fc1.forward(x);
    const hidden = this.#activation === null ? features : this.#activation(features);
    if (this.#dropout.probability === 0) return this.fc2.forward(hidden);
    return this.#dropout.forward(this.fc2.forward(this.#dropout.forward(hidden, options)), options);
  }
}
