import { checkContext, checkTensor } from "../arguments.ts";
import type { Context } from "../context.ts";
import type { UnaryOp } from "../kernels/kernels.ts";
import { kernelEnumerations } from "../kernels/schema.ts";
import * as option from "../option.ts";
import { checkArgument, defineOptions, type OptionsOf } from "../options.ts";
import type { Tensor } from "../tensor.ts";
import { Module } from "./module.ts";
import { createParameter } from "./parameters.ts";

export const linearOptions = defineOptions("Linear", {
  /** Whether to add a bias. Default true. */
  bias: option.boolean({ default: true }),
  /** Elementwise function applied to the result, or "identity". Default "identity". */
  activation: option.oneOf(["identity", ...kernelEnumerations.UnaryOp], { default: "identity" }),
  /** The dtype of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of Linear. */
export type LinearOptions = OptionsOf<typeof linearOptions>;

/**
 * activation(x · Wᵀ + b) over the last axis: weight [out,in] and bias [out], both initialized uniformly in ±1/√in, as
 * in PyTorch.
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
 * @throws OptionError for sizes that are not integers ≥ 1.
 */
export class Linear extends Module {
  readonly weight: Tensor;
  readonly bias: Tensor | null;
  readonly #ctx: Context;
  readonly #activation: UnaryOp | null;

  constructor(ctx: Context, inFeatures: number, outFeatures: number, options?: LinearOptions) {
    super();
    checkContext("Linear", ctx);
    const { bias, activation, dtype } = linearOptions.parse(options);
    checkArgument("Linear: inFeatures", inFeatures, option.integer({ min: 1 }));
    checkArgument("Linear: outFeatures", outFeatures, option.integer({ min: 1 }));
    const bound = inFeatures ** -0.5;
    const uniformOptions = { initial: { kind: "uniform", low: -bound, high: bound }, dtype } as const;
    this.#ctx = ctx;
    this.#activation = activation === "identity" ? null : activation;
    this.weight = this.addParameter("weight", createParameter(ctx, [outFeatures, inFeatures], uniformOptions));
    this.bias = bias ? this.addParameter("bias", createParameter(ctx, [outFeatures], uniformOptions)) : null;
  }

  /** Maps x [..,in] to [..,out]. */
  forward(x: Tensor): Tensor {
    this.#ctx.assertOpen("Linear");
    checkTensor("Linear", x);
    // Calls the method instead of the function, because in a bundled program the device that created x may use another
    // copy of this package.
    return x.linear(this.weight, this.bias, this.#activation);
  }
}
