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
  /** Decay of this parameter. Default: the optimizer's. */
  weightDecay: option.number({ min: 0, optional: true }),
});
/** What a parameter may have of its own. */
export type ParameterOverrides = OptionsOf<typeof parameterOverrides>;
type OverridesFunction = (name: string, parameter: Tensor) => ParameterOverrides;

export const optimizerOptions = defineOptions("Optimizer", {
  /** Learning rate. Default: the optimizer's own. */
  lr: option.number({ min: 0, optional: true }),
  /** Factors on the learning rate by step. Default: 1 throughout. */
  schedule: option.custom("a function that maps the step to a factor", option.isFunction<Schedule>, { optional: true }),
  /** Decoupled weight decay, per step and learning rate. Default: the optimizer's own. */
  weightDecay: option.number({ min: 0, optional: true }),
  /** Added to the root of the mean square. Default 1e-8. */
  epsilon: option.number({ min: 0, default: 1e-8 }),
  /** Decay rates of the means of gradients and of their squares. Default [0.9, 0.999]. */
  betas: option.pair(option.number({ min: 0, below: 1 }), { default: [0.9, 0.999] }),
  /**
   * What some parameters have of their own, PyTorch's parameter groups: no decay for norms and biases is
   * `forParameter: (name, { rank }) => (rank < 2 ? { weightDecay: 0 } : {})`. Default: nothing.
   */
  forParameter: option.custom("a function (name, parameter)", option.isFunction<OverridesFunction>, { optional: true }),
  /**
   * Stops training at a loss or a gradient norm that is NaN or infinite, with a NonFiniteError that names step and parameters.
   * Norms are measured on the device and nothing waits for them, so the error comes as that of an asynchronous device does:
   * from the first `step`, `stateDict` or `assertFinite` after they are known. Default false.
   */
  errorIfNonFinite: option.boolean({ default: false }),
  /**
   * Whether `step` applies gradients that `reduceGradients` has not reduced over the ranks: for ranks that train separate models,
   * or that reduce gradients by other means. Without it they are an OptionError on more than one rank. Default false.
   */
  allowLocalGradients: option.boolean({ default: false }),
});
/** What every optimizer takes. */
export type OptimizerOptions = OptionsOf<typeof optimizerOptions>;

export const stepOptions = defineOptions("step", {
  /** The loss, a scalar: with `errorIfNonFinite` it must be finite, too. Not kept. Default: it is not looked at. */
  loss: option.tensor({ optional: true }),
});
/** What one step may be given. */
export type StepOptions = OptionsOf<typeof stepOptions>;

const optimizerLoadOptions = defineOptions("loadStateDict", { dryRun: option.boolean({ default: false }) });

/** What an optimizer remembers: tensors by name, and numbers. */
export interface OptimizerState {
  /** "AdamW", "ScheduleFreeAdamW"; another optimizer's state is rejected. */
  readonly kind: string;
  readonly tensors: ReadonlyMap<string, Tensor | HostTensor>;
  readonly numbers: Readonly<Record<string, number>>;
}

/** As OptimizerState, with values on their way to the host. */
export interface HostOptimizerState extends Pick<OptimizerState, "kind" | "numbers"> {
  readonly tensors: ReadonlyMap<string, PendingHostTensor>;
}

/** A parameter with what the optimizer keeps of it. */
export interface OptimizerSlot {
  readonly name: string;
  /** What a step moves: the model's parameter or, if it is sharded, this rank's elements of it [n], whose `grad` is theirs. */
  readonly parameter: Tensor;
  /** The model's parameter. */
  readonly source: Tensor;
  readonly first: Tensor;
  readonly second: Tensor;
  /** A float32 copy that is what really moves, of a parameter of 16 bits; null for one of float32. */
  readonly master: Tensor | null;
  readonly lrScale: number;
  readonly weightDecay: number | undefined;
  /** How often the parameter has moved: not in steps in which it had no gradient. */
  steps: number;
}

