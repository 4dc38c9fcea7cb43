import {
  checkContext,
  checkFunction,
  checkModule,
  type Context,
  dataParallelAxes,
  dataParallelAxis,
  defineOptions,
  isBackwardRunning,
  isGradEnabled,
  MosaicError,
  type Module,
  noGrad,
  option,
  OptionError,
  type OptionsOf,
  Tensor,
} from "@mosaic/core";
import { ModuleList } from "../layers/containers.ts";
import { FlatParameters, getShard, listUnits, type ZeroStage } from "./flat-parameters.ts";

export const fullyShardOptions = defineOptions("fullyShard", {
  /**
   * What is sharded. 1: optimizer states (PyTorch's ZeroRedundancyOptimizer); 2: also gradients (SHARD_GRAD_OP of
   * FSDP); 3: also parameters (FULL_SHARD). Default 3.
   */
  stage: option.oneOf([1, 2, 3], { default: 3 }),
  /**
   * The mesh axis along which they are sharded. Any axis can be used, because parameters are equal along all axes. They
   * are replicated along the others, so that "dp_shard" of { dp_replicate: 2, dp_shard: 4 } is hybrid sharding
   * (HYBRID_SHARD of FSDP, HSDP). Required on a mesh with several data-parallel axes. Default: the data-parallel axis.
   */
  axis: option.string({ optional: true }),
  /**
   * Modules whose parameters are gathered together and whose gradients are reduced together, FSDP's units. The
   * remaining parameters form one more unit, the root unit, which stays gathered from the first forward of the model,
   * or of a module within it, to `reduceGradients`. Default: the elements of every ModuleList that is not nested in
   * another, except that an element without a forward, such as a ModuleList, is replaced by the units within it.
   */
  units: option.array(option.custom("a Module with a forward", isModuleWithForward), { optional: true }),
});
/** Options of `fullyShard`. */
export type FullyShardOptions = OptionsOf<typeof fullyShardOptions>;

/** Whether a value can be a unit. The parameters of a unit are gathered when its forward is called. */
function isModuleWithForward(value: unknown): value is Module {
  const { namedParameters, forward } = (value ?? {}) as { namedParameters?: unknown; forward?: unknown };
  return typeof namedParameters === "function" && typeof forward === "function";
}

/**
 * Shards the training of a model over an axis of the mesh, in place: ZeRO (Rajbhandari et al. 2020), PyTorch's
 * `fully_shard`. Call it before creating the optimizer, which then stores and updates only this rank's part. The
 * training loop does not change: forward, backward, `reduceGradients`, `clipGradNorm`, `step`, `zeroGrad`. Losses equal
 * those of an unsharded model. Returns the model.
 *
 * Without sharding, a rank stores 4Ψ bytes of parameters, 4Ψ of gradients and 8Ψ of AdamW's states for Ψ float32
 * parameters. On n ranks along the axis, a stage divides what it shards by n, with the parts of each unit rounded up to
 * 32 elements. In stage 3, the parameters of a unit are gathered before its forward and before its backward, while the
 * previous unit computes, and released after each. The gradients of a unit are reduced as soon as its backward is
 * complete, while the next one runs: in stages 2 and 3, in every backward; in stage 1, where whole gradients
 * accumulate, in the last backward of a step, which is assumed to have as many as the previous step. After
 * `reduceGradients`, the parameters' `grad` is null. This call does not communicate.
 *
 * In stage 3, parameters have no memory between their uses, and a use outside of their unit's forward is a
 * DisposedError. `summonFullParameters` gathers them, and `readStateDict` copies them to the host. `saveCheckpoint`
 * gathers them itself, and its file can be loaded on any mesh, with any stage or without sharding.
 *
 * @example
 * ```ts
 * import { init, Linear, ones, reduceGradients, scope } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { AdamW, fullyShard, Sequential } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1, mesh: { dp: 1 } });
 * using model = fullyShard(ctx, new Sequential(new Linear(ctx, 4, 4), new Linear(ctx, 4, 1)), { stage: 3 });
 * using optimizer = new AdamW(model, { lr: 0.1 });
 * using x = ones(ctx, [1, 4]);
 * using loss = scope(() => model.forward(x).sum());
 * loss.backward();
 * reduceGradients(ctx, model);
 * optimizer.step();
 * optimizer.zeroGrad();
 * optimizer.steps; // => 1
 * ```
 * @throws OptionError for an axis that is not in the mesh, without an axis on a mesh with several data-parallel axes,
 * for a unit that is not part of the model, and for a model that is already sharded.
 */
