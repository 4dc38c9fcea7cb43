import { type Context, keep, type Tensor, type Work } from "@mosaic/core";
import { copyInto } from "./flat-tensor.ts";

/** A gradient as it was packed: gradients that are added later, or changed, make another one. */
interface PackedGradient {
  readonly parameter: Tensor;
  readonly grad: Tensor | null;
  readonly version: number;
}

/** What is reduced, and where to. */
export interface ReductionOptions {
  /** The mesh axis along which it is cut. */
  readonly axis: string;
  /** Elements of this rank's part; the bucket has as many for each rank. */
  readonly elementsPerRank: number;
  /** Views of one buffer: their gradients lie in the bucket as they do there. */
  readonly parameters: readonly Tensor[];
}

/** The reduce-scatter of gradients of several parameters, posted when it is made: they are packed into one bucket. */
export class PostedReduction implements Disposable {
  /** This rank's part of the sums, float32. */
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
    this.#work = group.reduceScatter(this.out, this.#bucket, selectReduceOp(axis), { label: "gradients" });
  }

  /** Whether the parameters still have the gradients that were packed. */
  get isCurrent(): boolean {
    return this.#packedGradients.every(
      ({ parameter, grad, version }) => parameter.grad === grad && getVersion(grad) === version,
    );
  }

  /** Orders compute after the reduce-scatter, and gives its bucket back. */
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

/** Gradients add over sequence axes, and are averaged over samples. */
export function selectReduceOp(axis: string): "mean" | "sum" {
  return axis === "dp" ? "mean" : "sum";
}
