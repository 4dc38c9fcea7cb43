// Training state with sharded parameters. Files contain whole tensors, so that they can be loaded on any mesh.
import {
  checkContext,
  checkModule,
  contiguousStrides,
  type Context,
  defineOptions,
  type Device,
  type DType,
  dtypeBytes,
  formatValue,
  type HostTensor,
  loadState,
  type LoadOptions,
  type Module,
  noGrad,
  numel,
  option,
  OptionError,
  type OptionsOf,
  type Shape,
  Storage,
  Tensor,
} from "@mosaic/core";
import { gatherShard, type ParameterShard, getShard, listUnits } from "./flat-parameters.ts";
import { type TensorSource, writeFromSource } from "./tensor-chunks.ts";

/** A tensor of a state: a whole tensor, or this rank's elements of a tensor with the shape of a sharded parameter. */
export interface ShardedEntry {
  readonly name: string;
  readonly shard: ParameterShard | undefined;
  readonly tensor: Tensor;
}

/** A tensor whose values are being copied to the host. */
export interface PendingHostTensor {
  readonly dtype: DType;
  readonly shape: Shape;
  readonly values: Promise<Float32Array>;
}

/** Waits for all values, even if one fails, so that no other failure is an unhandled rejection. */
export async function awaitHostTensors(
  pendingTensors: ReadonlyMap<string, PendingHostTensor>,
): Promise<Map<string, HostTensor>> {
  const outcomes = await Promise.allSettled([...pendingTensors.values()].map(({ values }) => values));
  const entries = [...pendingTensors].map(([name, { dtype, shape }], i): [string, HostTensor] => {
    const outcome = outcomes[i]!;
    if (outcome.status === "rejected") throw outcome.reason;
    return [name, { dtype, shape, values: outcome.value }];
  });
  return new Map(entries);
}

/**
 * Returns the tensors of a state with values on the host if `shouldReadValues`. Collective if parameters are released:
 * they are then gathered unit by unit.
 */
export function startHostCopies(
  state: ReadonlyMap<string, Tensor>,
  shouldReadValues: boolean,
): Map<string, PendingHostTensor> {
  const host = new Map<string, PendingHostTensor>();
  const addPendingTensor = (name: string, { dtype, shape }: Tensor, values: () => Promise<Float32Array>): void => {
    host.set(name, { dtype, shape, values: shouldReadValues ? values() : Promise.resolve(new Float32Array()) });
  };
  for (const unit of listUnits([...state.values()])) {
    const wasGathered = unit.isGathered;
    unit.gather();
    for (const [name, x] of state) if (getShard(x)?.unit === unit) addPendingTensor(name, x, () => x.read());
    if (!wasGathered) unit.release();
  }
  for (const [name, x] of state) if (!host.has(name)) addPendingTensor(name, x, () => x.read());
  return new Map([...state.keys()].map((name) => [name, host.get(name)!]));
}

/** Starts to copy tensors to the host as `startHostCopies`. Sharded tensors are gathered one after the other. */
export function startEntryCopies(
  entries: readonly ShardedEntry[],
  shouldReadValues: boolean,
): Map<string, PendingHostTensor> {
  const copies = entries.map(({ name, shard, tensor }): [string, PendingHostTensor] => {
    const fullTensor = shard ? gatherShard(shard, tensor) : tensor;
    const values = shouldReadValues ? fullTensor.read() : Promise.resolve(new Float32Array());
    if (shard) fullTensor.dispose();
    return [name, { dtype: fullTensor.dtype, shape: fullTensor.shape, values }];
  });
  return new Map(copies);
}

/** Lists the tensors of a model's state. Parameters that are released are sharded. */
export function listModelEntries(model: Module): readonly ShardedEntry[] {
  return [...model.stateDict()].map(([name, x]) => {
    const shard = getShard(x);
    return shard && !shard.unit.isGathered
      ? { name, shard, tensor: shard.tensor }
      : { name, shard: undefined, tensor: x };
  });
}

export const readStateDictOptions = defineOptions("readStateDict", {
  /** Names of the parameters and buffers to read. Default: all. */
  names: option.array(option.string(), { optional: true }),
  /** Whether only rank 0 reads the values, to save host memory. The other ranks get an empty map. Default false. */
  rank0Only: option.boolean({ default: false }),
});
/** Options of `readStateDict`. */
export type ReadStateDictOptions = OptionsOf<typeof readStateDictOptions>;

