import {
  defineOptions,
  expectValue,
  formatValue,
  type HostTensor,
  inspectAsString,
  keep,
  type LoadOptions,
  type Module,
  option,
  OptionError,
  type OptionsOf,
  scope,
  StateDictError,
  type Tensor,
  checkModule,
} from "@mosaic/core";
import { type FlatParameters, gatherShard, getShard } from "../sharding/flat-parameters.ts";
import { loadShardedState, readEntry, type ShardedEntry } from "../sharding/sharded-state.ts";
import type { TensorSource } from "../sharding/tensor-chunks.ts";
import { FiniteChecker } from "./gradients.ts";
import {
  adoptChangedElements,
  checkFrozenParameters,
  checkGradientsReduced,
  checkNotDisposed,
  checkShardingUnchanged,
  checkStateTensors,
  createSlots,
  listSlotTensors,
  nameSteps,
  type OptimizerSlot,
  type OverridesFunction,
} from "./optimizer-slot.ts";
import type { Schedule } from "./schedules.ts";

export const optimizerOptions = defineOptions("Optimizer", {
  /** Learning rate. Default: the optimizer's own. */
  lr: option.number({ min: 0, optional: true }),
  /** Factor on the learning rate as a function of the step. Default: always 1. */
  schedule: option.custom("a function that maps the step to a factor", option.isFunction<Schedule>, { optional: true }),
  /** Weight decay. Default: the optimizer's own. */
  weightDecay: option.number({ min: 0, optional: true }),
  /**
   * Options of individual parameters, like PyTorch's parameter groups. For example, `forParameter: (name, { rank }) =>
   * (rank < 2 ? { weightDecay: 0 } : {})` disables weight decay for norms and biases. Default: none.
   */
  forParameter: option.custom("a function (name, parameter)", option.isFunction<OverridesFunction>, { optional: true }),
  /**
   * Whether a loss or a gradient norm that is NaN or infinite stops training with a NonFiniteError that names the step
   * and the parameters. Norms are measured on the device without waiting, so the error is asynchronous: the first
   * `step`, `stateDict` or `assertFinite` after the norms are available throws it. Default false.
   */
  errorIfNonFinite: option.boolean({ default: false }),
  /**
   * Whether `step` accepts gradients that `reduceGradients` has not reduced over the ranks, for ranks that train
   * separate models or reduce gradients by other means. Otherwise such gradients are an OptionError on more than one
   * rank. Default false.
   */
  allowLocalGradients: option.boolean({ default: false }),
});
/** Options of every optimizer. */
export type OptimizerOptions = OptionsOf<typeof optimizerOptions>;

export const stepOptions = defineOptions("step", {
  /** The loss, a scalar. `errorIfNonFinite` also checks it. Not retained. Default: the loss is not checked. */
  loss: option.tensor({ optional: true }),
});
/** Options of one step. */
export type StepOptions = OptionsOf<typeof stepOptions>;

const optimizerLoadOptions = defineOptions("loadStateDict", { dryRun: option.boolean({ default: false }) });

/** State of an optimizer: tensors by name, and numbers. */
export interface OptimizerState {
  /** Name of the optimizer, such as "AdamW" or "SGD". The state of another optimizer is rejected. */
  readonly kind: string;
  readonly tensors: ReadonlyMap<string, Tensor | HostTensor>;
  readonly numbers: Readonly<Record<string, number>>;
}

/** An OptimizerState with the tensors of one rank. */
export interface ShardedOptimizerState extends Pick<OptimizerState, "kind" | "numbers"> {
  readonly entries: readonly ShardedEntry[];
}

/** What a subclass of `Optimizer` declares. */
export interface OptimizerDeclaration {
  /** Name of the optimizer, in its state and in error messages. */
  readonly kind: string;
  /** Default learning rate. */
  readonly lr: number;
  /**
   * Names of the state tensors of each parameter, such as "exp_avg". They are float32 and 0 before the first step.
   * Default: none.
   */
  readonly stateTensors?: readonly string[];
}

const hasReadRange = option.hasMethods<TensorSource>("readRange");

