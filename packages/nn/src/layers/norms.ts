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
  /** Added to the variance under the root. Default 1e-5. */
  epsilon: option.number({ min: 0, default: 1e-5 }),
  /** Whether there is a bias. Default true. */
  bias: option.boolean({ default: true }),
  /** Of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** What LayerNorm takes beside its size. */
export type LayerNormOptions = OptionsOf<typeof layerNormOptions>;

export const rmsNormOptions = defineOptions("RMSNorm", {
  /** Added to the mean of squares under the root. Default 1e-6. */
  epsilon: option.number({ min: 0, default: 1e-6 }),
  /** Of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** What RMSNorm takes beside its size. */
export type RMSNormOptions = OptionsOf<typeof rmsNormOptions>;

function constant(ctx: Context, dim: number, { value, dtype }: { value: number; dtype: DType }): Tensor {
  return createParameter(ctx, [dim], { initial: { kind: "constant", value }, dtype });
}

/**
 * (x − mean) / √(variance + ε) · weight + bias over the last axis (Ba, Kiros and Hinton 2016): weight [dim] ones, bias
 * [dim] zeros.
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
    this.weight = this.addParameter("weight", constant(ctx, dim, { value: 1, dtype }));
    this.bias = bias ? this.addParameter("bias", constant(ctx, dim, { value: 0, dtype })) : null;
  }

  /** x [..,dim] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("LayerNorm", x);
    return x.layerNorm(this.weight, this.bias, { epsilon: this.epsilon });
  }
}

/** x / √(mean of x² + ε) · weight over the last axis (Zhang and Sennrich 2019): weight [dim] ones. */
export class RMSNorm extends Module {
  readonly weight: Tensor;
  readonly epsilon: number;

  constructor(ctx: Context, dim: number, options?: RMSNormOptions) {
    super();
    checkContext("RMSNorm", ctx);
    checkArgument("RMSNorm: dim", dim, option.integer({ min: 1 }));
    const { epsilon, dtype } = rmsNormOptions.parse(options);
    this.epsilon = epsilon;
    this.weight = this.addParameter("weight", constant(ctx, dim, { value: 1, dtype }));
  }

  /** x [..,dim] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("RMSNorm", x);
    return x.rmsNorm(this.weight, { epsilon: this.epsilon });
  }
}