/**
 * Copies a model's parameters and buffers to the host, whole tensors also if `fullyShard` has sharded them, as
 * PyTorch's `get_model_state_dict` with `full_state_dict` and `cpu_offload`. The values are those at the time of the
 * call, even if training continues before the promise resolves. Sharded parameters are gathered unit by unit, so the
 * device needs the memory of one unit. Collective in stage 3.
 *
 * @example
 * ```ts
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { readStateDict } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using model = new Linear(ctx, 4, 2);
 * const tensors = await readStateDict(ctx, model, { names: ["weight"] });
 * tensors.get("weight")?.values.length; // => 8
 * ```
 * @throws OptionError for a name that the model does not have, before anything is sent.
 */
export async function readStateDict(
  ctx: Context,
  model: Module,
  options?: ReadStateDictOptions,
): Promise<Map<string, HostTensor>> {
  checkContext("readStateDict", ctx);
  checkModule("readStateDict: model", model);
  const { names, rank0Only } = readStateDictOptions.parse(options);
  const state = model.stateDict();
  const unknownName = names?.find((name) => !state.has(name));
  if (unknownName !== undefined) {
    throw new OptionError({
      where: "readStateDict: names",
      expected: "names of parameters and buffers of the model",
      received: formatValue(unknownName),
      remedy: "use the names of model.stateDict()",
    });
  }
  const selectedNames = new Set(names ?? state.keys());
  const isReader = !rank0Only || ctx.rank === 0;
  const pendingTensors = startHostCopies(new Map([...state].filter(([name]) => selectedNames.has(name))), isReader);
  return isReader ? awaitHostTensors(pendingTensors) : new Map<string, HostTensor>();
}

/**
 * Loads the tensors of a model from a source, which has a tensor of the same name and shape for each. Each rank reads
 * its part of sharded parameters, a chunk at a time, without communication.
 */
export async function readModelState(model: Module, source: TensorSource): Promise<void> {
  const units = listUnits(model.parameters());
  for (const unit of units) unit.release();
  try {
    for (const entry of listModelEntries(model)) await readEntry(entry, source);
  } finally {
    for (const unit of units) unit.recordLoad();
  }
}

/** Loads a tensor, or this rank's part of it, from a source. */
export async function readEntry({ name, shard, tensor }: ShardedEntry, source: TensorSource): Promise<void> {
  await writeFromSource(tensor, { source, name, start: shard?.start ?? 0 });
}

/** Loads a state like `loadState` of core. Each rank writes its part of sharded tensors. */
export function loadShardedState(
  where: string,
  entries: readonly ShardedEntry[],
  state: ReadonlyMap<string, Tensor | HostTensor>,
  options: Pick<LoadOptions, "dryRun">,
): void {
  const targets = new Map(
    entries.map(({ name, shard, tensor }) => [
      name,
      shard ? createMetaTensor(tensor.device, tensor.dtype, shard.parameter.shape) : tensor,
    ]),
  );
  const isSharded = entries.some(({ shard }) => shard !== undefined);
  loadState(where, targets, state, isSharded ? { dryRun: true } : options);
  if (!isSharded || options.dryRun) return;
  for (const entry of entries) {
    const source = state.get(entry.name)!;
    if (!(source instanceof Tensor)) writeShard(entry, source.values);
    else copyShard(entry, source);
  }
}

/** Creates a tensor without memory, as on PyTorch's meta device, to compare shapes and dtypes with. */
export function createMetaTensor(device: Device, dtype: DType, shape: Shape): Tensor {
  const storage = new MetaStorage(numel(shape) * dtypeBytes[dtype]);
  return new Tensor({ device, dtype, storage, shape, strides: contiguousStrides(shape), offset: 0 });
}

class MetaStorage extends Storage {
  readonly handle = 0n;
  override get isReleased(): boolean {
    return true;
  }
  protected free(): void {}
}

function writeShard({ shard, tensor }: ShardedEntry, values: Float32Array): void {
  const start = shard?.start ?? 0;
  if (tensor.size > 0) tensor.device.write(tensor, values.subarray(start, start + tensor.size));
}

function copyShard({ shard, tensor }: ShardedEntry, source: Tensor): void {
  if (tensor.size === 0) return;
  noGrad(() => {
    using contiguousSource = source.contiguous();
    using flatSource = contiguousSource.reshape([source.size]);
    const start = shard?.start ?? 0;
    using shardSource = shard ? flatSource.slice(0, start, start + tensor.size) : source.detach();
    tensor.device.kernels.copy(tensor, shardSource);
  });
}