/**
 * Base class of optimizers: manages the tensors that they update, and their state. Every rank steps independently. With
 * gradients that are equal on all ranks (`reduceGradients`), parameters stay equal.
 *
 * A subclass declares its state tensors and implements `updateParameter`.
 *
 * @example
 * ```ts
 * import { fromArray, init, Linear, type Module, type Tensor } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { Optimizer, type OptimizerOptions, type OptimizerSlot } from "@mosaic/nn";
 * class Adagrad extends Optimizer {
 *   constructor(model: Module, options: OptimizerOptions = {}) {
 *     super(model, options, { kind: "Adagrad", lr: 0.01, stateTensors: ["sum"] });
 *   }
 *   protected updateParameter({ parameter, master, state, lrScale }: OptimizerSlot, gradient: Tensor): void {
 *     const { device, shape } = parameter;
 *     using update = device.empty(shape, "float32");
 *     device.kernels.unary("square", update, gradient);
 *     device.kernels.binary("add", state.sum!, state.sum!, update);
 *     device.kernels.unary("sqrt", update, state.sum!);
 *     device.kernels.scalar("add", update, update, 1e-10);
 *     device.kernels.binary("div", update, gradient, update);
 *     device.kernels.scalar("mul", update, update, this.learningRate * lrScale);
 *     device.kernels.binary("sub", master ?? parameter, master ?? parameter, update);
 *   }
 * }
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 2, 1, { bias: false });
 * ctx.device.write(layer.weight, [1, 1]);
 * using optimizer = new Adagrad(layer, { lr: 0.5 });
 * layer.weight.grad = fromArray(ctx, [3, -4], [1, 2]);
 * optimizer.step();
 * optimizer.zeroGrad();
 * Array.from(await layer.weight.read()); // => [0.5, 1.5]
 * [...optimizer.stateDict().tensors.keys()]; // => ["weight.sum"]
 * ```
 */
export abstract class Optimizer implements Disposable {
  /**
   * The learning rate before the schedule. Can be assigned. A learning rate that differs from the option is part of the
   * state; a state without one restores the option.
   */
  lr: number;
  /** Number of steps so far. */
  steps = 0;
  protected readonly slots: readonly OptimizerSlot[];
  readonly #kind: string;
  /** The learning rate that was passed as an option. */
  readonly #lrOption: number;
  readonly #schedule: Schedule;
  #finiteChecker: FiniteChecker | undefined;
  readonly #allowLocalGradients: boolean;
  /**
   * Parameters that required no gradient when the optimizer was created, with their names. Steps do not update them.
   */
  readonly #frozenParameters: readonly [name: string, parameter: Tensor][];
  /** For each slot, the version of its parameter's memory after the last write of the optimizer. */
  #parameterVersions: readonly number[] = [];
  /** The last slot of each sharded unit. */
  readonly #lastSlotByUnit: ReadonlyMap<FlatParameters, number>;

  protected constructor(
    model: Module,
    options: OptimizerOptions,
    { kind, lr, stateTensors = [] }: OptimizerDeclaration,
  ) {
    checkModule(kind, model);
    checkStateTensors(kind, stateTensors);
    const parameters = model.parameters();
    expectValue(kind, parameters.length > 0, "a model with parameters", model, "register layers with addChild");
    for (const parameter of parameters) parameter.assertNotDisposed(kind);
    // All other options are those of the subclass.
    const sharedOptions = Object.entries(options).filter(([name]) => Object.hasOwn(optimizerOptions.fields, name));
    const settings = optimizerOptions.parse(Object.fromEntries(sharedOptions), kind);
    this.#kind = kind;
    this.#lrOption = settings.lr ?? lr;
    this.lr = this.#lrOption;
    this.#schedule = settings.schedule ?? (() => 1);
    // Created within a scope, which releases the states of the first parameters if there is no memory for the others.
    this.slots = scope(() => createSlots(model, stateTensors, settings.forParameter));
    for (const x of this.slots.flatMap(listSlotTensors)) keep(x);
    this.#frozenParameters = model.namedParameters().filter(([, parameter]) => !parameter.requiresGrad);
    const units = this.slots.map(({ source }, i) => [getShard(source)?.unit, i] as const);
    this.#lastSlotByUnit = new Map(units.flatMap(([unit, i]) => (unit ? [[unit, i] as const] : [])));
    this.#allowLocalGradients = settings.allowLocalGradients;
    this.#finiteChecker = settings.errorIfNonFinite ? new FiniteChecker(kind) : undefined;
    this.recordParameterVersions();
  }

  /** Records the versions of the parameters. Called after the optimizer has written to them and published them. */
  protected recordParameterVersions(): void {
    this.#parameterVersions = this.slots.map(({ parameter }) => parameter.storage.version);
  }

