import { type Context, gradientReduceOp, keep, type Tensor, type Work } from "@mosaic/core";
import { copyInto } from "./flat-tensor.ts";

/** A gradient at the time when it was packed. It no longer matches if gradients are added later or changed. */
interface PackedGradient {
  readonly parameter: Tensor;
  readonly grad: Tensor | null;
  readonly version: number;
}

/** Options of a PostedReduction. */
export interface ReductionOptions {
  /** The mesh axis along which gradients are reduced and scattered. */
  readonly axis: string;
  /** Number of elements of this rank's part. The bucket has as many for each rank. */
  readonly elementsPerRank: number;
  /** Views of one buffer. Their gradients have the same offsets in the bucket as the parameters in the buffer. */
  readonly parameters: readonly Tensor[];
}

/** A reduce-scatter of the gradients of several parameters, packed into one bucket. Posted by the constructor. */
export class PostedReduction implements Disposable {
  /** This rank's part of the result, float32. */
  readonly out: Tensor;
  readonly #bucket: Tensor;
  readonly #work: Work;
  readonly #packedGradients: readonly PackedGradient[];

  constructor(ctx: Context, { axis, elementsPerRank, parameters }: ReductionOptions) {
    const { device } = ctx;
    const group = ctx.mesh.group(axis);
    this.#bucket = keep(device.empty([group.size * elementsPerRank], "float32"));
    device.kernels.fill(this.#bucket, 0);
    this.#packedGradients = parameters.map((parameter) => {
      const { grad } = parameter;
      if (grad && !grad.isDisposed) copyInto(this.#bucket, grad, parameter.offset);
      return { parameter, grad, version: getVersion(grad) };
    });
    this.out = keep(device.empty([elementsPerRank], "float32"));
    this.#work = group.reduceScatter(this.out, this.#bucket, gradientReduceOp(axis), { label: "gradients" });
  }

  /** Whether the parameters still have the gradients that were packed. */
  get isCurrent(): boolean {
    return this.#packedGradients.every(
      ({ parameter, grad, version }) => parameter.grad === grad && getVersion(grad) === version,
    );
  }

  /** Orders compute after the reduce-scatter, and releases its bucket. */
  wait(): void {
    if (this.#bucket.isDisposed) return;
    this.#work.wait();
    this.#bucket.dispose();
  }

  [Symbol.dispose](): void {
    this.wait();
    this.out.dispose();
  }
}

function getVersion(grad: Tensor | null): number {
  return grad && !grad.isDisposed ? grad.storage.version : -1;
}
