import {
  type AllToAllOptions,
  type CollectiveOptions,
  type Context,
  type Device,
  type DeviceMesh,
  type DType,
  type GatherOptions,
  type GroupCastOptions,
  type GroupCastPlan,
  type GroupReduceOptions,
  type ProcessGroup,
  type ReduceOp,
  type Shape,
  Tensor,
  type TraceEvent,
  type Traffic,
  type Transfer,
  type Work,
} from "@mosaic/core";
import { integer, uniforms } from "../oracle/numbers.ts";

/** When a collective runs between its post and its wait. The contract does not specify it. */
export type CompletionTime = "soon" | "late";

/** How adverse a perturbed context is within the contract of collectives. */
export interface Perturbation {
  /**
   * "late": nothing is transferred before `wait()` is called, so that a backend that omits the call, or modifies
   * tensors that are being sent, computes wrong values every time instead of sometimes. "soon": the collective is
   * posted to its engine at once.
   */
  readonly completion: CompletionTime;
  /** Seed of the random order of a batch's transfers. Transfers between the same two ranks keep their order. */
  readonly seed: number;
}

/**
 * Wraps a group to be as adverse as the contract permits: receive buffers are filled with NaN first, the order within
 * batches is random, and collectives may run as late as possible.
 */
export class PerturbedGroup implements ProcessGroup {
  readonly #group: ProcessGroup;
  readonly #perturbation: Perturbation;
  readonly #nextUniform: () => number;
  #numInFlight = 0;
  readonly hosts?: readonly number[];

  constructor(group: ProcessGroup, perturbation: Perturbation) {
    this.#group = group;
    if (group.hosts) this.hosts = group.hosts;
    this.#perturbation = perturbation;
    this.#nextUniform = uniforms(perturbation.seed + group.rank);
  }

  /** Number of collectives that were posted and not yet waited for. */
  get numInFlight(): number {
    return this.#numInFlight;
  }

  get name(): string {
    return this.#group.name;
  }
  get rank(): number {
    return this.#group.rank;
  }
  get size(): number {
    return this.#group.size;
  }
  get ranks(): readonly number[] {
    return this.#group.ranks;
  }
  get timeout(): number {
    return this.#group.timeout;
  }
  get device(): Device {
    return this.#group.device;
  }