export function fullyShard<M extends Module>(ctx: Context, model: M, options?: FullyShardOptions): M {
  checkContext("fullyShard", ctx);
  checkModule("fullyShard: model", model);
  const { stage, axis = defaultAxis(ctx), units = defaultUnits(model) } = fullyShardOptions.parse(options);
  const { size } = ctx.mesh.group(axis);
  for (const [name, parameter] of model.namedParameters()) {
    parameter.assertNotDisposed("fullyShard");
    if (!getShard(parameter)) continue;
    throw new OptionError({
      where: "fullyShard",
      expected: "a model that is not sharded",
      received: `a sharded parameter "${name}"`,
    });
  }
  const groups = groupByUnit(model, units);
  if (size === 1) return model;
  const flatUnits = groups.map(({ module, parameters }) => ({
    module,
    parts: flatten(ctx, parameters, { stage, axis }),
  }));
  for (const flatParameters of flatUnits.flatMap(({ parts }) => parts)) model.addResource(flatParameters);
  if (stage > 1) addGatherHooks(model, flatUnits);
  else addReduceHooks(flatUnits.slice(0, -1));
  return model;
}

/** Returns the data-parallel axis of the mesh. With several, the caller must select the one that is within a host. */
function defaultAxis(ctx: Context): string {
  const [axis = dataParallelAxis, ...otherAxes] = dataParallelAxes(ctx.mesh.shape);
  const innermostAxis = otherAxes.at(-1);
  if (innermostAxis === undefined) return axis;
  throw new OptionError({
    where: "fullyShard: axis",
    expected: `one of the data-parallel axes ${[axis, ...otherAxes].join(", ")}`,
    received: "none",
    remedy: `pass axis: "${innermostAxis}", for example; parameters are replicated along the other axes`,
  });
}

/** A module, and its parameters with their names. */
interface UnitParameters {
  readonly module: Module;
  readonly parameters: readonly [string, Tensor][];
}

/**
 * Returns the elements of the outermost ModuleLists, in which transformers hold their blocks. An element without a
 * forward is replaced by the units within it.
 */
function defaultUnits(module: Module): readonly Module[] {
  if (!(module instanceof ModuleList)) return module.children().flatMap(([, child]) => defaultUnits(child));
  return [...module].flatMap((each) => {
    if (!isModuleWithForward(each)) return defaultUnits(each);
    return each.parameters().length > 0 ? [each] : [];
  });
}

/** Assigns every parameter to a unit. The model itself is the last unit and has the remaining parameters. */
function groupByUnit(model: Module, units: readonly Module[]): readonly UnitParameters[] {
  const remainingNames = new Map(model.namedParameters().map(([name, parameter]) => [parameter, name]));
  const unitCounts = new Map<Tensor, number>();
  for (const unit of units)
    for (const parameter of unit.parameters()) unitCounts.set(parameter, (unitCounts.get(parameter) ?? 0) + 1);
  return [...units, model].map((module, i) => {
    if (
      module !== model &&
      !module.parameters().every((parameter) => remainingNames.has(parameter) || unitCounts.get(parameter)! > 1)
    ) {
      throw new OptionError({
        where: `fullyShard: units[${i}]`,
        expected: "a submodule of the model that belongs to no other unit",
        received: `a ${module.constructor.name} with parameters outside the model or in another unit`,
      });
    }
    // Parameters that several units share belong to the model, which keeps them gathered.
    const unitParameters = module
      .parameters()
      .filter((each) => remainingNames.has(each) && (module === model || unitCounts.get(each) === 1));
    const parameters = unitParameters.map((parameter): [string, Tensor] => [remainingNames.get(parameter)!, parameter]);
    for (const parameter of unitParameters) remainingNames.delete(parameter);
    return { module, parameters };
  });
}