/** What the numbers of a step depend on beside the optimizer. */
export type SlotOptions = Pick<OptimizerSlot, "lrScale" | "weightDecay" | "steps">;

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
  readonly #firstTensorName: string;
  readonly #schedule: Schedule;
  #finiteChecker: FiniteChecker | undefined;
  readonly #allowLocalGradients: boolean;
  /** Parameters that required no gradient when the optimizer was made, by name: no step moves them. */
  readonly #frozenParameters: readonly [name: string, parameter: Tensor][];
  /** By slot: the version of its parameter's memory as the optimizer left it. */
  #parameterVersions: readonly number[] = [];
  /** The last slot of each sharded unit. */
  readonly #lastSlotByUnit: ReadonlyMap<FlatParameters, number>;

  /** `firstTensorName` is what PyTorch calls the first of the two tensors that are kept of each parameter. */
  protected constructor(
    model: Module,
    options: OptimizerOptions,
    { kind, firstTensorName, lr }: { kind: string; firstTensorName: string; lr: number },
  ) {
    checkModule(kind, model);
    const parameters = model.parameters();
    expectValue(kind, parameters.length > 0, "a model with parameters", model, "register layers with addChild");
    for (const parameter of parameters) parameter.assertNotDisposed(kind);
    // Options beyond these are the subclass's.
    const sharedOptions = Object.entries(options).filter(([name]) => Object.hasOwn(optimizerOptions.fields, name));
    const settings = optimizerOptions.parse(Object.fromEntries(sharedOptions), kind);
    this.#kind = kind;
    this.#firstTensorName = firstTensorName;
    this.lr = settings.lr ?? lr;
    this.#schedule = settings.schedule ?? (() => 1);
    // Within a scope, which releases the states of the first parameters if there is no memory for those of others.
    this.slots = scope(() => createSlots(model, settings.forParameter));
    for (const x of this.slots.flatMap(({ first, second, master }) => [first, second, master])) if (x) keep(x);
    this.#frozenParameters = model.namedParameters().filter(([, parameter]) => !parameter.requiresGrad);
    const units = this.slots.map(({ source }, i) => [getShard(source)?.unit, i] as const);
    this.#lastSlotByUnit = new Map(units.flatMap(([unit, i]) => (unit ? [[unit, i] as const] : [])));
    this.#allowLocalGradients = settings.allowLocalGradients;
    this.#finiteChecker = settings.errorIfNonFinite ? new FiniteChecker(kind) : undefined;
    this.recordParameterVersions();
  }

  /** To be called after the optimizer has written to parameters, and these are published. */
  protected recordParameterVersions(): void {
    this.#parameterVersions = this.slots.map(({ parameter }) => parameter.storage.version);
  }

  /** The slots whose parameters something else has written to, such as a `loadStateDict` of the model. */
  protected listWrittenSlots(): readonly OptimizerSlot[] {
    return this.slots.filter(({ parameter }, i) => parameter.storage.version !== this.#parameterVersions[i]);
  }

  /** What is kept of parameters takes over what was written to them since the last step. */
  protected adoptWrittenParameters(): void {
    const writtenSlots = this.listWrittenSlots();
    if (writtenSlots.length === 0) return;
    for (const { master, parameter } of writtenSlots) {
      if (master && master.size > 0) adoptChangedElements(master, parameter);
    }
    this.recordParameterVersions();
  }

  /** The learning rate of the coming step. */
  get learningRate(): number {
    return this.lr * this.#schedule(this.steps);
  }

  /**
   * Moves every parameter that has a gradient. The gradients stay as they are.
   *
   * @throws OptionError, with nothing moved, for a learning rate that is NaN, infinite or negative, as a schedule may make it, and
   * on several ranks for gradients to which a backward has added since `reduceGradients`, unless `allowLocalGradients`, and for a gradient
   * of a parameter that required none when the optimizer was made; DisposedError for a parameter that the model has disposed; NonFiniteError with `errorIfNonFinite`.
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
      // The all-gather of a unit runs while the next ones move.
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

  /** All ranks see what was written to sharded parameters. */
  protected publishParameters(): void {
    for (const unit of this.#lastSlotByUnit.keys()) unit.publish();
    for (const unit of this.#lastSlotByUnit.keys()) unit.finishPublish();
    this.recordParameterVersions();
  }

  /** The coming step's numbers, for a parameter with these overrides. */
  protected abstract adamStep(slotOptions: SlotOptions): AdamStep;

  /** Disposes every parameter's gradient. */
  zeroGrad(): void {
    for (const unit of this.#lastSlotByUnit.keys()) unit.zeroGrad();
    for (const { source } of this.slots) {
      source.grad?.dispose();
      source.grad = null;
    }
  }

  /** Waits until the losses and gradients of all steps so far are known to be finite. At once without `errorIfNonFinite`. */
  async assertFinite(): Promise<void> {
    await this.#finiteChecker?.pendingChecks;
    this.#finiteChecker?.throwIfFailed();
  }

  /**
   * The tensors themselves, and numbers: all that the next steps depend on beside parameters and gradients. Of a sharded model whole
   * copies, the same on all ranks, which the caller disposes: collective, and as large as without sharding.
   */
  stateDict(): OptimizerState {
    this.#finiteChecker?.throwIfFailed();
    this.adoptWrittenParameters();
    const tensors = new Map(
      this.#entries().map(({ name, shard, tensor }) => [name, shard ? gatherShard(shard, tensor) : tensor]),
    );
    return { kind: this.#kind, tensors, numbers: this.#allNumbers() };
  }

  /** As `stateDict`, with values on the host where `shouldReadValues`; sharded ones are gathered one after the other. */
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
   * Takes over a state: all of it, or, if anything does not fit, nothing. With `dryRun` it only checks.
   *
   * @throws StateDictError for another optimizer's state, or that of another model.
   */
  loadStateDict(state: OptimizerState, options?: Pick<LoadOptions, "dryRun">): void {
    const where = `${this.#kind}.loadStateDict`;
    const { dryRun } = optimizerLoadOptions.parse(options, where);
    this.checkState(where, state);
    loadShardedState(where, this.#entries(), state.tensors, { dryRun });
    if (dryRun) return;
    // Steps of another state do not fail this one.
    if (this.#finiteChecker) this.#finiteChecker = new FiniteChecker(this.#kind);
    this.steps = state.numbers.steps!;
    for (const slot of this.slots) slot.steps = state.numbers[nameSteps(slot)] ?? this.steps;
    this.setNumbers(state.numbers);
  }

  #allNumbers(): Readonly<Record<string, number>> {
    const otherSteps = this.slots.filter(({ steps }) => steps !== this.steps);
    const stepsByName = Object.fromEntries(otherSteps.map((slot) => [nameSteps(slot), slot.steps]));
    return { steps: this.steps, ...stepsByName, ...this.numbers() };
  }

  /** Throws a StateDictError if `loadStateDict` would for reasons other than the tensors; changes nothing. */
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
    for (const name of ["steps", ...this.slots.map(nameSteps).filter((each) => each in numbers)]) {
      if (Number.isSafeInteger(numbers[name]) && numbers[name]! >= 0) continue;
      throw new StateDictError({ where, expected: `an integer ${name} ≥ 0`, received: formatValue(numbers[name]) });
    }
  }

  /** Names as PyTorch has them: "fc1.weight.exp_avg". */
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

/** Slots are those of the parameters as they were when the optimizer was made. */
function checkSharding(where: string, { parameter, source }: Pick<OptimizerSlot, "parameter" | "source">): void {
  if (parameter === (getShard(source)?.tensor ?? source)) return;
  throw new OptionError({
    where,
    expected: "parameters with the same sharding as when the optimizer was created",
    received: "a model that was sharded after the optimizer was created",
    remedy: "call fullyShard(ctx, model) before creating the optimizer",
  });
}

/** Ranks that step with gradients of their own diverge in silence: each of them has a plausible loss. */
function checkGradientsReduced(where: string, slots: readonly OptimizerSlot[], allowLocalGradients: boolean): void {
  for (const { name, source } of slots) {
    const { requiresGrad, grad, replication } = source;
    // What moves a shard is what was reduced, whatever is allowed.
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

/** Of a parameter that has moved less often than there were steps; as PyTorch names it. */
function nameSteps({ name }: OptimizerSlot): string {
  return `${name}.step`;
}

/** A parameter that was unfrozen later has a gradient, and no moments. */
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
 * master ← parameter where it does not round to it: elements that nobody wrote to keep the bits for which the parameter has no room.
 * What selects is the backward of relu: dy where x is above zero, or NaN, and 0 elsewhere.
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

/** A slot for each parameter that requires a gradient now; tied ones have one, under their first name. Their states are the scope's. */
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
