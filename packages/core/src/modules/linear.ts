import type { Context } from "../context.ts";
import type { DType } from "../dtype.ts";
import { checkOptionNames, checkPositive } from "../options.ts";
import type { Tensor } from "../tensor.ts";
import { Module } from "./module.ts";
import { createParameter } from "./parameter.ts";

/** What Linear takes beside its sizes. */
export interface LinearOptions {
  /** Default true. */
  readonly bias?: boolean;
  readonly dtype?: DType;
}

/**
 * x · Wᵀ + b over the last axis: weight [out,in], bias [out], both drawn from ±1/√in, PyTorch's default.
 *
 * @example
 * ```ts
 * import { init, Linear, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 8, 3);
 * using x = randn(ctx, [2, 5, 8]);
 * using y = layer.forward(x);
 * y.shape; // => [2, 5, 3]
 * ```
 * @throws OptionError for sizes that are not whole numbers ≥ 1.
 */
export class Linear extends Module {
  readonly weight: Tensor;
  readonly bias: Tensor | null;
  readonly #ctx: Context;

  constructor(ctx: Context, inFeatures: number, outFeatures: number, options: LinearOptions = {}) {
    super();
    checkOptionNames("Linear", options, ["bias", "dtype"]);
    checkPositive("Linear", "inFeatures", inFeatures);
    checkPositive("Linear", "outFeatures", outFeatures);
    const { bias = true, dtype = "float32" } = options;
    const bound = inFeatures ** -0.5;
    const drawn = { initial: { kind: "uniform", low: -bound, high: bound }, dtype } as const;
    this.#ctx = ctx;
    this.weight = this.addParameter("weight", createParameter(ctx, [outFeatures, inFeatures], drawn));
    this.bias = bias ? this.addParameter("bias", createParameter(ctx, [outFeatures], drawn)) : null;
  }

  /** x [..,in] → [..,out]. */
  forward(x: Tensor): Tensor {
    this.#ctx.assertOpen("Linear");
    return x.linear(this.weight, this.bias);
  }
}
