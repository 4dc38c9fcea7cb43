import {
  type AdamStep,
  defineOptions,
  keep,
  type Module,
  MosaicError,
  option,
  OptionError,
  type OptionsOf,
  scope,
  StateDictError,
  type Tensor,
} from "@mosaic/core";
import {
  type ShardedOptimizerState,
  Optimizer,
  optimizerOptions,
  type OptimizerState,
  type StepOptions,
} from "./optimizer.ts";
import type { OptimizerSlot } from "./optimizer-slot.ts";

export const adamWOptions = defineOptions("AdamW", {
  ...optimizerOptions.fields,
  /** Learning rate. Default 1e-3. */
  lr: option.number({ min: 0, default: 1e-3 }),
  /** Decoupled weight decay, per step and learning rate. Default 1e-2. */
  weightDecay: option.number({ min: 0, default: 1e-2 }),
  /** Added to the square root of the mean square. Default 1e-8. */
  epsilon: option.number({ min: 0, default: 1e-8 }),
  /** Decay rates of the means of gradients and of their squares. Default [0.9, 0.999]. */
  betas: option.pair(option.number({ min: 0, below: 1 }), { default: [0.9, 0.999] }),
});
/** Options of AdamW. */
export type AdamWOptions = OptionsOf<typeof adamWOptions>;

export const scheduleFreeOptions = defineOptions("ScheduleFreeAdamW", {
  ...adamWOptions.fields,
  /** Learning rate. Default 2.5e-3. */
  lr: option.number({ min: 0, default: 2.5e-3 }),
  /** Decoupled weight decay, per step and learning rate. Default 0. */
  weightDecay: option.number({ min: 0, default: 0 }),
  /** Decay rates of the mean, greater than 0, and of the squares of gradients. Default [0.9, 0.999]. */
  betas: option.pair(option.number({ min: 0, below: 1 }), { default: [0.9, 0.999] }),
  /** Steps over which the learning rate rises linearly. Default 0. */
  warmupSteps: option.number({ min: 0, default: 0 }),
  /** The weight of step t in the average is proportional to tʳ. Default 0. */
  r: option.number({ min: 0, default: 0 }),
  /**
   * The weight of a step in the average is proportional to this power of the largest learning rate so far. Default 2.
   */
  weightLrPower: option.number({ min: 0, default: 2 }),
});
/** Options of ScheduleFreeAdamW. */
export type ScheduleFreeOptions = OptionsOf<typeof scheduleFreeOptions>;

/**
 * AdamW without a schedule (Defazio et al. 2024, "The Road Less Scheduled"; the authors' AdamWScheduleFree). Defaults:
 * lr 2.5e-3, weightDecay 0. During training the parameters are y, which interpolates between the fast sequence z and
 * its average x. **`eval()` writes x to the parameters, and `train()` restores y** bit for bit: call them together with
 * those of the model.
 *
 * @example
 * ```ts
 * import { init, Linear, ones, scope } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { ScheduleFreeAdamW } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 4, 1, { bias: false });
 * using optimizer = new ScheduleFreeAdamW(layer, { lr: 0.1, warmupSteps: 10 });
 * using x = ones(ctx, [1, 4]);
 * using loss = scope(() => layer.forward(x).sum());
 * loss.backward();
 * optimizer.step();
 * optimizer.eval(); // … measure …
 * optimizer.train(); // … and go on
 * ```
 * @throws OptionError for options that do not exist or are out of range.
 */
export class ScheduleFreeAdamW extends Optimizer {
  readonly #betas: readonly [number, number];
  readonly #epsilon: number;
  readonly #weightDecay: number;
  readonly #warmupSteps: number;
  readonly #r: number;
  readonly #weightLrPower: number;
  #weightSum = 0;
  #lrMax = 0;
  /** y of each parameter, while the parameters hold x. */
  #savedParameters: readonly Tensor[] | undefined;

