// Training state with sharded parameters. Files contain whole tensors, so that they can be loaded on any mesh.
import {
  type DType,
  dtypeBytes,
  type HostTensor,
  loadState,
  type LoadOptions,
  type Module,
  noGrad,
  numel,
  type Shape,
  Storage,
  Tensor,
} from "@mosaic/core";
import { type ParameterShard, getShard, listUnits } from "./flat-parameters.ts";

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
 * Returns a model's state dict, with values on the host if `shouldReadValues`. Collective if parameters are released:
 * they are then gathered unit by unit.
 */
export function hostStateDict(model: Module, shouldReadValues: boolean): Map<string, PendingHostTensor> {
  const state = model.stateDict();
  const host = new Map<string, PendingHostTensor>();
  const addPendingTensor = (name: string, { dtype, shape }: Tensor, values: () => Promise<Float32Array>): void => {
    host.set(name, { dtype, shape, values: shouldReadValues ? values() : Promise.resolve(new Float32Array()) });
  };
  const releasedUnits = new Set(listUnits(model.parameters()).filter((unit) => !unit.isGathered));
  for (const unit of releasedUnits) {
    unit.gather();
    for (const [name, x] of state) if (getShard(x)?.unit === unit) addPendingTensor(name, x, () => x.read());
    unit.release();
  }
  for (const [name, x] of state) if (!host.has(name)) addPendingTensor(name, x, () => x.read());
  return new Map([...state.keys()].map((name) => [name, host.get(name)!]));
}

/**
 * Loads a state like `Module.loadStateDict`. Each rank writes its part of sharded parameters, without communication.
 */
export function loadModelState(
  model: Module,
  tensors: ReadonlyMap<string, HostTensor>,
  options: Pick<LoadOptions, "dryRun">,
): void {
  const units = listUnits(model.parameters());
  if (units.length === 0) return void model.loadStateDict(tensors, options);
  const where = `${model.constructor.name}.loadStateDict`;
  loadState(where, model.stateDict(), tensors, { dryRun: true });
  if (options.dryRun) return;
  for (const unit of units) unit.release();
  for (const [name, target] of model.stateDict()) {
    const { values } = tensors.get(name)!;
    const shard = getShard(target);
    if (shard && !shard.unit.isGathered) writeShard({ name, shard, tensor: shard.tensor }, values);
    else target.device.write(target, values);
  }
}

/** Loads a state like `loadState` of core. Each rank writes its part of sharded tensors. */
export function loadShardedState(
  where: string,
  entries: readonly ShardedEntry[],
  state: ReadonlyMap<string, Tensor | HostTensor>,
  options: Pick<LoadOptions, "dryRun">,
): void {
  const targets = new Map(
    entries.map(({ name, shard, tensor }) => [name, shard ? createMetaTensor(shard, tensor) : tensor]),
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

/** Creates a tensor of the parameter's shape without memory, as on PyTorch's meta device, to compare shapes with. */
function createMetaTensor({ parameter }: ParameterShard, { dtype, device }: Tensor): Tensor {
  const { shape, strides } = parameter;
  return new Tensor({
    device,
    dtype,
    storage: new MetaStorage(numel(shape) * dtypeBytes[dtype]),
    shape,
    strides,
    offset: 0,
  });
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
