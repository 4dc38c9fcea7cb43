import type { Work } from "../collectives/process-group.ts";
import type { Context } from "../context.ts";
import { dataParallelSize } from "../data-parallel.ts";
import type { Tensor } from "../tensor.ts";
import { releaseOnError } from "../tracking.ts";

// Gradients are packed into buckets of bounded size, each reduced by one all-reduce, as in PyTorch's
// DistributedDataParallel. The packing depends only on the order and the sizes of the parameters, so that all ranks
// post the same collectives.

/** Elements of a bucket: 25 MiB of float32, the default bucket_cap_mb of PyTorch's DistributedDataParallel. */
export const BUCKET_ELEMENTS: number = (25 * 2 ** 20) / 4;

/** Elements from `start` to `end` of the flattened gradient `index`, which begin at `offset` in the bucket. */
interface BucketPart {
  readonly index: number;
  readonly start: number;
  readonly end: number;
  readonly offset: number;
}

interface Bucket {
  readonly size: number;
  readonly parts: readonly BucketPart[];
}

/**
 * Divides the concatenation of all gradients into buckets. All but the last have `capacity` elements. A gradient that
 * does not fit into the rest of a bucket continues in the next one, so that a large gradient needs no larger bucket.
 */
export function planBuckets(sizes: readonly number[], capacity: number): Bucket[] {
  const buckets: { size: number; parts: BucketPart[] }[] = [];
  for (const [index, size] of sizes.entries()) {
    for (let start = 0; start < size; ) {
      let bucket = buckets.at(-1);
      if (!bucket || bucket.size === capacity) buckets.push((bucket = { size: 0, parts: [] }));
      const end = Math.min(size, start + capacity - bucket.size);
      bucket.parts.push({ index, start, end, offset: bucket.size });
      bucket.size += end - start;
      start = end;
    }
  }
  return buckets;
}

/**
 * Replaces the gradients of parameters by their sum over all ranks divided by the number of data-parallel ranks: the
 * mean along data-parallel axes of the sums along all other axes, with one all-reduce per bucket. Sums are float32.
 *
 * Gradients are divided before they are added, as by DistributedDataParallel, so that the sum does not overflow if the
 * mean is representable. The division is exact for a power of two, except below 2⁻¹²⁶; otherwise it rounds each addend
 * once. Two buckets exist at a time: one in flight, and one that is packed or unpacked meanwhile.
 */
export function allReduceGradients(
  ctx: Context,
  parameters: readonly Tensor[],
  capacity: number = BUCKET_ELEMENTS,
): void {
  const buckets = planBuckets(
    parameters.map(({ size }) => size),
    capacity,
  );
  releaseOnError(() => {
    const flatGradients = parameters.map(({ grad, size }) => grad!.reshape([size]));
    let previous: PostedBucket | undefined;
    for (const bucket of buckets) {
      const posted = new PostedBucket(ctx, bucket, flatGradients);
      previous?.unpack();
      previous = posted;
    }
    previous?.unpack();
    for (const [i, flatGradient] of flatGradients.entries()) {
      const gradient = parameters[i]!.grad!;
      if (flatGradient.storage !== gradient.storage) copyBack(ctx, gradient, flatGradient);
      flatGradient.dispose();
    }
  });
}

/** Copies the elements of a gradient that is not contiguous, and that `reshape` therefore copied. */
function copyBack(ctx: Context, gradient: Tensor, flatGradient: Tensor): void {
  using view = flatGradient.reshape(gradient.shape);
  ctx.device.kernels.copy(gradient, view);
}

/** A bucket whose all-reduce is in flight. */
class PostedBucket {
  readonly #ctx: Context;
  readonly #plan: Bucket;
  readonly #gradients: readonly Tensor[];
  readonly #elements: Tensor;
  readonly #work: Work;

  constructor(ctx: Context, plan: Bucket, flatGradients: readonly Tensor[]) {
    this.#ctx = ctx;
    this.#plan = plan;
    this.#gradients = flatGradients;
    this.#elements = ctx.device.empty([plan.size], "float32");
    const { kernels } = ctx.device;
    const numReplicas = dataParallelSize(ctx.mesh);
    this.#forEachPart((part, gradient) => {
      if (numReplicas === 1) kernels.copy(part, gradient);
      else kernels.scalar("div", part, gradient, numReplicas);
    });
    this.#work = ctx.world.allReduce(this.#elements, "sum", { label: "gradients" });
  }

  /** Orders compute after the all-reduce, and copies the sums to the gradients. Releases the bucket. */
  unpack(): void {
    this.#work.wait();
    this.#forEachPart((part, gradient) => this.#ctx.device.kernels.copy(gradient, part));
    this.#elements.dispose();
  }

  #forEachPart(visit: (part: Tensor, gradient: Tensor) => void): void {
    for (const { index, start, end, offset } of this.#plan.parts) {
      using part = this.#elements.slice(0, offset, offset + end - start);
      using gradient = this.#gradients[index]!.slice(0, start, end);
      visit(part, gradient);
    }
  }
}
