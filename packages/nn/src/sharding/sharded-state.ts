// States of training in which parameters are sharded: whole in files, so that they load on any mesh.
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

/** A tensor of a state: whole, or this rank's elements of one that has the shape of a sharded parameter. */
export interface ShardedEntry {
  readonly name: string;
  readonly shard: ParameterShard | undefined;
  readonly tensor: Tensor;
}

/** A tensor whose values are on their way to the host. */
export interface PendingHostTensor {
  readonly dtype: DType;
  readonly shape: Shape;
  readonly values: Promise<Float32Array>;
}

/** All values, once they are there. Waits for each, so that a failure of one leaves no unhandled rejection of another. */
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

/** A model's state dict with values on the host where `shouldReadValues`. Released parameters are gathered unit by unit: collective. */
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

/** As `Module.loadStateDict`; each rank writes its part of what is sharded, without communication. */
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

/** As `loadState` of core, where each rank writes its part of what is sharded. */
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

/** A tensor of the parameter's shape without memory, as PyTorch's of the meta device: what shapes are compared with. */
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
