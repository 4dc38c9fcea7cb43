import { type AdamStep, defineOptions, type Module, option, type OptionsOf } from "@mosaic/core";
import { Optimizer, optimizerOptions, type OptimizerSlot } from "./optimizer.ts";

export const adamWOptions = defineOptions("AdamW", {
  ...optimizerOptions.fields,
  /** Learning rate. Default 1e-3. */
  lr: option.number({ min: 0, default: 1e-3 }),
  /** Decoupled weight decay, per step and learning rate. Default 1e-2. */
  weightDecay: option.number({ min: 0, default: 1e-2 }),
});
/** What AdamW takes. */
export type AdamWOptions = OptionsOf<typeof adamWOptions>;

/**
 * Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019), as PyTorch's AdamW: lr 1e-3, weightDecay
 * 1e-2. One pass over each parameter, in place, without scratch memory. A parameter of 16 bits gets a float32 master copy.
 *
 * @example
 * ```ts
 * import { init, Linear, ones, scope } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { AdamW, cosine } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 4, 1, { bias: false });
 * using optimizer = new AdamW(layer, { lr: 0.1, schedule: cosine(10) });
 * using x = ones(ctx, [1, 4]);
 * using loss = scope(() => layer.forward(x).sum());
 * loss.backward();
 * optimizer.step();
 * optimizer.zeroGrad();
 * optimizer.steps; // => 1
 * ```
 * @throws OptionError for options that do not exist or are out of range.
 */
export class AdamW extends Optimizer {
  readonly #betas: readonly [number, number];
  readonly #epsilon: number;
  readonly #weightDecay: number;

  constructor(model: Module, options?: AdamWOptions) {
    const { lr, betas, epsilon, weightDecay } = adamWOptions.parse(options);
    super(model, options ?? {}, { kind: "AdamW", firstName: "exp_avg", lr });
    this.#betas = betas;
    this.#epsilon = epsilon;
    this.#weightDecay = weightDecay;
  }

  protected numbers(): Readonly<Record<string, number>> {
    return {};
  }

  protected setNumbers(): void {}

  protected stepOf({ lrScale, weightDecay }: Pick<OptimizerSlot, "lrScale" | "weightDecay">): AdamStep {
    const [beta1, beta2] = this.#betas;
    const t = this.steps + 1;
    return {
      kind: "adamW",
      rate: this.learningRate * lrScale,
      beta1,
      beta2,
      epsilon: this.#epsilon,
      decay: weightDecay ?? this.#weightDecay,
      correction1: 1 - beta1 ** t,
      correction2: 1 - beta2 ** t,
      mix: 0,
    };
  }
}