  sendRecv(transfers: readonly Transfer[], options?: CollectiveOptions): Work {
    const receiveBuffers = transfers.filter((transfer) => "from" in transfer).map(({ tensor }) => tensor);
    const shuffledTransfers = shuffleTransfers(transfers, this.#nextUniform);
    return this.#post(receiveBuffers, () => this.#group.sendRecv(shuffledTransfers, options));
  }

  allGather(out: Tensor, input: Tensor, options?: GatherOptions): Work {
    return this.#post([out], () => this.#group.allGather(out, input, options));
  }

  reduceScatter(out: Tensor, input: Tensor, op?: ReduceOp, options?: GatherOptions): Work {
    return this.#post([out], () => this.#group.reduceScatter(out, input, op, options));
  }

  allReduce(x: Tensor, op?: ReduceOp, options?: CollectiveOptions): Work {
    return this.#post([], () => this.#group.allReduce(x, op, options));
  }

  allToAll(out: Tensor, input: Tensor, options?: AllToAllOptions): Work {
    return this.#post([out], () => this.#group.allToAll(out, input, options));
  }

  broadcast(x: Tensor, root: number, options?: CollectiveOptions): Work {
    return this.#post(root === this.rank ? [] : [x], () => this.#group.broadcast(x, root, options));
  }

  barrier(options?: CollectiveOptions): Work {
    return this.#post([], () => this.#group.barrier(options));
  }

  // oxlint-disable-next-line max-params -- as ProcessGroup.groupCast
  groupCast(out: readonly Tensor[], input: readonly Tensor[], plan: GroupCastPlan, options?: GroupCastOptions): Work {
    return this.#post(out, () => this.#group.groupCast(out, input, plan, options));
  }

  // oxlint-disable-next-line max-params -- as ProcessGroup.groupReduce
  groupReduce(
    out: readonly Tensor[],
    input: readonly Tensor[],
    plan: GroupCastPlan,
    options?: GroupReduceOptions,
  ): Work {
    return this.#post([], () => this.#group.groupReduce(out, input, plan, options));
  }

  recordCall(description: string | (() => string)): void {
    this.#group.recordCall(description);
  }

  async split(color: number, name?: string): Promise<ProcessGroup> {
    return new PerturbedGroup(await this.#group.split(color, name), this.#perturbation);
  }

  traffic(): Traffic {
    return this.#group.traffic();
  }
  markStep(): void {
    this.#group.markStep();
  }

  startTrace(): void {
    this.#group.startTrace();
  }
  stopTrace(): Promise<readonly TraceEvent[]> {
    return this.#group.stopTrace();
  }
  [Symbol.asyncDispose](): Promise<void> {
    return Promise.resolve(this.#group[Symbol.asyncDispose]());
  }

  #post(outputs: readonly Tensor[], startCollective: () => Work): Work {
    for (const tensor of outputs) this.device.kernels.fill(tensor, Number.NaN);
    const startedWork = this.#perturbation.completion === "soon" ? startCollective() : undefined;
    this.#numInFlight++;
    return {
      wait: () => {
        this.#numInFlight--;
        (startedWork ?? startCollective()).wait();
      },
    };
  }
}

/** Returns the transfers in a random order that keeps the order of messages between the same two ranks. */
function shuffleTransfers(transfers: readonly Transfer[], nextUniform: () => number): Transfer[] {
  const transfersByPeer = new Map<string, Transfer[]>();
  for (const transfer of transfers) {
    const peerKey = "to" in transfer ? `to ${transfer.to}` : `from ${transfer.from}`;
    transfersByPeer.set(peerKey, [...(transfersByPeer.get(peerKey) ?? []), transfer]);
  }
  const shuffledTransfers: Transfer[] = [];
  const remainingQueues = [...transfersByPeer.values()];
  while (shuffledTransfers.length < transfers.length) {
    const peerTransfers = remainingQueues[integer(nextUniform, remainingQueues.length)]!;
    const nextTransfer = peerTransfers.shift();
    if (nextTransfer) shuffledTransfers.push(nextTransfer);
  }
  return shuffledTransfers;
}

/** A context whose groups are perturbed, with the number of their collectives in flight. */
export interface PerturbedContext extends Context {
  numInFlight(): number;
}

/**
 * Wraps a context to be as adverse as the contract of collectives permits. It numbers random tensors from 0 again, so
 * that modules created on it have the same weights as on a fresh context.
 */
export function perturbContext(ctx: Context, perturbation: Perturbation): PerturbedContext {
  const groups = new Map<ProcessGroup, PerturbedGroup>();
  const wrap = (group: ProcessGroup): PerturbedGroup => {
    const wrappedGroup = groups.get(group) ?? new PerturbedGroup(group, perturbation);
    groups.set(group, wrappedGroup);
    return wrappedGroup;
  };
  const streamNumbers = new Map<number, number>();
  const { mesh } = ctx;
  const wrappedMesh: DeviceMesh = {
    shape: mesh.shape,
    axes: mesh.axes,
    coordinate: mesh.coordinate,
    world: wrap(mesh.world),
    group: (axis) => wrap(mesh.group(axis)),
  };
  return {
    device: ctx.device,
    mesh: wrappedMesh,
    rank: ctx.rank,
    size: ctx.size,
    world: wrappedMesh.world,
    seed: ctx.seed,
    backends: ctx.backends,
    backend: (nameOrValue) => ctx.backend(nameOrValue),
    randomStream: 0,
    nextRandomStream() {
      // The recomputation of a checkpoint repeats the numbers of the wrapped context.
      const originalNumber = ctx.nextRandomStream();
      const streamNumber = streamNumbers.get(originalNumber) ?? this.randomStream++;
      streamNumbers.set(originalNumber, streamNumber);
      return streamNumber;
    },
    assertOpen: (where) => ctx.assertOpen(where),
    startTrace: () => ctx.startTrace(),
    stopTrace: () => ctx.stopTrace(),
    close: () => ctx.close(),
    numInFlight: () => [...groups.values()].reduce((sum, group) => sum + group.numInFlight, 0),
    [Symbol.asyncDispose]: () => Promise.resolve(ctx[Symbol.asyncDispose]()),
  };
}

/**
 * Wraps a device so that all memory that it allocates holds NaN, whether fresh or reused. A kernel that reads memory
 * that was not written, or adds to memory that was not cleared, computes NaN.
 *
 * @example
 * ```ts
 * import { poisonMemory } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = poisonMemory(cpu({ threads: 1 }));
 * using x = device.empty([2], "float32");
 * Array.from(await x.read()); // => [NaN, NaN]
 * ```
 */
export function poisonMemory(device: Device): Device {
  const wrapper: Device = {
    type: device.type,
    index: device.index,
    stream: device.stream,
    kernels: device.kernels,
    ...(device.features && { features: device.features }),
    empty(shape: Shape, dtype: DType): Tensor {
      using tensor = device.empty(shape, dtype);
      device.kernels.fill(tensor, Number.NaN);
      const { storage, strides, offset } = tensor;
      return new Tensor({ device: wrapper, dtype, storage, shape, strides, offset });
    },
    write: (out, values) => device.write(out, values),
    read: (x) => device.read(x),
    memory: () => device.memory(),
    resetPeakMemory: () => device.resetPeakMemory(),
    startTrace: () => device.startTrace(),
    stopTrace: () => device.stopTrace(),
    [Symbol.dispose]: () => device[Symbol.dispose](),
  };
  return wrapper;
}
