import {
  checkContext,
  checkTensor,
  type Context,
  defineOptions,
  Linear,
  Module,
  option,
  type OptionsOf,
  type Tensor,
  type UnaryOp,
} from "@mosaic/core";
import { Dropout, type DropoutForwardOptions, dropoutProbabilityOption, shardingOptions } from "./dropout.ts";

// E input features (embedDim), F hidden features (hiddenDim).

export const swiGLUOptions = defineOptions("SwiGLU", {
  /** Number of input and of output features. */
  embedDim: option.integer({ min: 1 }),
  /** Number of hidden features. Llama has about 8/3 · embedDim, which gives as many parameters as an MLP. */
  hiddenDim: option.integer({ min: 1 }),
  /** Probability of dropout after the gate and after the last layer. Default 0. */
  dropout: dropoutProbabilityOption,
  /** How the input is sharded over the ranks. Used only by dropout. Default: as in Dropout. */
  sharding: option.nested(shardingOptions, { optional: true }),
  /** Whether the three layers have biases. Default false. */
  bias: option.boolean({ default: false }),
  /** The dtype of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of SwiGLU. */
export type SwiGLUOptions = OptionsOf<typeof swiGLUOptions>;

export const geGLUOptions = defineOptions("GeGLU", {
  ...swiGLUOptions.fields,
  /** Probability of dropout after the gate and after the last layer. Default 0. */
  dropout: dropoutProbabilityOption,
  /**
   * How the gate's GELU is computed, as in `gelu`: exactly ("none"), or approximated by tanh, as in Gemma. Default
   * "none".
   */
  approximate: option.oneOf(["none", "tanh"], { default: "none" }),
});
/** Options of GeGLU. */
export type GeGLUOptions = OptionsOf<typeof geGLUOptions>;

/** Base class of SwiGLU and GeGLU: down(activation(gate(x)) · up(x)). */
abstract class GatedFeedForward extends Module {
  readonly gateProjection: Linear;
  readonly upProjection: Linear;
  readonly downProjection: Linear;
  readonly #activation: UnaryOp;
  readonly #dropout: Dropout;

  protected constructor(ctx: Context, activation: UnaryOp, parsedOptions: ReturnType<typeof swiGLUOptions.parse>) {
    super();
    const { embedDim, hiddenDim, dropout, sharding, bias, dtype } = parsedOptions;
    this.#activation = activation;
    this.gateProjection = this.addChild("gate_proj", new Linear(ctx, embedDim, hiddenDim, { bias, dtype }));
    this.upProjection = this.addChild("up_proj", new Linear(ctx, embedDim, hiddenDim, { bias, dtype }));
    this.downProjection = this.addChild("down_proj", new Linear(ctx, hiddenDim, embedDim, { bias, dtype }));
    this.#dropout = this.addChild("drop", new Dropout(ctx, dropout, sharding));
  }

  /** x [..,embedDim] → the same shape. `options` of dropout describe how the sequence is sharded in this call. */
  forward(x: Tensor, options?: DropoutForwardOptions): Tensor {
    checkTensor(this.constructor.name, x);
    const hidden = this.#computeHidden(x);
    if (this.#dropout.probability === 0) return this.downProjection.forward(hidden);
    const droppedHidden = this.#dropout.forward(hidden, options);
    return this.#dropout.forward(this.downProjection.forward(droppedHidden), options);
  }

  /**
   * Computes activation(gate(x)) · up(x), in the epilogue of the up projection unless that is an adapter or has hooks.
   */
  #computeHidden(x: Tensor): Tensor {
    const gate = this.gateProjection.forward(x);
    const up = this.upProjection;
    if (up.constructor !== Linear || up.hasForwardHooks) return up.forward(x).gated(gate, this.#activation);
    return x.linear(up.weight, up.bias, this.#activation, gate);
  }
}

/**
 * The feed-forward layer of Llama, Mistral and Qwen: down(silu(gate(x)) · up(x)) over the last axis (Shazeer 2020).
 * Parameters: gate_proj, up_proj [hiddenDim,embedDim] and down_proj [embedDim,hiddenDim], named as in Hugging Face's
 * models. The backward saves the outputs of gate and up, but no values computed from them.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { SwiGLU } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using mlp = new SwiGLU(ctx, { embedDim: 8, hiddenDim: 24 });
 * using x = randn(ctx, [2, 5, 8]);
 * using y = mlp.forward(x);
 * mlp.namedParameters().map(([name]) => name); // => ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
 * y.shape; // => [2, 5, 8]
 * ```
 */
export class SwiGLU extends GatedFeedForward {
  constructor(ctx: Context, options: SwiGLUOptions) {
    checkContext("SwiGLU", ctx);
    super(ctx, "silu", swiGLUOptions.parse(options));
  }
}

/**
 * SwiGLU with GELU as the gate's activation: down(gelu(gate(x)) · up(x)) (Shazeer 2020). Gemma uses `approximate:
 * "tanh"`.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { GeGLU } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using mlp = new GeGLU(ctx, { embedDim: 8, hiddenDim: 24, approximate: "tanh" });
 * using x = randn(ctx, [2, 5, 8]);
 * using y = mlp.forward(x);
 * y.shape; // => [2, 5, 8]
 * ```
 */
export class GeGLU extends GatedFeedForward {
  constructor(ctx: Context, options: GeGLUOptions) {
    checkContext("GeGLU", ctx);
    const { approximate, ...gatedOptions } = geGLUOptions.parse(options);
    super(ctx, approximate === "tanh" ? "geluTanh" : "gelu", gatedOptions);
  }
}
