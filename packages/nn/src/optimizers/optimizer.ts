import {
  type AdamStep,
  checkOptionNames,
  type HostTensor,
  keep,
  loadState,
  type LoadOptions,
  type Module,
  OptionError,
  StateError,
  Tensor,
} from "@mosaic/core";
import { FiniteCheck } from "./non-finite.ts";
import type { Schedule } from "./schedules.ts";

/** What a parameter may have of its own. */
export interface ParameterOverrides {
  /** Factor on the learning rate. Default 1. */
  readonly lrScale?: number;
  /** Instead of the optimizer's. */
  readonly weightDecay?: number;
}

/** What every optimizer takes. */
export interface OptimizerOptions {
  /** Learning rate. */
  readonly lr?: number;
  /** Factors on it by step. Default: 1 throughout. */
  readonly schedule?: Schedule;
  /** Decoupled weight decay, per step and learning rate. */
  readonly weightDecay?: number;
  /** Added to the root of the mean square. Default 1e-8. */
  readonly epsilon?: number;
  /** Decay rates of the means of gradients and of their squares. Default [0.9, 0.999]. */
  readonly betas?: readonly [number, number];
  /**
   * What some parameters have of their own, PyTorch's parameter groups: no decay for norms and biases is
   * `forParameter: (name, { rank }) => (rank < 2 ? { weightDecay: 0 } : {})`.
   */
  readonly forParameter?: (name: string, parameter: Tensor) => ParameterOverrides;
  /**
   * Stops training at a loss or a gradient norm that is NaN or infinite, with a NonFiniteError that names step and parameters.
   * Norms are measured on the device and nothing waits for them, so the error comes as that of an asynchronous device does:
   * from the first `step`, `stateDict` or `assertFinite` after they are known. Default false.
   */
  readonly errorIfNonFinite?: boolean;
}

/** What one step may be given. */
export interface StepOptions {
  /** The loss, a scalar: with `errorIfNonFinite` it must be finite, too. Not kept. */
  readonly loss?: Tensor;
}

export const optimizerNames: readonly string[] = [
  "lr",
  "schedule",
  "weightDecay",
  "epsilon",
  "betas",
  "forParameter",
  "errorIfNonFinite",
] as const satisfies readonly (keyof OptimizerOptions)[];

/** What an optimizer remembers: tensors by name, and numbers. */
export interface OptimizerState {
  /** "AdamW", "ScheduleFreeAdamW"; another optimizer's state is refused. */
  readonly kind: string;
  readonly tensors: ReadonlyMap<string, Tensor | HostTensor>;
  readonly numbers: Readonly<Record<string, number>>;
}

/** A parameter with what the optimizer keeps of it. */
export interface OptimizerSlot {
  readonly name: string;
  readonly parameter: Tensor;
  readonly first: Tensor;
  readonly second: Tensor;
  /** A float32 copy that is what really moves, of a parameter of 16 bits; null for one of float32. */
  readonly master: Tensor | null;
  readonly lrScale: number;
  readonly weightDecay: number | undefined;
}

/**
 * What optimizers share: which tensors they move, and how they are saved. Every rank steps on its own, with equal
 * gradients (`reduceGradients`), to equal parameters.
 */
export abstract class Optimizer implements Disposable {
  /** The learning rate before the schedule; may be set. */
  lr: number;
  /** Steps taken. */
  steps = 0;
  protected readonly slots: readonly OptimizerSlot[];
  readonly #kind: string;
  readonly #firstName: string;
  readonly #schedule: Schedule;
  readonly #finiteness: FiniteCheck | undefined;

  /** `firstName` is what PyTorch calls the first of the two tensors that are kept of each parameter. */
  protected constructor(
    model: Module,
    options: OptimizerOptions,
    { kind, firstName, lr }: { kind: string; firstName: string; lr: number },
  ) {
    this.#kind = kind;
    this.#firstName = firstName;
    this.lr = options.lr ?? lr;
    this.#schedule = options.schedule ?? (() => 1);
    this.slots = slotsOf(model, options);
    this.#finiteness = options.errorIfNonFinite ? new FiniteCheck(kind) : undefined;
  }

  /** The learning rate of the coming step. */
  get learningRate(): number {
    return this.lr * this.#schedule(this.steps);
  }

  /**
   * Moves every parameter that has a gradient. The gradients stay as they are.
   *
   * @throws OptionError, with nothing moved, for a learning rate that is NaN, infinite or negative, as a schedule may make it;
   * DisposedError for a parameter that the model has disposed; NonFiniteError with `errorIfNonFinite`.
   */
  step(options: StepOptions = {}): void {
    const where = `${this.#kind}.step ${this.steps}`;
    checkOptionNames(where, options, ["loss"] satisfies (keyof StepOptions)[]);
    for (const { parameter } of this.slots) parameter.assertUsable(where);
    checkNumbers(where, { "a finite learning rate, lr · schedule(step),": this.learningRate });
    this.#finiteness?.throwIfFailed();
    this.#finiteness?.watch(this.steps, this.slots, options.loss);
    for (const slot of this.slots) {
      const { parameter, first, second, master, lrScale, weightDecay } = slot;
      if (!parameter.requiresGrad || !parameter.grad) continue;
      const { kernels } = parameter.device;
      const moved = master ?? parameter;
      kernels.adam({ parameter: moved, first, second }, parameter.grad, this.stepOf({ lrScale, weightDecay }));
      if (master) kernels.copy(parameter, master);
    }
    this.steps++;
  }

