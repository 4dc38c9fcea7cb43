import {
  type Context,
  type DType,
  gradientReduceOp,
  type GradientReducer,
  keep,
  preserveVersion,
  type ProcessGroup,
  scope,
  type Tensor,
  type Work,
} from "@mosaic/core";
import { moveInto } from "./flat-tensor.ts";
import { PostedReduction } from "./posted-reduction.ts";

// Parameters of one unit, of one dtype, in one buffer [ranks · S]: rank r of the data axis holds elements
// [r · S, (r + 1) · S).

/** Parameters start at multiples of this number of elements, for the kernels. */
const ALIGNMENT = 32;

/** The stage of ZeRO (Rajbhandari et al. 2020): 1 shards optimizer states, 2 also gradients, 3 also parameters. */
export type ZeroStage = 1 | 2 | 3;

/** This rank's shard of a parameter: the elements that it stores and updates. */
export interface ParameterShard {
  readonly name: string;
  readonly parameter: Tensor;
  readonly unit: FlatParameters;
  /** Number of elements of the flattened parameter that each rank holds, by rank. */
  readonly counts: readonly number[];
  /** Index of this rank's first element in the flattened parameter. */
  readonly start: number;
  /** This rank's elements [length], a view of the unit's shard; its `grad` is a view of the unit's gradient. */
  readonly tensor: Tensor;
}

/** Options of a buffer of parameters. */
export interface FlatParametersOptions {
  readonly stage: ZeroStage;
  /** The mesh axis along which the buffer is sharded. */
  readonly axis: string;
  readonly dtype: DType;
  readonly isTrainable: boolean;
}

const shards = new WeakMap<Tensor, ParameterShard>();

/** Returns this rank's shard of a parameter; undefined if the parameter is not sharded. */
export function getShard(parameter: Tensor): ParameterShard | undefined {
  return shards.get(parameter);
}

/** Returns the buffers of the given parameters that are sharded, without duplicates. */
export function listUnits(parameters: readonly Tensor[]): readonly FlatParameters[] {
  return [...new Set(parameters.flatMap((parameter) => getShard(parameter)?.unit ?? []))];
}

/** The parameters of a unit that are communicated together. */
export class FlatParameters implements GradientReducer, Disposable {
  readonly stage: ZeroStage;
  readonly shards: readonly ParameterShard[];
  readonly group: ProcessGroup;
  /** Runs at the end of `reduceGradients`. */
  onReduceEnd: () => void = () => {};
  readonly #ctx: Context;
  readonly #axis: string;
  /** All parameters [ranks · S]. In stage 3 it has memory only while they are used. */
  readonly #flatTensor: Tensor;
  /** This rank's part [S]: separate memory in stage 3, otherwise a view of `#flatTensor`. */
  readonly #shard: Tensor;
  /**
   * The gradient of this rank's part [S] float32: reduced along the axis and, unless `#needsReduce`, along all other
   * axes.
   */
  #gradient: Tensor | null = null;
  #needsReduce = false;
  /** The gradient that was completely reduced before `#gradient`, to which it is added after the next reduction. */
  #reducedGradient: Tensor | null = null;
  #gatherWork: Work | undefined;
  #reduction: PostedReduction | undefined;
  /** In stage 1, the reduction that was posted in a backward. The parameters still have the gradients. */
  #earlyReduction: PostedReduction | undefined;
  /**
   * Number of backwards since `reduceGradients`, and the number between its two previous calls (`#expectedBackwards`).
   */
  #numBackwards = 0;
  #expectedBackwards = 1;

