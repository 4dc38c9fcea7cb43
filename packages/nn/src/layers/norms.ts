import {
  type Context,
  checkOptionNames,
  createParameter,
  type DType,
  Module,
  OptionError,
  type Tensor,
} from "@mosaic/core";

/** What normalising layers take beside their size. */
export interface NormLayerOptions {
  /** Added to the variance under the root. Default 1e-5 for LayerNorm, 1e-6 for RMSNorm. */
  readonly epsilon?: number;
  /** Whether LayerNorm has a bias. Default true. */
  readonly bias?: boolean;
  readonly dtype?: DType;
}

function constant(ctx: Context, dim: number, { value, dtype }: { value: number; dtype: DType }): Tensor {
  return createParameter(ctx, [dim], { initial: { kind: "constant", value }, dtype });
}

function checkSize(where: string, dim: number, epsilon: number): void {
  if (!Number.isSafeInteger(dim) || dim < 1) {
    throw new OptionError({ where, expected: "dim a whole number ≥ 1", received: String(dim) });
  }
  if (Number.isFinite(epsilon) && epsilon >= 0) return;
  throw new OptionError({ where, expected: "a finite epsilon ≥ 0", received: String(epsilon) });
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

  constructor(ctx: Context, dim: number, options: NormLayerOptions = {}) {
    super();
    checkOptionNames("LayerNorm", options, ["epsilon", "bias", "dtype"]);
    const { epsilon = 1e-5, bias = true, dtype = "float32" } = options;
    checkSize("LayerNorm", dim, epsilon);
    this.epsilon = epsilon;
    this.weight = this.addParameter("weight", constant(ctx, dim, { value: 1, dtype }));
    this.bias = bias ? this.addParameter("bias", constant(ctx, dim, { value: 0, dtype })) : null;
  }

  /** x [..,dim] → the same shape. */
  forward(x: Tensor): Tensor {
    return x.layerNorm(this.weight, this.bias, { epsilon: this.epsilon });
  }
}

/** x / √(mean of x² + ε) · weight over the last axis (Zhang and Sennrich 2019): weight [dim] ones. */
export class RMSNorm extends Module {
  readonly weight: Tensor;
  readonly epsilon: number;

  constructor(ctx: Context, dim: number, options: Omit<NormLayerOptions, "bias"> = {}) {
    super();
    checkOptionNames("RMSNorm", options, ["epsilon", "dtype"]);
    const { epsilon = 1e-6, dtype = "float32" } = options;
    checkSize("RMSNorm", dim, epsilon);
    this.epsilon = epsilon;
    this.weight = this.addParameter("weight", constant(ctx, dim, { value: 1, dtype }));
  }

  /** x [..,dim] → the same shape. */
  forward(x: Tensor): Tensor {
    return x.rmsNorm(this.weight, { epsilon: this.epsilon });
  }
}
