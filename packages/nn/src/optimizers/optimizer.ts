import {
  type AdamStep,
  defineOptions,
  expectValue,
  formatValue,
  type HostTensor,
  keep,
  type LoadOptions,
  type Module,
  option,
  OptionError,
  type OptionsOf,
  scope,
  StateDictError,
  Tensor,
  checkModule,
} from "@mosaic/core";
import { type FlatParameters, gatherShard, getShard } from "../sharding/flat-parameters.ts";
import { loadShardedState, type PendingHostTensor, type ShardedEntry } from "../sharding/sharded-state.ts";
import { FiniteChecker } from "./gradients.ts";
import type { Schedule } from "./schedules.ts";

export const parameterOverrides = defineOptions("forParameter", {
  /** Factor on the learning rate. Default 1. */
  lrScale: option.number({ min: 0, default: 1 }),
  /** Weight decay of this parameter. Default: the optimizer's. */
  weightDecay: option.number({ min: 0, optional: true }),
});
/** Options of an individual parameter. */
export type ParameterOverrides = OptionsOf<typeof parameterOverrides>;
type OverridesFunction = (name: string, parameter: Tensor) => ParameterOverrides;

export const optimizerOptions = defineOptions("Optimizer", {
  /** Learning rate. Default: the optimizer's own. */
  lr: option.number({ min: 0, optional: true }),
  /** Factor on the learning rate as a function of the step. Default: always 1. */
  schedule: option.custom("a function that maps the step to a factor", option.isFunction<Schedule>, { optional: true }),
  /** Decoupled weight decay, per step and learning rate. Default: the optimizer's own. */
  weightDecay: option.number({ min: 0, optional: true }),
  /** Added to the square root of the mean square. Default 1e-8. */
  epsilon: option.number({ min: 0, default: 1e-8 }),
  /** Decay rates of the means of gradients and of their squares. Default [0.9, 0.999]. */
  betas: option.pair(option.number({ min: 0, below: 1 }), { default: [0.9, 0.999] }),
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
  /** Name of the optimizer: "AdamW" or "ScheduleFreeAdamW". The state of another optimizer is rejected. */
  readonly kind: string;
  readonly tensors: ReadonlyMap<string, Tensor | HostTensor>;
  readonly numbers: Readonly<Record<string, number>>;
}

/** An OptimizerState whose values are being copied to the host. */
export interface HostOptimizerState extends Pick<OptimizerState, "kind" | "numbers"> {
  readonly tensors: ReadonlyMap<string, PendingHostTensor>;
}

/** A parameter and its state in the optimizer. */
export interface OptimizerSlot {
  readonly name: string;
  /**
   * The tensor that a step updates: the model's parameter or, if it is sharded, this rank's elements of it [n]. Its
   * `grad` is the gradient of these elements.
   */
  readonly parameter: Tensor;
  /** The model's parameter. */
  readonly source: Tensor;
  readonly first: Tensor;
  readonly second: Tensor;
  /** Float32 master copy of a 16-bit parameter, to which updates are applied; null for a float32 parameter. */
  readonly master: Tensor | null;
  readonly lrScale: number;
  readonly weightDecay: number | undefined;
  /** Number of updates of the parameter. Steps in which it had no gradient do not count. */
  steps: number;
}

/** The fields of a slot on which the coefficients of a step depend. */
export type SlotOptions = Pick<OptimizerSlot, "lrScale" | "weightDecay" | "steps">;

/**
 * Base class of optimizers: manages the tensors that they update, and their state. Every rank steps independently. With
 * gradients that are equal on all ranks (`reduceGradients`), parameters stay equal.
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
  readonly #firstTensorName: string;
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

  /** `firstTensorName` is PyTorch's name for the first of the two state tensors of a parameter. */
  protected constructor(
    model: Module,
    options: OptimizerOptions,
    { kind, firstTensorName, lr }: { kind: string; firstTensorName: string; lr: number },
  ) {
    checkModule(kind, model);
    const parameters = model.parameters();
    expectValue(kind, parameters.length > 0, "a model with parameters", model, "register layers with addChild");
    for (const parameter of parameters) parameter.assertNotDisposed(kind);
    // All other options are those of the subclass.
    const sharedOptions = Object.entries(options).filter(([name]) => Object.hasOwn(optimizerOptions.fields, name));
    const settings = optimizerOptions.parse(Object.fromEntries(sharedOptions), kind);
    this.#kind = kind;
    this.#firstTensorName = firstTensorName;
    this.#lrOption = settings.lr ?? lr;
    this.lr = this.#lrOption;
    this.#schedule = settings.schedule ?? (() => 1);
    // Created within a scope, which releases the states of the first parameters if there is no memory for the others.
    this.slots = scope(() => createSlots(model, settings.forParameter));
    for (const x of this.slots.flatMap(({ first, second, master }) => [first, second, master])) if (x) keep(x);
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
    for (const { parameter, source } of this.slots) {
      source.assertNotDisposed(where);
      checkSharding(where, { parameter, source });
    }
    checkGradientsReduced(where, this.slots, this.#allowLocalGradients);
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
    const { parameter, source, first, second, master } = slot;
    if (!source.requiresGrad || !parameter.grad) return;
    if (parameter.size > 0) {
      const { kernels } = parameter.device;
      kernels.adam({ parameter: master ?? parameter, first, second }, parameter.grad, this.adamStep(slot));
      if (master) kernels.copy(parameter, master);
    }
    slot.steps++;
  }

  /** Publishes writes to sharded parameters to all ranks. */
  protected publishParameters(): void {
    for (const unit of this.#lastSlotByUnit.keys()) unit.publish();
    for (const unit of this.#lastSlotByUnit.keys()) unit.finishPublish();
    this.recordParameterVersions();
  }

  /** Returns the coefficients of the next step for a parameter with these options. */
  protected abstract adamStep(slotOptions: SlotOptions): AdamStep;

  /** Disposes every parameter's gradient. */
  zeroGrad(): void {
    for (const unit of this.#lastSlotByUnit.keys()) unit.zeroGrad();
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
    this.#finiteChecker?.throwIfFailed();
    this.adoptWrittenParameters();
    const tensors = new Map(
      this.#entries().map(({ name, shard, tensor }) => [name, shard ? gatherShard(shard, tensor) : tensor]),
    );
    return { kind: this.#kind, tensors, numbers: this.#allNumbers() };
  }

  /**
   * Returns the state of `stateDict`, with values on the host if `shouldReadValues`. Sharded tensors are gathered one
   * after the other.
   */
  hostStateDict(shouldReadValues: boolean): HostOptimizerState {
    this.#finiteChecker?.throwIfFailed();
    this.adoptWrittenParameters();
    const tensors = new Map(
      this.#entries().map(({ name, shard, tensor }): [string, PendingHostTensor] => {
        const fullTensor = shard ? gatherShard(shard, tensor) : tensor;
        const values = shouldReadValues ? fullTensor.read() : Promise.resolve(new Float32Array());
        if (shard) fullTensor.dispose();
        return [name, { dtype: fullTensor.dtype, shape: fullTensor.shape, values }];
      }),
    );
    return { kind: this.#kind, tensors, numbers: this.#allNumbers() };
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
    if (dryRun) return;
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
    return this.slots.flatMap(({ name, source, first, second, master }) => {
      const shard = getShard(source);
      return [
        { name: `${name}.${this.#firstTensorName}`, shard, tensor: first },
        { name: `${name}.exp_avg_sq`, shard, tensor: second },
        ...(master ? [{ name: `${name}.master`, shard, tensor: master }] : []),
      ];
    });
  }

  /** Returns the numbers of the state other than `steps`. */
  protected abstract numbers(): Readonly<Record<string, number>>;

  protected abstract setNumbers(numbers: Readonly<Record<string, number>>): void;

  /** Disposes the state of the parameters. The parameters themselves belong to the model. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const { first, second, master } of this.slots) for (const each of [first, second, master]) each?.dispose();
  }
}

/** Throws an OptionError if the parameter was sharded after the optimizer was created. */
function checkSharding(where: string, { parameter, source }: Pick<OptimizerSlot, "parameter" | "source">): void {
  if (parameter === (getShard(source)?.tensor ?? source)) return;
  throw new OptionError({
    where,
    expected: "parameters with the same sharding as when the optimizer was created",
    received: "a model that was sharded after the optimizer was created",
    remedy: "call fullyShard(ctx, model) before creating the optimizer",
  });
}

/**
 * Throws an OptionError for gradients that are not reduced. Ranks that step with local gradients diverge silently, each
 * with a plausible loss.
 */
function checkGradientsReduced(where: string, slots: readonly OptimizerSlot[], allowLocalGradients: boolean): void {
  for (const { name, source } of slots) {
    const { requiresGrad, grad, replication } = source;
    // Shards are updated with reduced gradients only, so `allowLocalGradients` does not apply to them.
    const hasLocalGrad =
      getShard(source)?.unit.hasLocalGrad ?? (!allowLocalGradients && grad !== null && replication?.hasLocalGrad);
    if (!requiresGrad || !hasLocalGrad) continue;
    const isSharded = getShard(source) !== undefined;
    throw new OptionError({
      where,
      expected: `gradients reduced over the ${replication!.ranks} ranks`,
      received: `a gradient of "${name}" from this rank only`,
      remedy: `call reduceGradients(ctx, model) between backward() and step()${isSharded ? "" : ", or pass allowLocalGradients: true"}`,
    });
  }
}

/**
 * Returns PyTorch's name for the number of steps of a parameter, which is saved if it differs from that of the
 * optimizer.
 */
function nameSteps({ name }: OptimizerSlot): string {
  return `${name}.step`;
}

/** Throws an OptionError for a gradient of a parameter that was unfrozen later and therefore has no moments. */
function checkFrozenParameters(where: string, frozenParameters: readonly [string, Tensor][]): void {
  const unfrozen = frozenParameters.find(
    ([, parameter]) => parameter.requiresGrad && (getShard(parameter)?.tensor ?? parameter).grad !== null,
  );
  if (!unfrozen) return;
  throw new OptionError({
    where,
    expected: "gradients only of parameters that required one when the optimizer was created",
    received: `a gradient of "${unfrozen[0]}", which was frozen then`,
    remedy: "create the optimizer after setting requiresGrad",
  });
}

/**
 * master ← parameter where round(master) ≠ parameter: elements that were not written keep the low bits that 16 bits
 * cannot hold. The backward of relu serves as a select: it passes dy where x > 0 or x is NaN, and gives 0 elsewhere.
 */
function adoptChangedElements(master: Tensor, parameter: Tensor): void {
  const { device, shape } = master;
  const { kernels } = device;
  using rounded = device.empty(shape, parameter.dtype);
  using difference = device.empty(shape, "float32");
  using one = device.empty([1], "float32");
  using isChanged = device.empty(shape, "float32");
  using selected = device.empty(shape, "float32");
  kernels.copy(rounded, master);
  kernels.binary("sub", difference, rounded, parameter);
  kernels.fill(one, 1);
  using ones = one.expand(shape);
  kernels.unaryBackward("relu", isChanged, difference, ones);
  kernels.scalar("mul", difference, difference, -1);
  kernels.unaryBackward("relu", selected, difference, ones);
  kernels.binary("add", isChanged, isChanged, selected);
  kernels.unaryBackward("relu", selected, isChanged, parameter);
  kernels.scalar("mul", isChanged, isChanged, -1);
  kernels.scalar("add", isChanged, isChanged, 1);
  kernels.unaryBackward("relu", master, isChanged, master);
  kernels.binary("add", master, master, selected);
}

/**
 * Creates a slot for each parameter that requires a gradient. Tied parameters share one slot, under their first name.
 * The states belong to the current scope.
 */
function createSlots(model: Module, getOverrides: OverridesFunction = () => ({})): OptimizerSlot[] {
  const seenParameters = new Set<Tensor>();
  return model.namedParameters().flatMap(([name, parameter]) => {
    if (!parameter.requiresGrad || seenParameters.has(parameter)) return [];
    seenParameters.add(parameter);
    const overrides = getOverrides(name, parameter);
    const { lrScale, weightDecay } = parameterOverrides.parse(overrides, `forParameter("${name}")`);
    const updatedTensor = getShard(parameter)?.tensor ?? parameter;
    return [
      {
        ...{ name, source: parameter, parameter: updatedTensor, ...createSlotTensors(updatedTensor) },
        ...{ lrScale, weightDecay, steps: 0 },
      },
    ];
  });
}

function createSlotTensors(parameter: Tensor): Pick<OptimizerSlot, "first" | "second" | "master"> {
  const { device, shape, dtype } = parameter;
  const [first, second] = [device.empty(shape, "float32"), device.empty(shape, "float32")];
  for (const moment of [first, second]) if (moment.size > 0) device.kernels.fill(moment, 0);
  if (dtype === "float32") return { first, second, master: null };
  const master = device.empty(shape, "float32");
  if (master.size > 0) device.kernels.copy(master, parameter);
  return { first, second, master };
}