/** Creates one buffer for each dtype, with separate buffers for trainable and frozen parameters. */
function flatten(
  ctx: Context,
  parameters: readonly [string, Tensor][],
  options: { readonly stage: ZeroStage; readonly axis: string },
): readonly FlatParameters[] {
  const groups = new Map<string, [string, Tensor][]>();
  for (const namedParameter of parameters) {
    const key = `${namedParameter[1].dtype} ${namedParameter[1].requiresGrad}`;
    groups.set(key, [...(groups.get(key) ?? []), namedParameter]);
  }
  return [...groups.values()].map((group) => {
    const { dtype, requiresGrad } = group[0]![1];
    return new FlatParameters(ctx, group, { ...options, dtype, isTrainable: requiresGrad });
  });
}

interface FlatUnit {
  readonly module: Module;
  readonly parts: readonly FlatParameters[];
}

/**
 * Creates the function that ends the backward of a unit: it waits for the reduction of the previous unit, and posts
 * that of this unit, which overlaps with the compute of the next one.
 */
function createUnitReducer(): (unit: FlatUnit) => void {
  let previousUnit: FlatUnit | undefined;
  return (unit) => {
    if (previousUnit !== unit) for (const flatParameters of previousUnit?.parts ?? []) flatParameters.finishBackward();
    for (const flatParameters of unit.parts) flatParameters.endBackward();
    previousUnit = unit;
  };
}

/** Adds the hooks of stage 1: parameters and gradients are whole, and only the reduction starts in the backward. */
function addReduceHooks(units: readonly FlatUnit[]): void {
  const reduce = createUnitReducer();
  for (const unit of units) {
    unit.module.registerForwardPreHook(
      (args) => mapTensors(args, (x) => attachBackwardHook(x, () => reduce(unit))) as readonly unknown[],
    );
  }
}

/** Adds the hooks of stages 2 and 3. */
function addGatherHooks(model: Module, flatUnits: readonly FlatUnit[]): void {
  const units = flatUnits.slice(0, -1);
  const root = flatUnits.at(-1)!;
  // Programs may call modules of the model without its own forward: a decoder and the output projection separately.
  const unitModules = new Set(units.map((unit) => unit.module));
  for (const module of root.parts.length > 0 ? listRootModules(model, unitModules) : []) {
    module.registerForwardPreHook((args) => {
      for (const flatParameters of root.parts) flatParameters.gather();
      return args;
    });
  }
  // Frozen parameters of the root have no gradients to reduce. They are released when the gradients of any unit are
  // reduced.
  for (const flatParameters of flatUnits.flatMap(({ parts }) => parts)) {
    flatParameters.onReduceEnd = () => {
      for (const rootParameters of root.parts) rootParameters.release();
    };
  }
  const reduce = createUnitReducer();
  for (const [i, unit] of units.entries()) {
    const gatherUnit = (nextUnit: FlatUnit | undefined): void => {
      for (const flatParameters of unit.parts) flatParameters.gather();
      for (const flatParameters of nextUnit?.parts ?? []) flatParameters.startGather();
    };
    unit.module.registerForwardPreHook((args) => {
      // During a backward, activation checkpointing runs the forwards of units again, in descending order.
      gatherUnit(isBackwardRunning() ? units[i - 1] : units[i + 1]);
      return mapTensors(args, (x) => attachBackwardHook(x, () => reduce(unit))) as readonly unknown[];
    });
    unit.module.registerForwardHook((output) => {
      if (typeof (output as Partial<PromiseLike<unknown>> | null)?.then === "function")
        throw asyncUnitError(unit.module);
      // The forward of a unit that a checkpoint runs again is followed by its backward, which releases the parameters.
      const isRecomputation = isBackwardRunning() && isGradEnabled();
      for (const flatParameters of isRecomputation ? [] : unit.parts) flatParameters.release();
      return mapTensors(output, (x) => attachBackwardHook(x, () => gatherUnit(units[i - 1])));
    });
  }
}

