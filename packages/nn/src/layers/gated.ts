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

// E features in, F features between.

export const swiGLUOptions = defineOptions("SwiGLU", {
  /** Features that come in, and go out. */
  embedDim: option.integer({ min: 1 }),
  /** Features between; Llama's are about 8/3 · embedDim, as many parameters as an MLP has. */
  hiddenDim: option.integer({ min: 1 }),
  /** Probability of dropout after the gate and after the last layer. Default 0. */
  dropout: dropoutProbabilityOption,
  /** How the tensor is cut over the ranks; only dropout uses it. Default: as Dropout's. */
  sharding: option.nested(shardingOptions, { optional: true }),
  /** Whether the three layers have biases. Default false. */
  bias: option.boolean({ default: false }),
  /** Of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** What SwiGLU takes. */
export type SwiGLUOptions = OptionsOf<typeof swiGLUOptions>;

export const geGLUOptions = defineOptions("GeGLU", {
  ...swiGLUOptions.fields,
  /** Probability of dropout after the gate and after the last layer. Default 0. */
  dropout: dropoutProbabilityOption,
  /** How the gate's GELU is computed, as in `gelu`: exactly ("none"), or by tanh, as in Gemma. Default "none". */
  approximate: option.oneOf(["none", "tanh"], { default: "none" }),
});
/** What GeGLU takes. */
export type GeGLUOptions = OptionsOf<typeof geGLUOptions>;

/** What SwiGLU and GeGLU share: down(activation(gate(x)) · up(x)). */
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

  /** x [..,embedDim] → the same shape. `options` are dropout's: how the sequence is cut in this call. */
  forward(x: Tensor, options?: DropoutForwardOptions): Tensor {
    checkTensor(this.constructor.name, x);
    const hidden = this.#computeHidden(x);
    if (this.#dropout.probability === 0) return this.downProjection.forward(hidden);
    const droppedHidden = this.#dropout.forward(hidden, options);
    return this.#dropout.forward(this.downProjection.forward(droppedHidden), options);
  }

  /** In the epilogue of the second product, unless that is an adapter's or has hooks. */
  #computeHidden(x: Tensor): Tensor {
    const gate = this.gateProjection.forward(x);
    const up = this.upProjection;
    if (up.constructor !== Linear || up.hasForwardHooks) return up.forward(x).gated(gate, this.#activation);
    return x.linear(up.weight, up.bias, this.#activation, gate);
  }
}

/**
 * The feed-forward layer of Llama, Mistral and Qwen: down(silu(gate(x)) · up(x)) over the last axis (Shazeer 2020). Parameters:
 * gate_proj, up_proj [hiddenDim,embedDim] and down_proj [embedDim,hiddenDim], named as in Hugging Face's models. For the backward
 * the outputs of gate and up are kept, not what is computed of them.
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
 * SwiGLU with GELU at the gate: down(gelu(gate(x)) · up(x)) (Shazeer 2020). Gemma's is `approximate: "tanh"`.
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
