import { defineOptions, type Module, option, OptionError, type OptionsOf, type Tensor } from "@mosaic/core";
import { Optimizer, optimizerOptions, type StepOptions } from "./optimizer.ts";
import type { OptimizerSlot } from "./optimizer-slot.ts";

export const sgdOptions = defineOptions("SGD", {
  ...optimizerOptions.fields,
  /** Learning rate. Default 1e-3. */
  lr: option.number({ min: 0, default: 1e-3 }),
  /** Factor on the momentum buffer, to which each step adds the gradient. 0 means no buffer. Default 0. */
  momentum: option.number({ min: 0, default: 0 }),
  /** The gradient is added to the momentum buffer with factor 1 − dampening, except in the first step. Default 0. */
  dampening: option.number({ default: 0 }),
  /** Whether to use Nesterov momentum, which requires a momentum and no dampening. Default false. */
  nesterov: option.boolean({ default: false }),
  /** L2 penalty: this factor times the parameter is added to the gradient. Default 0. */
  weightDecay: option.number({ min: 0, default: 0 }),
});
/** Options of SGD. */
export type SGDOptions = OptionsOf<typeof sgdOptions>;

/**
 * Stochastic gradient descent with momentum (Sutskever et al. 2013), like PyTorch's SGD. Defaults: lr 1e-3, no momentum,
 * no weight decay. With g = gradient + weightDecay · p, a step is b ← momentum · b + (1 − dampening) g; p ← p − lr · b,
 * where b = g in the first step of a parameter. With `nesterov`, p ← p − lr (g + momentum · b); without momentum, p ← p
 * − lr · g.
 *
 * The state has one tensor for each parameter with momentum, and none without. A 16-bit parameter also has a float32
 * master copy. During a step, the workspace is as large as the largest parameter in float32, twice that with
 * `nesterov`.
 *
 * @example
 * ```ts
 * import { fromArray, init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { SGD } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 2, 1, { bias: false });
 * ctx.device.write(layer.weight, [1, 2]);
 * using optimizer = new SGD(layer, { lr: 0.5, momentum: 0.5 });
 * layer.weight.grad = fromArray(ctx, [1, -1], [1, 2]);
 * optimizer.step();
 * optimizer.step(); // with the same gradient
 * optimizer.zeroGrad();
 * Array.from(await layer.weight.read()); // => [-0.25, 3.25]
 * [...optimizer.stateDict().tensors.keys()]; // => ["weight.momentum_buffer"]
 * ```
 * @throws OptionError for options that do not exist or are out of range, and for `nesterov` without momentum or with
 * dampening.
 */
export class SGD extends Optimizer {
  readonly #momentum: number;
  readonly #dampening: number;
  readonly #nesterov: boolean;
  readonly #weightDecay: number;
  /** Float32, as large as the largest parameter; the second one is for `nesterov`. Only during a step. */
  #workspaces: readonly Tensor[] = [];

  constructor(model: Module, options?: SGDOptions) {
    const { lr, momentum, dampening, nesterov, weightDecay } = sgdOptions.parse(options);
    if (nesterov && (momentum === 0 || dampening !== 0)) {
      throw new OptionError({
        where: "SGD: nesterov",
        expected: "momentum > 0 and dampening 0",
        received: `momentum ${momentum} and dampening ${dampening}`,
      });
    }
    super(model, options ?? {}, { kind: "SGD", lr, stateTensors: momentum === 0 ? [] : ["momentum_buffer"] });
    this.#momentum = momentum;
    this.#dampening = dampening;
    this.#nesterov = nesterov;
    this.#weightDecay = weightDecay;
  }

  override step(options?: StepOptions): void {
    const largestSize = this.slots.reduce((largest, { parameter }) => Math.max(largest, parameter.size), 0);
    const device = this.slots[0]?.parameter.device;
    // Allocated before anything is updated, so that a step that runs out of memory changes nothing.
    using workspace = device?.empty([largestSize], "float32");
    using nesterovWorkspace = this.#nesterov ? device?.empty([largestSize], "float32") : undefined;
    this.#workspaces = [workspace, nesterovWorkspace].filter((each) => each !== undefined);
    try {
      super.step(options);
    } finally {
      this.#workspaces = [];
    }
  }

  protected updateParameter(slot: OptimizerSlot, gradient: Tensor): void {
    const { parameter, master, lrScale, weightDecay = this.#weightDecay } = slot;
    const weights = master ?? parameter;
    const { kernels } = parameter.device;
    using update = this.#viewWorkspace(0, parameter);
    let direction = gradient;
    if (weightDecay !== 0) {
      kernels.scalar("mul", update, weights, weightDecay);
      kernels.binary("add", update, update, gradient);
      direction = update;
    }
    if (this.#momentum !== 0) direction = this.#applyMomentum(slot, { direction, update });
    kernels.scalar("mul", update, direction, this.learningRate * lrScale);
    kernels.binary("sub", weights, weights, update);
  }

  /**
   * Updates the momentum buffer by the direction, which is the gradient or `update`. Returns the new direction: the
   * buffer or, with `nesterov`, `update`, in which it is computed.
   */
  #applyMomentum(slot: OptimizerSlot, { direction, update }: { direction: Tensor; update: Tensor }): Tensor {
    const { parameter, steps } = slot;
    const { kernels } = parameter.device;
    const buffer = slot.state.momentum_buffer!;
    if (steps === 0) {
      kernels.copy(buffer, direction);
    } else {
      kernels.scalar("mul", buffer, buffer, this.#momentum);
      if (this.#dampening !== 0) kernels.scalar("mul", update, direction, 1 - this.#dampening);
      kernels.binary("add", buffer, buffer, this.#dampening === 0 ? direction : update);
    }
    if (!this.#nesterov) return buffer;
    using lookAhead = this.#viewWorkspace(1, parameter);
    kernels.scalar("mul", lookAhead, buffer, this.#momentum);
    kernels.binary("add", update, direction, lookAhead);
    return update;
  }

  #viewWorkspace(index: 0 | 1, { shape, size }: Tensor): Tensor {
    using elements = this.#workspaces[index]!.slice(0, 0, size);
    return elements.reshape(shape);
  }
}