  /** The coming step's numbers, for a parameter with these overrides. */
  protected abstract stepOf(own: Pick<OptimizerSlot, "lrScale" | "weightDecay">): AdamStep;

  /** Disposes every parameter's gradient. */
  zeroGrad(): void {
    for (const { parameter } of this.slots) {
      parameter.grad?.dispose();
      parameter.grad = null;
    }
  }

  /** Waits until the losses and gradients of all steps so far are known to be finite. At once without `errorIfNonFinite`. */
  async assertFinite(): Promise<void> {
    await this.#finiteness?.known;
    this.#finiteness?.throwIfFailed();
  }

  /** The tensors themselves, and numbers: all that the next steps depend on beside parameters and gradients. */
  stateDict(): OptimizerState {
    this.#finiteness?.throwIfFailed();
    return { kind: this.#kind, tensors: this.#tensors(), numbers: { steps: this.steps, ...this.numbers() } };
  }

  /**
   * Takes over a state: all of it, or, if anything does not fit, nothing. With `dryRun` it only checks.
   *
   * @throws StateError for another optimizer's state, or that of another model.
   */
  loadStateDict(state: OptimizerState, { dryRun = false }: Pick<LoadOptions, "dryRun"> = {}): void {
    const where = `${this.#kind}.loadStateDict`;
    this.checkState(where, state);
    loadState(where, this.#tensors(), state.tensors, { dryRun });
    if (dryRun) return;
    this.steps = state.numbers.steps!;
    this.setNumbers(state.numbers);
  }

  /** Throws a StateError if `loadStateDict` would for reasons other than the tensors; changes nothing. */
  protected checkState(where: string, { kind, numbers }: OptimizerState): void {
    if (kind !== this.#kind) {
      throw new StateError({ where, expected: `the state of ${this.#kind}`, received: `that of ${kind}` });
    }
    for (const name of ["steps", ...Object.keys(this.numbers())]) {
      if (Number.isFinite(numbers[name])) continue;
      throw new StateError({ where, expected: `a number "${name}"`, received: String(numbers[name]) });
    }
  }

  /** Names as PyTorch has them: "fc1.weight.exp_avg". */
  #tensors(): ReadonlyMap<string, Tensor> {
    const entries = this.slots.flatMap(({ name, first, second, master }): [string, Tensor][] => [
      [`${name}.${this.#firstName}`, first],
      [`${name}.exp_avg_sq`, second],
      ...(master ? [[`${name}.master`, master] satisfies [string, Tensor]] : []),
    ]);
    return new Map(entries);
  }

  /** Numbers beside `steps`. */
  protected abstract numbers(): Readonly<Record<string, number>>;

  protected abstract setNumbers(numbers: Readonly<Record<string, number>>): void;

  /** Disposes what was kept of the parameters; they themselves are the model's. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const { first, second, master } of this.slots) for (const each of [first, second, master]) each?.dispose();
  }
}

/** A slot for each parameter that requires a gradient now; tied ones have one, under their first name. */
function slotsOf(model: Module, { forParameter = () => ({}) }: OptimizerOptions): OptimizerSlot[] {
  const seen = new Set<Tensor>();
  return model.namedParameters().flatMap(([name, parameter]) => {
    if (!parameter.requiresGrad || seen.has(parameter)) return [];
    seen.add(parameter);
    const own = forParameter(name, parameter);
    const where = `forParameter("${name}")`;
    checkOptionNames(where, own, ["lrScale", "weightDecay"]);
    const { lrScale = 1, weightDecay } = own;
    checkNumbers(where, { lrScale, weightDecay: weightDecay ?? 0 });
    return [{ name, parameter, ...kept(parameter), lrScale, weightDecay }];
  });
}

function kept(parameter: Tensor): Pick<OptimizerSlot, "first" | "second" | "master"> {
  const { device, shape, dtype } = parameter;
  const [first, second] = [keep(device.empty(shape, "float32")), keep(device.empty(shape, "float32"))];
  device.kernels.fill(first, 0);
  device.kernels.fill(second, 0);
  if (dtype === "float32") return { first, second, master: null };
  const master = keep(device.empty(shape, "float32"));
  device.kernels.copy(master, parameter);
  return { first, second, master };
}

/** Options that every optimizer checks alike. */
export function checkOptimizer(where: string, options: OptimizerOptions, legal: readonly string[]): void {
  checkOptionNames(where, options, legal);
  const { lr = 0, weightDecay = 0, epsilon = 0, betas = [0, 0], errorIfNonFinite = false } = options;
  if (typeof errorIfNonFinite !== "boolean") {
    throw new OptionError({ where, expected: "errorIfNonFinite true or false", received: String(errorIfNonFinite) });
  }
  checkNumbers(where, { lr, weightDecay, epsilon });
  if (betas.length === 2 && betas.every((beta) => beta >= 0 && beta < 1)) return;
  throw new OptionError({ where, expected: "two betas from 0 to below 1", received: `[${betas.join(", ")}]` });
}

/** Throws an OptionError unless each is a finite number ≥ 0. */
export function checkNumbers(where: string, numbers: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries(numbers)) {
    if (Number.isFinite(value) && value >= 0) continue;
    throw new OptionError({ where, expected: `${name} ≥ 0`, received: String(value) });
  }
}