/**
 * Returns the modules whose forward gathers the root unit: the model, the units, the modules with a forward that
 * contain units, and the outermost ones of those that contain none. Modules within these are left out, because a module
 * with hooks is excluded from fused operations.
 */
function listRootModules(model: Module, units: ReadonlySet<Module>): ReadonlySet<Module> {
  const containsUnit = (module: Module): boolean =>
    units.has(module) || module.children().some(([, child]) => containsUnit(child));
  const listFrom = (module: Module): Module[] => {
    const ownModules = isModuleWithForward(module) ? [module] : [];
    if (units.has(module) || (ownModules.length > 0 && module !== model && !containsUnit(module))) return ownModules;
    return [...ownModules, ...module.children().flatMap(([, child]) => listFrom(child))];
  };
  return new Set(listFrom(model));
}

function asyncUnitError(module: Module): MosaicError {
  return new MosaicError({
    where: "fullyShard",
    expected: "units with a synchronous forward",
    received: `a promise from ${module.constructor.name}.forward`,
    remedy: "shard the submodules of this module instead",
  });
}

/**
 * Returns a view of x that is recorded on the tape. `onBackward` runs when the gradient of x is complete. Nodes run in
 * descending order of creation.
 */
function attachBackwardHook(x: Tensor, onBackward: () => void): Tensor {
  if (x.gradientEdge() === null) return x;
  return x.view({}).record([x], {
    name: "fullyShard",
    backward(dOutput) {
      onBackward();
      return [dOutput];
    },
    free() {},
  });
}

/**
 * Replaces the tensors of a value, including those in arrays, maps, sets and plain objects. An object without tensors
 * is returned as it is.
 */
function mapTensors(value: unknown, replace: (x: Tensor) => Tensor): unknown {
  if (value instanceof Tensor) return replace(value);
  if (typeof value !== "object" || value === null) return value;
  let isReplaced = false;
  const mapAll = (values: Iterable<unknown>): unknown[] =>
    Array.from(values, (each) => {
      const mappedValue = mapTensors(each, replace);
      isReplaced ||= mappedValue !== each;
      return mappedValue;
    });
  let container: unknown;
  if (Array.isArray(value)) container = mapAll(value);
  else if (value instanceof Set) container = new Set(mapAll(value));
  else if (value instanceof Map) container = new Map(mapAll(value) as [unknown, unknown][]);
  else if (isPlainObject(value)) container = Object.fromEntries(mapAll(Object.entries(value)) as [string, unknown][]);
  return isReplaced ? container : value;
}

function isPlainObject(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/**
 * Runs `body` (synchronous) while all parameters of a sharded model are gathered, like FSDP's `summon_full_params`.
 * `body` may read them, or write them if every rank writes the same values. Returns the result of `body`. Collective in
 * stage 3; needs the memory of the whole model.
 *
 * @example
 * ```ts
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { fullyShard, summonFullParameters } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1, mesh: { dp: 1 } });
 * using model = fullyShard(ctx, new Linear(ctx, 2, 1));
 * const values = await summonFullParameters(model, () => model.weight.read());
 * values.length; // => 2
 * ```
 */
export function summonFullParameters<T>(model: Module, body: () => T): T {
  checkModule("summonFullParameters: model", model);
  checkFunction("summonFullParameters: body", body);
  if (Object.prototype.toString.call(body) === "[object AsyncFunction]") {
    // The parameters would be released at its first `await`.
    throw new OptionError({
      where: "summonFullParameters: body",
      expected: "a synchronous function",
      received: "an async function",
      remedy: "return the promises of calls that read parameters, and await the result",
    });
  }
  const units = listUnits(model.parameters());
  const releasedUnits = units.filter((unit) => !unit.isGathered);
  for (const unit of releasedUnits) unit.startGather();
  // Also of gathered units: their all-gather may only have been posted, before a forward that did not follow.
  for (const unit of units) unit.gather();
  try {
    const result = noGrad(body);
    for (const unit of units) unit.writeBack();
    return result;
  } finally {
    for (const unit of releasedUnits) unit.release();
  }
}
