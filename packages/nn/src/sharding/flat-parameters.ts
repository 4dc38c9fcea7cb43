import {
  type Context,
  type DType,
  type GradientReducer,
  keep,
  preserveVersion,
  type ProcessGroup,
  scope,
  type Tensor,
  type Work,
} from "@mosaic/core";
import { moveInto } from "./flat-tensor.ts";
import { PostedReduction, selectReduceOp } from "./posted-reduction.ts";

// Parameters of one unit, of one dtype, in one buffer [ranks · S]: rank r of the data axis holds elements [r · S, (r + 1) · S).

/** Parameters begin at multiples of so many elements, as kernels prefer. */
const ALIGNMENT = 32;

/** Of ZeRO (Rajbhandari et al. 2020): what is sharded, beside what the stages before shard. */
export type ZeroStage = 1 | 2 | 3;

/** A part of a parameter: what this rank holds of it and moves. */
export interface ParameterShard {
  readonly name: string;
  readonly parameter: Tensor;
  readonly unit: FlatParameters;
  /** Elements of the flat parameter that each rank holds, by rank. */
  readonly counts: readonly number[];
  /** The first element of this rank's. */
  readonly start: number;
  /** This rank's elements [length], a view of the unit's shard; its `grad` is a view of the unit's gradient. */
  readonly tensor: Tensor;
}

/** What a buffer of parameters is for. */
export interface FlatParametersOptions {
  readonly stage: ZeroStage;
  /** The mesh axis along which it is cut. */
  readonly axis: string;
  readonly dtype: DType;
  readonly isTrainable: boolean;
}

const shards = new WeakMap<Tensor, ParameterShard>();

/** What this rank holds of a parameter that is sharded; undefined for any other. */
export function getShard(parameter: Tensor): ParameterShard | undefined {
  return shards.get(parameter);
}

