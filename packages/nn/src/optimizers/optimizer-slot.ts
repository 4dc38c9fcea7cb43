// The parameters of an optimizer, each with its state tensors and options.
import {
  defineOptions,
  DisposedError,
  expectValue,
  type Module,
  option,
  OptionError,
  type OptionsOf,
  type Tensor,
} from "@mosaic/core";
import { getShard } from "../sharding/flat-parameters.ts";

export const parameterOverrides = defineOptions("forParameter", {
  /** Factor on the learning rate. Default 1. */
  lrScale: option.number({ min: 0, default: 1 }),
  /** Weight decay of this parameter. Default: the optimizer's. */
  weightDecay: option.number({ min: 0, optional: true }),
});
/** Options of an individual parameter. */
export type ParameterOverrides = OptionsOf<typeof parameterOverrides>;
export type OverridesFunction = (name: string, parameter: Tensor) => ParameterOverrides;

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
  /** The state tensors that the optimizer declares, by name: float32, with the shape of `parameter`. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** Float32 master copy of a 16-bit parameter, to which updates are applied; null for a float32 parameter. */
  readonly master: Tensor | null;
  readonly lrScale: number;
  readonly weightDecay: number | undefined;
  /** Number of updates of the parameter. Steps in which it had no gradient do not count. */
  steps: number;
}

/** Throws an OptionError unless each state tensor of a parameter has a name of its own in the state. */
export function checkStateTensors(kind: string, names: unknown): asserts names is readonly string[] {
  const isNames = Array.isArray(names) && names.every((name) => typeof name === "string" && /^[a-z]\w*$/i.test(name));
  const isDistinct = isNames && new Set(["master", "step", ...names]).size === names.length + 2;
  expectValue(`${kind}: stateTensors`, isDistinct, 'distinct identifiers other than "master" and "step"', names);
}

/** Throws a DisposedError if the model has disposed a parameter. */
export function checkNotDisposed(where: string, { name, source }: Pick<OptimizerSlot, "name" | "source">): void {
  if (!source.isDisposed) return;
  throw new DisposedError({
    where,
    expected: "parameters that are not disposed",
    received: `"${name}", which is disposed`,
    remedy: "create a new optimizer after the layers of the model have changed, for example by mergeLoRA",
  });
}

/** Throws an OptionError if the parameter was sharded after the optimizer was created. */
export function checkShardingUnchanged(
  where: string,
  { parameter, source }: Pick<OptimizerSlot, "parameter" | "source">,
): void {
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
export function checkGradientsReduced(
  where: string,
  slots: readonly Pick<OptimizerSlot, "name" | "source">[],
  { allowLocalGradients, callName }: { readonly allowLocalGradients: boolean; readonly callName: string },
): void {
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
      remedy: `call reduceGradients(ctx, model) between backward() and ${callName}()${isSharded ? "" : ", or pass allowLocalGradients: true"}`,
    });
  }
}

/**
 * Returns PyTorch's name for the number of steps of a parameter, which is saved if it differs from that of the
 * optimizer.
 */
export function nameSteps({ name }: OptimizerSlot): string {
  return `${name}.step`;
}

/** Throws an OptionError for a gradient of a parameter that was unfrozen later and therefore has no slot. */
export function checkFrozenParameters(where: string, frozenParameters: readonly [string, Tensor][]): void {
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
export function adoptChangedElements(master: Tensor, parameter: Tensor): void {
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
export function createSlots(
  model: Module,
  stateTensors: readonly string[],
  getOverrides: OverridesFunction = () => ({}),
): OptimizerSlot[] {
  const seenParameters = new Set<Tensor>();
  return model.namedParameters().flatMap(([name, parameter]) => {
    if (!parameter.requiresGrad || seenParameters.has(parameter)) return [];
    seenParameters.add(parameter);
    const overrides = getOverrides(name, parameter);
    const { lrScale, weightDecay } = parameterOverrides.parse(overrides, `forParameter("${name}")`);
    const updatedTensor = getShard(parameter)?.tensor ?? parameter;
    return [
      {
        ...{ name, source: parameter, parameter: updatedTensor, ...createSlotTensors(updatedTensor, stateTensors) },
        ...{ lrScale, weightDecay, steps: 0 },
      },
    ];
  });
}

function createSlotTensors(
  parameter: Tensor,
  stateTensors: readonly string[],
): Pick<OptimizerSlot, "state" | "master"> {
  const { device, shape, dtype, size } = parameter;
  const createTensor = (): Tensor => device.empty(shape, "float32");
  const state = Object.fromEntries(stateTensors.map((name) => [name, createTensor()]));
  for (const tensor of size > 0 ? Object.values(state) : []) device.kernels.fill(tensor, 0);
  if (dtype === "float32") return { state, master: null };
  const master = createTensor();
  if (size > 0) device.kernels.copy(master, parameter);
  return { state, master };
}

export function listSlotTensors({ state, master }: OptimizerSlot): Tensor[] {
  return master ? [...Object.values(state), master] : Object.values(state);
}