  /** Returns the slots whose parameters were written by other code, such as `loadStateDict` of the model. */
  protected listWrittenSlots(): readonly OptimizerSlot[] {
    return this.slots.filter(({ parameter }, i) => parameter.storage.version !== this.#parameterVersions[i]);
  }

  /** Updates the master copies of parameters that other code has written since the last step. */
  protected adoptWrittenParameters(): void {
    const writtenSlots = this.listWrittenSlots();
    if (writtenSlots.length === 0) return;
    for (const { master, parameter } of writtenSlots) {
      if (master && master.size > 0) adoptChangedElements(master, parameter);
    }
    this.recordParameterVersions();
  }

  /** The learning rate of the next step. */
  get learningRate(): number {
    return this.lr * this.#schedule(this.steps);
  }

  /**
   * Updates every parameter that has a gradient. The gradients do not change.
   *
   * @throws OptionError, before anything is updated, for a learning rate that is NaN, infinite or negative, which a
   * schedule may return; on several ranks, for gradients to which a backward has added since `reduceGradients`, unless
   * `allowLocalGradients`; for a gradient of a parameter that required none when the optimizer was created.
   * DisposedError for a parameter that the model has disposed; NonFiniteError with `errorIfNonFinite`.
   */
  step(options?: StepOptions): void {
    const where = `${this.#kind}.step ${this.steps}`;
    const { loss } = stepOptions.parse(options, where);
    for (const { name, parameter, source } of this.slots) {
      checkNotDisposed(where, { name, source });
      checkShardingUnchanged(where, { parameter, source });
    }
    checkGradientsReduced(where, this.slots, { allowLocalGradients: this.#allowLocalGradients, callName: "step" });
    checkFrozenParameters(where, this.#frozenParameters);
    const rate: unknown = this.learningRate;
    if (!(Number.isFinite(rate) && (rate as number) >= 0)) {
      const expected = "a finite learning rate lr · schedule(step) ≥ 0";
      throw new OptionError({ where, expected, received: formatValue(rate) });
    }
    this.#finiteChecker?.throwIfFailed();
    this.#finiteChecker?.postMeasurement(this.steps, this.slots, loss);
    this.adoptWrittenParameters();
    for (const [i, slot] of this.slots.entries()) {
      this.#updateSlot(slot);
      const unit = getShard(slot.source)?.unit;
      // The all-gather of a unit overlaps with the update of the next units.
      if (unit && this.#lastSlotByUnit.get(unit) === i) unit.publish();
    }
    for (const unit of this.#lastSlotByUnit.keys()) unit.finishPublish();
    this.recordParameterVersions();
    this.steps++;
  }

  #updateSlot(slot: OptimizerSlot): void {
    const { parameter, source, master } = slot;
    if (!source.requiresGrad || !parameter.grad) return;
    if (parameter.size > 0) {
      this.updateParameter(slot, parameter.grad);
      if (master) parameter.device.kernels.copy(parameter, master);
    }
    slot.steps++;
  }

  /** Publishes writes to sharded parameters to all ranks. */
  protected publishParameters(): void {
    for (const unit of this.#lastSlotByUnit.keys()) unit.publish();
    for (const unit of this.#lastSlotByUnit.keys()) unit.finishPublish();
    this.recordParameterVersions();
  }

  /**
   * Updates the master copy of a parameter or, if it has none, the parameter, and its state tensors, in place. Must not
   * change the gradient. Called for every parameter that has a gradient and at least one element. The master copy is
   * then rounded to the parameter.
   */
  protected abstract updateParameter(slot: OptimizerSlot, gradient: Tensor): void;

  /** Disposes every parameter's gradient. */
  zeroGrad(): void {
    const parameters = this.slots.map(({ source }) => source);
    for (const unit of this.#lastSlotByUnit.keys()) unit.zeroGrad(parameters);
    for (const { source } of this.slots) {
      source.grad?.dispose();
      source.grad = null;
    }
  }

  /**
   * Waits until the losses and gradients of all steps so far have been checked, and throws if any is not finite.
   * Resolves immediately without `errorIfNonFinite`.
   */
  async assertFinite(): Promise<void> {
    await this.#finiteChecker?.pendingChecks;
    this.#finiteChecker?.throwIfFailed();
  }

  /**
   * Returns the state on which the next steps depend, other than parameters and gradients: the tensors themselves, and
   * numbers. For a sharded model, the tensors are whole copies, the same on all ranks, which the caller disposes. The
   * call is then collective and needs as much memory as without sharding.
   */
  stateDict(): OptimizerState {
    const { entries, ...state } = this.shardedStateDict();
    const tensors = new Map(
      entries.map(({ name, shard, tensor }) => [name, shard ? gatherShard(shard, tensor) : tensor]),
    );
    return { ...state, tensors };
  }

  /** Returns the state of `stateDict` with the tensors of this rank, without communication. */
  shardedStateDict(): ShardedOptimizerState {
    this.#finiteChecker?.throwIfFailed();
    this.adoptWrittenParameters();
    return { kind: this.#kind, entries: this.#entries(), numbers: this.#allNumbers() };
  }

  /**
   * Loads a state. If anything does not match, nothing is changed. With `dryRun`, only checks it.
   *
   * @throws StateDictError for the state of another optimizer or of another model.
   */
  loadStateDict(state: OptimizerState, options?: Pick<LoadOptions, "dryRun">): void {
    const where = `${this.#kind}.loadStateDict`;
    const { dryRun } = optimizerLoadOptions.parse(options, where);
    this.checkState(where, state);
    loadShardedState(where, this.#entries(), state.tensors, { dryRun });
    if (!dryRun) this.#restoreNumbers(state);
  }

  /**
   * Loads a state whose tensors are read from a source, a chunk at a time. Each rank reads its part of sharded tensors.
   * `loadStateDict` with `dryRun` has checked the state.
   */
  async loadStateFromSource(state: Pick<OptimizerState, "numbers">, source: TensorSource): Promise<void> {
    const where = `${this.#kind}.loadStateFromSource`;
    const isState = typeof state?.numbers === "object" && typeof state.numbers?.steps === "number";
    expectValue(where, isState, "a state that loadStateDict has checked", state);
    expectValue(where, hasReadRange(source), "a source with the method readRange", source);
    for (const entry of this.#entries()) await readEntry(entry, source);
    this.#restoreNumbers(state);
  }

  #restoreNumbers(state: Pick<OptimizerState, "numbers">): void {
    // Failures in steps before the loaded state do not apply to it.
    if (this.#finiteChecker) this.#finiteChecker = new FiniteChecker(this.#kind);
    this.lr = state.numbers.lr ?? this.#lrOption;
    this.steps = state.numbers.steps!;
    for (const slot of this.slots) slot.steps = state.numbers[nameSteps(slot)] ?? this.steps;
    this.setNumbers(state.numbers);
  }

  #allNumbers(): Readonly<Record<string, number>> {
    const otherSteps = this.slots.filter(({ steps }) => steps !== this.steps);
    const stepsByName = Object.fromEntries(otherSteps.map((slot) => [nameSteps(slot), slot.steps]));
    const assignedLr = this.lr === this.#lrOption ? {} : { lr: this.lr };
    return { steps: this.steps, ...assignedLr, ...stepsByName, ...this.numbers() };
  }

  /** Throws a StateDictError if anything in the state other than its tensors is invalid. Changes nothing. */
  protected checkState(where: string, state: OptimizerState): void {
    const { kind, numbers, tensors } = state ?? {};
    if (typeof kind !== "string" || typeof numbers !== "object" || numbers === null || !(tensors instanceof Map)) {
      throw new StateDictError({ where, expected: "a state { kind, tensors, numbers }", received: formatValue(state) });
    }
    if (kind !== this.#kind) {
      throw new StateDictError({ where, expected: `the state of ${this.#kind}`, received: `the state of ${kind}` });
    }
    for (const name of ["steps", ...Object.keys(this.numbers())]) {
      if (Number.isFinite(numbers[name])) continue;
      throw new StateDictError({ where, expected: `a number "${name}"`, received: formatValue(numbers[name]) });
    }
    if ("lr" in numbers && !(Number.isFinite(numbers.lr) && numbers.lr >= 0)) {
      throw new StateDictError({ where, expected: "a finite lr ≥ 0", received: formatValue(numbers.lr) });
    }
    for (const name of ["steps", ...this.slots.map(nameSteps).filter((each) => each in numbers)]) {
      if (Number.isSafeInteger(numbers[name]) && numbers[name]! >= 0) continue;
      throw new StateDictError({ where, expected: `an integer ${name} ≥ 0`, received: formatValue(numbers[name]) });
    }
  }

  /** Lists the state tensors, with names as in PyTorch: "fc1.weight.exp_avg". */
  #entries(): readonly ShardedEntry[] {
    return this.slots.flatMap(({ name, source, state, master }) => {
      const shard = getShard(source);
      const tensors = Object.entries(master ? { ...state, master } : state);
      return tensors.map(([tensorName, tensor]) => ({ name: `${name}.${tensorName}`, shard, tensor }));
    });
  }

  /** Returns the numbers of the state other than the learning rate and the numbers of steps. Default: none. */
  protected numbers(): Readonly<Record<string, number>> {
    return {};
  }

  /** Restores the numbers that `numbers` returned. */
  protected setNumbers(_numbers: Readonly<Record<string, number>>): void {}

  static {
    inspectAsString(this.prototype);
  }

  /** Returns the learning rate and the numbers of steps and of parameters, as shown by `console.log`. */
  toString(): string {
    const elements = this.slots.reduce((sum, { parameter }) => sum + parameter.size, 0);
    const parameters = `${this.slots.length} parameters of ${elements} elements`;
    return `${this.#kind}(lr ${this.lr}; ${this.steps} steps; ${parameters})`;
  }

  /** Disposes the state of the parameters. The parameters themselves belong to the model. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const each of this.slots.flatMap(listSlotTensors)) each.dispose();
  }
}