  constructor(ctx: Context, parameters: readonly (readonly [string, Tensor])[], options: FlatParametersOptions) {
    const { stage, axis, dtype } = options;
    this.#ctx = ctx;
    this.#axis = axis;
    this.stage = stage;
    this.group = ctx.mesh.group(axis);
    const offsets = parameters.map(() => 0);
    let total = 0;
    for (const [i, [, parameter]] of parameters.entries()) {
      offsets[i] = total;
      total += roundUp(parameter.size, ALIGNMENT);
    }
    const { size: ranks, rank } = this.group;
    const shardSize = roundUp(Math.ceil(total / ranks), ALIGNMENT);
    // Allocated within a scope, which releases the first tensor if there is no memory for the second. Until then, no
    // parameter has been moved.
    const [flatTensor, ownShard] = scope(() => {
      const whole = ctx.device.empty([ranks * shardSize], dtype);
      const part = whole.slice(0, rank * shardSize, (rank + 1) * shardSize);
      return [whole, stage === 3 ? ctx.device.empty(part.shape, dtype) : part] as const;
    });
    this.#flatTensor = keep(flatTensor);
    this.#shard = keep(ownShard);
    ctx.device.kernels.fill(flatTensor, 0);
    for (const [i, [, parameter]] of parameters.entries()) moveInto(flatTensor, parameter, offsets[i]!);
    this.writeBack();
    this.shards = parameters.map(([name, parameter], i) =>
      this.#addShard(name, parameter, { offset: offsets[i]!, isTrainable: options.isTrainable }),
    );
    if (stage === 3) this.#flatTensor.storage.releaseMemory();
  }