  constructor(model: Module, options?: ScheduleFreeOptions) {
    const { lr, betas, epsilon, weightDecay, ...optimizerSettings } = scheduleFreeOptions.parse(options);
    if (betas[0] === 0) {
      throw new OptionError({ where: "ScheduleFreeAdamW", expected: "betas[0] > 0", received: String(betas[0]) });
    }
    super(model, options ?? {}, { kind: "ScheduleFreeAdamW", lr, stateTensors: ["z", "exp_avg_sq"] });
    this.#betas = betas;
    this.#epsilon = epsilon;
    this.#weightDecay = weightDecay;
    this.#warmupSteps = optimizerSettings.warmupSteps;
    this.#r = optimizerSettings.r;
    this.#weightLrPower = optimizerSettings.weightLrPower;
    for (const slot of this.slots) startSequence(slot);
  }

  /**
   * Before the first step, z is initialized again if the parameters are written. Later, weights that are loaded are
   * those of y, and z does not change.
   */
  protected override adoptWrittenParameters(): void {
    const writtenSlots = this.steps === 0 ? this.listWrittenSlots() : [];
    super.adoptWrittenParameters();
    for (const slot of writtenSlots) startSequence(slot);
  }

  override get learningRate(): number {
    return super.learningRate * Math.min(1, (this.steps + 1) / (this.#warmupSteps || 1));
  }

  override step(options?: StepOptions): void {
    this.#assertTraining("step");
    const { lrMax, weight } = this.#computeAverageWeight();
    super.step(options);
    this.#lrMax = lrMax;
    this.#weightSum += weight;
  }

  /** Returns the weight of the next step in the average, and the largest learning rate including that step. */
  #computeAverageWeight(): { lrMax: number; weight: number } {
    const lrMax = Math.max(this.#lrMax, this.learningRate);
    return { lrMax, weight: (this.steps + 1) ** this.#r * lrMax ** this.#weightLrPower };
  }

  protected updateParameter(slot: OptimizerSlot, gradient: Tensor): void {
    const { parameter, master, state } = slot;
    const adamState = { parameter: master ?? parameter, first: state.z!, second: state.exp_avg_sq! };
    parameter.device.kernels.adam(adamState, gradient, this.#computeStep(slot));
  }

  /** Returns the coefficients of the next step. */
  #computeStep({ lrScale, weightDecay }: OptimizerSlot): AdamStep {
    const [beta1, beta2] = this.#betas;
    const { weight } = this.#computeAverageWeight();
    const newWeightSum = this.#weightSum + weight;
    return {
      kind: "scheduleFree",
      rate: this.learningRate * lrScale,
      beta1,
      beta2,
      epsilon: this.#epsilon,
      decay: weightDecay ?? this.#weightDecay,
      correction1: 1,
      correction2: 1 - beta2 ** (this.steps + 1),
      mix: newWeightSum === 0 ? 0 : weight / newWeightSum,
    };
  }

  /** Writes the average x = y + (1 − 1/β₁)(z − y) to the parameters, and saves y. Idempotent. */
  eval(): this {
    if (this.#savedParameters) return this;
    this.adoptWrittenParameters();
    const { savedParameters, workspace } = this.#allocateAverages();
    using ownedWorkspace = workspace;
    for (const [i, { parameter, master, state }] of this.slots.entries()) {
      if (parameter.size === 0) continue;
      const { kernels } = parameter.device;
      kernels.copy(savedParameters[i]!, parameter);
      using elements = ownedWorkspace!.slice(0, 0, parameter.size);
      using x = elements.reshape(parameter.shape);
      kernels.binary("sub", x, state.z!, master ?? parameter);
      kernels.scalar("mul", x, x, 1 - 1 / this.#betas[0]);
      kernels.binary("add", parameter, master ?? parameter, x);
    }
    this.#savedParameters = savedParameters;
    this.publishParameters();
    return this;
  }

  /**
   * Allocates all memory of `eval` before anything is written: a copy of each parameter, and a workspace as large as the
   * largest one.
   */
  #allocateAverages(): { readonly savedParameters: readonly Tensor[]; readonly workspace: Tensor | null } {
    const parameters = this.slots.map(({ parameter }) => parameter);
    const largestSize = parameters.reduce((largest, { size }) => Math.max(largest, size), 0);
    const memory = scope(() => ({
      savedParameters: parameters.map(({ device, shape, dtype }) => device.empty(shape, dtype)),
      workspace: parameters[0]?.device.empty([largestSize], "float32") ?? null,
    }));
    for (const y of memory.savedParameters) keep(y);
    return memory;
  }

  /**
   * Restores y, so that training continues as if nothing had been evaluated. Idempotent.
   *
   * @throws OptionError if the parameters were written after `eval`, because these values would be lost.
   */
  train(): this {
    if (!this.#savedParameters) return this;
    const [writtenSlot] = this.listWrittenSlots();
    if (writtenSlot) {
      throw new OptionError({
        where: "ScheduleFreeAdamW.train",
        expected: "parameters as eval() left them",
        received: `"${writtenSlot.name}" with other values`,
        remedy: "call optimizer.train() before loading weights",
      });
    }
    for (const [i, y] of this.#savedParameters.entries()) {
      const { parameter } = this.slots[i]!;
      if (y.size > 0) parameter.device.kernels.copy(parameter, y);
      y.dispose();
    }
    this.#savedParameters = undefined;
    this.publishParameters();
    return this;
  }

  override shardedStateDict(): ShardedOptimizerState {
    this.#assertTraining("stateDict");
    return super.shardedStateDict();
  }

  protected override checkState(where: string, state: OptimizerState): void {
    this.#assertTraining("loadStateDict");
    super.checkState(where, state);
    if (state.numbers.weightSum! < 0) throw new StateDictError({ where, expected: "weightSum ≥ 0" });
  }

  protected override numbers(): Readonly<Record<string, number>> {
    return { weightSum: this.#weightSum, lrMax: this.#lrMax };
  }

  protected override setNumbers({ weightSum, lrMax }: Readonly<Record<string, number>>): void {
    this.#weightSum = weightSum!;
    this.#lrMax = lrMax!;
  }

  #assertTraining(name: string): void {
    if (!this.#savedParameters) return;
    throw new MosaicError({
      where: `ScheduleFreeAdamW.${name}`,
      expected: "an optimizer in training mode",
      received: "an optimizer in evaluation mode, in which the parameters are averages",
      remedy: "call optimizer.train() first",
    });
  }

  override [Symbol.dispose](): void {
    for (const savedParameter of this.#savedParameters ?? []) savedParameter.dispose();
    this.#savedParameters = undefined;
    super[Symbol.dispose]();
  }
}

/** Initializes z with the weights. */
function startSequence({ parameter, master, state }: OptimizerSlot): void {
  if (parameter.size > 0) parameter.device.kernels.copy(state.z!, master ?? parameter);
}

/**
 * Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019), like PyTorch's AdamW. Defaults: lr
 * 1e-3, weightDecay 1e-2. A step is one pass over each parameter, in place, without workspace. A 16-bit parameter has a
 * float32 master copy. Bias corrections count only the steps in which a parameter had a gradient.
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
    super(model, options ?? {}, { kind: "AdamW", lr, stateTensors: ["exp_avg", "exp_avg_sq"] });
    this.#betas = betas;
    this.#epsilon = epsilon;
    this.#weightDecay = weightDecay;
  }

  protected updateParameter(slot: OptimizerSlot, gradient: Tensor): void {
    const { parameter, master, state } = slot;
    const adamState = { parameter: master ?? parameter, first: state.exp_avg!, second: state.exp_avg_sq! };
    parameter.device.kernels.adam(adamState, gradient, this.#computeStep(slot));
  }

  /** Returns the coefficients of the next step. */
  #computeStep({ lrScale, weightDecay, steps }: OptimizerSlot): AdamStep {
    const [beta1, beta2] = this.#betas;
    const t = steps + 1;
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