/** The buffers of the sharded among some parameters, each once. */
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
  /** All parameters [ranks · S]. Of stage 3 its memory is there only while they are used. */
  readonly #flatTensor: Tensor;
  /** This rank's part [S]: its own memory in stage 3, else a view of the whole. */
  readonly #shard: Tensor;
  /** Of this rank's part [S] float32: reduced along the axis, and, unless `#needsReduce`, along all others. */
  #gradient: Tensor | null = null;
  #needsReduce = false;
  #gatherWork: Work | undefined;
  #reduction: PostedReduction | undefined;
  /** Of stage 1: posted in a backward, of gradients that are still there. */
  #earlyReduction: PostedReduction | undefined;
  /** Backwards since `reduceGradients`, and how many there were between the two calls of it before. */
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
    // Within a scope, which releases the first if there is no memory for the second: before a parameter has moved.
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
    // A stage shards gradients of parameters that are trained; those of a rank alone have no record yet.
    parameter.replication = { ranks: this.#ctx.size, hasLocalGrad: false, reducer: this };
    return shard;
  }

  /** Whether the parameters have memory, or will have with the work that is posted. */
  get isGathered(): boolean {
    return !this.#flatTensor.storage.isReleased;
  }

  /** Posts the all-gather of released parameters; `gather` orders compute after it. */
  startGather(): void {
    if (this.isGathered) return;
    using memory = this.#ctx.device.empty(this.#flatTensor.shape, this.#flatTensor.dtype);
    this.#flatTensor.storage.adoptMemory(memory.storage);
    // The values are those that the forward has saved: only a step changes them.
    this.#gatherWork = preserveVersion([this.#flatTensor], () =>
      this.group.allGather(this.#flatTensor, this.#shard, { label: "fullyShard" }),
    );
  }

  /** The parameters have their values for work that is enqueued from now on. */
  gather(): void {
    this.startGather();
    this.#gatherWork?.wait();
    this.#gatherWork = undefined;
  }

  /** Gives the memory of gathered parameters back. */
  release(): void {
    if (this.stage < 3 || !this.isGathered) return;
    this.#gatherWork?.wait();
    this.#gatherWork = undefined;
    this.#flatTensor.storage.releaseMemory();
  }

  /** What was written to gathered parameters becomes this rank's shard. */
  writeBack(): void {
    if (this.stage < 3 || !this.isGathered) return;
    const { rank } = this.group;
    using ownShard = this.#flatTensor.slice(0, rank * this.#shard.size, (rank + 1) * this.#shard.size);
    this.#ctx.device.kernels.copy(this.#shard, ownShard);
  }

  /**
   * A backward of the unit is done. Stages 2 and 3 reduce its gradients, and give their memory back. In stage 1 gradients stay whole
   * and add up until `reduceGradients`, which is to find them reduced: that is posted in the last backward before it, taken to be
   * of the same number as in the step before. Where it is not, or gradients change after it, they are reduced there.
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

  /** Orders compute after what `endBackward` posted, and gives its bucket back. */
  finishBackward(): void {
    if (this.stage > 1) this.finishReduce();
    else this.#earlyReduction?.wait();
  }

  /** Posts the reduce-scatter of the gradients that there are, and gives their memory back. */
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

  /** What stage 1 posted in the backward, if it is of the gradients that there are. */
  #takeEarlyReduction(): PostedReduction | undefined {
    const earlyReduction = this.#earlyReduction;
    this.#earlyReduction = undefined;
    if (!earlyReduction || earlyReduction.isCurrent) return earlyReduction;
    earlyReduction[Symbol.dispose]();
    return undefined;
  }

  /** Orders compute after the reduce-scatter that was posted, if any, and gives its bucket back. */
  finishReduce(): void {
    if (!this.#reduction) return;
    const { out } = this.#reduction;
    this.#reduction.wait();
    this.#reduction = undefined;
    this.#needsReduce = true;
    if (this.#gradient && !this.#gradient.isDisposed) {
      this.#ctx.device.kernels.binary("add", this.#gradient, this.#gradient, out);
      out.dispose();
      return;
    }
    this.#gradient = out;
  }

  /** Whether a backward has added what `reduceGradients` has not reduced. */
  get hasLocalGrad(): boolean {
    return this.#needsReduce || this.#reduction !== undefined || this.#hasGrad;
  }

  /** Reduces along all axes what is left to reduce; shards without gradient get zeros. The parameters' memory is given back. */
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
        mesh.group(axis).allReduce(this.#gradient, selectReduceOp(axis), { label: "gradients" }).wait();
    }
    this.#needsReduce = false;
    for (const { tensor } of this.shards) {
      tensor.grad?.dispose();
      const offset = tensor.offset - this.#shard.offset;
      tensor.grad = this.#gradient.view({ shape: tensor.shape, strides: [1], offset: tensor.size > 0 ? offset : 0 });
    }
    this.release();
    this.onReduceEnd();
  }

  /** Disposes this rank's gradients, and what the parameters have. */
  zeroGrad(): void {
    this.finishReduce();
    this.#earlyReduction?.[Symbol.dispose]();
    this.#earlyReduction = undefined;
    this.#numBackwards = 0;
    for (const { tensor, parameter } of this.shards) {
      for (const shardedTensor of [tensor, parameter]) {
        shardedTensor.grad?.dispose();
        shardedTensor.grad = null;
      }
    }
    this.#gradient?.dispose();
    this.#gradient = null;
    this.#needsReduce = false;
  }

  /** After the shards have moved: posts the all-gather of whole parameters, or gives them back until they are used. */
  publish(): void {
    this.#flatTensor.storage.recordMutation("step");
    if (this.stage === 3) this.release();
    else this.#gatherWork = this.group.allGather(this.#flatTensor, this.#shard, { label: "fullyShard" });
  }

  /** Whole parameters have their values for work that is enqueued from now on. */
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

/** A whole parameter's values from each rank's part of them, such as moments of an optimizer. Collective along the data axis. */
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