  #addShard(
    name: string,
    parameter: Tensor,
    shardOptions: { readonly offset: number; readonly isTrainable: boolean },
  ): ParameterShard {
    const { rank, size: ranks } = this.group;
    const shardSize = this.#shard.size;
    const clip = (position: number): number => Math.min(parameter.size, Math.max(0, position - shardOptions.offset));
    const counts = Array.from({ length: ranks }, (_, r) => clip((r + 1) * shardSize) - clip(r * shardSize));
    const start = clip(rank * shardSize);
    const offset = counts[rank]! > 0 ? shardOptions.offset + start - rank * shardSize : 0;
    const tensor = keep(this.#shard.slice(0, offset, offset + counts[rank]!));
    tensor.requiresGrad = shardOptions.isTrainable;
    const shard = { name, parameter, unit: this, counts, start, tensor };
    shards.set(parameter, shard);
    // This unit reduces the gradients of the parameter. No backward has added a local gradient yet.
    parameter.replication = { ranks: this.#ctx.size, hasLocalGrad: false, reducer: this };
    return shard;
  }

  get storesOnlyShards(): boolean {
    return this.stage === 3;
  }

  /** Whether the parameters have memory. Their values may still be in transfer, if the all-gather was only posted. */
  get isGathered(): boolean {
    return !this.#flatTensor.storage.isReleased;
  }

  /** Posts the all-gather of released parameters; `gather` orders compute after it. */
  startGather(): void {
    if (this.isGathered) return;
    using memory = this.#ctx.device.empty(this.#flatTensor.shape, this.#flatTensor.dtype);
    this.#flatTensor.storage.adoptMemory(memory.storage);
    // The version is preserved, because the gathered values are those that the forward saved: only a step changes them.
    this.#gatherWork = preserveVersion([this.#flatTensor], () =>
      this.group.allGather(this.#flatTensor, this.#shard, { label: "fullyShard" }),
    );
  }

  /** Gathers the parameters. Work that is enqueued after the call uses their values. */
  gather(): void {
    this.startGather();
    this.#gatherWork?.wait();
    this.#gatherWork = undefined;
  }

  /** Releases the memory of gathered parameters. */
  release(): void {
    if (this.stage < 3 || !this.isGathered) return;
    this.#gatherWork?.wait();
    this.#gatherWork = undefined;
    this.#flatTensor.storage.releaseMemory();
  }

  /** Copies this rank's part of gathered parameters to its shard, after they were written. */
  writeBack(): void {
    if (this.stage < 3 || !this.isGathered) return;
    const { rank } = this.group;
    using ownShard = this.#flatTensor.slice(0, rank * this.#shard.size, (rank + 1) * this.#shard.size);
    this.#ctx.device.kernels.copy(this.#shard, ownShard);
  }

  /**
   * A backward of the unit is complete. Stages 2 and 3 start the reduce-scatter and release the gradients. In stage 1
   * gradients stay whole and accumulate until `reduceGradients`; their reduction is posted early, after as many
   * backwards as the previous step had. If more follow, or gradients change, `reduceGradients` reduces again.
   */
  endBackward(): void {
    this.#numBackwards++;
    if (this.stage > 1) {
      this.startReduce();
      this.release();
    } else if (this.#numBackwards === this.#expectedBackwards) {
      this.#earlyReduction?.[Symbol.dispose]();
      this.#earlyReduction = this.#hasGrad ? this.#postReduction() : undefined;
    }
  }

  /** Orders compute after the reduction that `endBackward` posted, and releases its bucket. */
  finishBackward(): void {
    if (this.stage > 1) this.finishReduce();
    else this.#earlyReduction?.wait();
  }

  /** Posts the reduce-scatter of the existing gradients, and releases their memory. */
  startReduce(): void {
    const earlyReduction = this.#takeEarlyReduction();
    if (!this.#hasGrad) return;
    this.finishReduce();
    this.#reduction = earlyReduction ?? this.#postReduction();
    for (const { parameter } of this.shards) {
      parameter.grad?.dispose();
      parameter.grad = null;
    }
  }

  get #hasGrad(): boolean {
    return this.shards.some(({ parameter }) => parameter.grad);
  }

  #postReduction(): PostedReduction {
    const parameters = this.shards.map(({ parameter }) => parameter);
    return new PostedReduction(this.#ctx, { axis: this.#axis, elementsPerRank: this.#shard.size, parameters });
  }

  /** Returns the reduction that stage 1 posted in a backward, if the gradients have not changed since. */
  #takeEarlyReduction(): PostedReduction | undefined {
    const earlyReduction = this.#earlyReduction;
    this.#earlyReduction = undefined;
    if (!earlyReduction || earlyReduction.isCurrent) return earlyReduction;
    earlyReduction[Symbol.dispose]();
    return undefined;
  }

  /**
   * Orders compute after the posted reduce-scatter, if any, adds its result to `#gradient`, and releases its bucket. A
   * gradient that is completely reduced is kept apart, because it must not be summed over the other axes again.
   */
  finishReduce(): void {
    if (!this.#reduction) return;
    const { out } = this.#reduction;
    this.#reduction.wait();
    this.#reduction = undefined;
    const gradient = this.#gradient?.isDisposed === false ? this.#gradient : null;
    if (gradient && this.#needsReduce) {
      this.#ctx.device.kernels.binary("add", gradient, gradient, out);
      out.dispose();
      return;
    }
    this.#reducedGradient = gradient;
    this.#gradient = out;
    this.#needsReduce = true;
  }

  /** Whether a backward has added gradients that `reduceGradients` has not reduced yet. */
  get hasLocalGrad(): boolean {
    return this.#needsReduce || this.#reduction !== undefined || this.#hasGrad;
  }

  /**
   * Completes the reduction along all axes. Shards without a gradient receive zeros. Releases the parameters' memory.
   */
  reduceGradients(): void {
    this.startReduce();
    this.finishReduce();
    this.#expectedBackwards = Math.max(1, this.#numBackwards);
    this.#numBackwards = 0;
    const { device, mesh } = this.#ctx;
    if (!this.#gradient || this.#gradient.isDisposed) {
      this.#gradient = keep(device.empty(this.#shard.shape, "float32"));
      device.kernels.fill(this.#gradient, 0);
    } else if (this.#needsReduce) {
      const replicaAxes = mesh.axes.filter((axis) => axis !== this.#axis && mesh.shape[axis]! > 1);
      for (const axis of replicaAxes)
        mesh.group(axis).allReduce(this.#gradient, gradientReduceOp(axis), { label: "gradients" }).wait();
    }
    this.#needsReduce = false;
    const reducedGradient = this.#reducedGradient;
    this.#reducedGradient = null;
    if (reducedGradient) device.kernels.binary("add", this.#gradient, this.#gradient, reducedGradient);
    for (const { tensor } of this.shards) {
      tensor.grad?.dispose();
      tensor.grad = this.#viewShard(this.#gradient, tensor);
    }
    reducedGradient?.dispose();
    this.release();
    this.onReduceEnd();
  }

  /**
   * Disposes the gradients of this rank's shards and of the parameters. If `parameters` do not include all parameters
   * of the unit, as those of a submodule, the gradients of the others remain.
   */
  zeroGrad(parameters?: readonly Tensor[]): void {
    this.finishReduce();
    this.#earlyReduction?.[Symbol.dispose]();
    this.#earlyReduction = undefined;
    const listedParameters = new Set(parameters ?? this.shards.map(({ parameter }) => parameter));
    const listedShards = this.shards.filter(({ parameter }) => listedParameters.has(parameter));
    for (const { tensor, parameter } of listedShards) {
      for (const shardedTensor of [tensor, parameter]) {
        shardedTensor.grad?.dispose();
        shardedTensor.grad = null;
      }
    }
    if (listedShards.length < this.shards.length) return this.#clearGradients(listedShards);
    this.#numBackwards = 0;
    this.#gradient?.dispose();
    this.#gradient = null;
    this.#reducedGradient?.dispose();
    this.#reducedGradient = null;
    this.#needsReduce = false;
  }

  /** Sets the elements of some shards in the unit's gradients to 0. */
  #clearGradients(shards: readonly ParameterShard[]): void {
    for (const gradient of [this.#gradient, this.#reducedGradient]) {
      if (!gradient || gradient.isDisposed) continue;
      for (const { tensor } of shards) {
        using elements = this.#viewShard(gradient, tensor);
        if (elements.size > 0) this.#ctx.device.kernels.fill(elements, 0);
      }
    }
  }

  /** Returns the elements of a unit's gradient that belong to a shard. */
  #viewShard(gradient: Tensor, { shape, size, offset }: Tensor): Tensor {
    return gradient.view({ shape, strides: [1], offset: size > 0 ? offset - this.#shard.offset : 0 });
  }

  /** Called after values were read into the shards of released parameters. A graph that saved the old ones is invalid. */
  recordLoad(): void {
    this.#flatTensor.storage.recordMutation("load");
  }

  /**
   * Called after the shards were updated: posts the all-gather of whole parameters or, in stage 3, releases them until
   * use.
   */
  publish(): void {
    this.#flatTensor.storage.recordMutation("step");
    if (this.stage === 3) this.release();
    else this.#gatherWork = this.group.allGather(this.#flatTensor, this.#shard, { label: "fullyShard" });
  }

  /** Orders later work after the all-gather of `publish`. */
  finishPublish(): void {
    this.#gatherWork?.wait();
    this.#gatherWork = undefined;
  }

  [Symbol.dispose](): void {
    this.zeroGrad();
    this.#gatherWork?.wait();
    for (const { tensor } of this.shards) tensor.dispose();
    this.#shard.dispose();
    this.#flatTensor.dispose();
  }
}

/**
 * Gathers a tensor with the shape of a parameter from each rank's part of it, such as a moment of an optimizer.
 * Collective along the data axis.
 */
export function gatherShard({ unit, counts, parameter }: ParameterShard, shardTensor: Tensor): Tensor {
  const { device } = shardTensor;
  return scope(() => {
    const flatParameter = device.empty([parameter.size], shardTensor.dtype);
    unit.group.allGather(flatParameter, shardTensor, { counts, label: "fullyShard" }).wait();
    return flatParameter.reshape(parameter.shape);
  });
}

function roundUp(count: number, multiple: number): number {
  return Math.ceil(count / multiple) * multiple;
}
