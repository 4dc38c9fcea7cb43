import {
  type Context,
  createParameter,
  type DType,
  Module,
  type Tensor,
  checkArgument,
  checkContext,
  defineOptions,
  option,
  type OptionsOf,
  checkTensor,
} from "@mosaic/core";

export const layerNormOptions = defineOptions("LayerNorm", {
  /** Added to the variance before the square root. Default 1e-5. */
  epsilon: option.number({ min: 0, default: 1e-5 }),
  /** Whether there is a bias. Default true. */
  bias: option.boolean({ default: true }),
  /** The dtype of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of LayerNorm. */
export type LayerNormOptions = OptionsOf<typeof layerNormOptions>;

export const rmsNormOptions = defineOptions("RMSNorm", {
  /** Added to the mean of squares before the square root. Default 1e-6. */
  epsilon: option.number({ min: 0, default: 1e-6 }),
  /** Added to the weight, in float32: 1 in Gemma. The weight is initialized to 1 − weightOffset. Default 0. */
  weightOffset: option.oneOf([0, 1], { default: 0 }),
  /** The dtype of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of RMSNorm. */
export type RMSNormOptions = OptionsOf<typeof rmsNormOptions>;

function createConstantParameter(ctx: Context, dim: number, { value, dtype }: { value: number; dtype: DType }): Tensor {
  return createParameter(ctx, [dim], { initial: { kind: "constant", value }, dtype });
}

/**
 * (x − mean) / √(variance + ε) · weight + bias over the last axis (Ba, Kiros and Hinton 2016). weight [dim] is
 * initialized with ones, bias [dim] with zeros.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { LayerNorm } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using norm = new LayerNorm(ctx, 8);
 * using x = randn(ctx, [2, 8]);
 * using y = norm.forward(x);
 * [...norm.stateDict().keys()]; // => ["weight", "bias"]
 * y.shape; // => [2, 8]
 * ```
 */
export class LayerNorm extends Module {
  readonly weight: Tensor;
  readonly bias: Tensor | null;
  readonly epsilon: number;

  constructor(ctx: Context, dim: number, options?: LayerNormOptions) {
    super();
    checkContext("LayerNorm", ctx);
    checkArgument("LayerNorm: dim", dim, option.integer({ min: 1 }));
    const { epsilon, bias, dtype } = layerNormOptions.parse(options);
    this.epsilon = epsilon;
    this.weight = this.addParameter("weight", createConstantParameter(ctx, dim, { value: 1, dtype }));
    this.bias = bias ? this.addParameter("bias", createConstantParameter(ctx, dim, { value: 0, dtype })) : null;
  }

  /** x [..,dim] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("LayerNorm", x);
    return x.layerNorm(this.weight, this.bias, { epsilon: this.epsilon });
  }
}

/**
 * x / √(mean of x² + ε) · (weight + weightOffset) over the last axis (Zhang and Sennrich 2019). weight [dim] is
 * initialized with ones, as in Llama, or with zeros if `weightOffset` is 1, as in Gemma, so that weight decay pulls the
 * factor toward 1. With 16-bit dtypes, everything is computed in float32 and rounded once.
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { RMSNorm } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = fromArray(ctx, [3, 4], [1, 2]);
 * using llama = new RMSNorm(ctx, 2, { epsilon: 0 });
 * using gemma = new RMSNorm(ctx, 2, { epsilon: 0, weightOffset: 1 });
 * using y = llama.forward(x);
 * using z = gemma.forward(x);
 * Array.from(await gemma.weight.read()); // => [0, 0]
 * Array.from(await z.read(), (value) => value.toFixed(3)); // => ["0.849", "1.131"]
 * (await z.read()).join() === (await y.read()).join(); // => true
 * ```
 */
export class RMSNorm extends Module {
  readonly weight: Tensor;
  readonly epsilon: number;
  readonly weightOffset: 0 | 1;

  constructor(ctx: Context, dim: number, options?: RMSNormOptions) {
    super();
    checkContext("RMSNorm", ctx);
    checkArgument("RMSNorm: dim", dim, option.integer({ min: 1 }));
    const { epsilon, weightOffset, dtype } = rmsNormOptions.parse(options);
    this.epsilon = epsilon;
    this.weightOffset = weightOffset;
    this.weight = this.addParameter("weight", createConstantParameter(ctx, dim, { value: 1 - weightOffset, dtype }));
  }

  /** x [..,dim] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("RMSNorm", x);
    return x.rmsNorm(this.weight, { epsilon: this.epsilon, weightOffset: this.weightOffset });
  }
}
