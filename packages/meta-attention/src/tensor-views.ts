// Views of memory without history, for kernels; and what a forward preserves across an await: tensors and the grad
// mode.
import { enableGrad, isGradEnabled, keep, noGrad, type ReduceKind, Tensor } from "@mosaic/core";
import type { Chunk } from "./chunks.ts";

/** Returns part `partIndex` of [B,S,parts·H·D] as heads [B,H,S,D]. */
export function headsView(
  x: Tensor,
  partIndex: number,
  { numHeads, headDim }: { numHeads: number; headDim: number },
): Tensor {
  const [batch, rows] = x.shape as [number, number];
  const [batchStride, rowStride, elementStride] = x.strides as [number, number, number];
  return x.view({
    shape: [batch, numHeads, rows, headDim],
    strides: [batchStride, headDim * elementStride, rowStride, elementStride],
    offset: x.offset + partIndex * numHeads * headDim * elementStride,
  });
}

/** Returns the rows of a chunk, for batch elements [b0, b1), of [B,H,S] or [B,H,S,D]. */
export function chunkRows(
  x: Tensor,
  { offset, length }: Pick<Chunk, "offset" | "length">,
  b0 = 0,
  b1: number = x.shape[0]!,
): Tensor {
  return x.view({
    shape: x.shape.with(0, b1 - b0).with(2, length),
    offset: x.offset + b0 * x.strides[0]! + offset * x.strides[2]!,
  });
}

/** Returns the elements (b, i, j), b in [b0, b1), of [B,c,N], with `axes` axes to broadcast over [b1 − b0, …]. */
export function pairView(
  x: Tensor,
  { b0, b1, i, j }: { b0: number; b1: number; i: number; j: number },
  axes: number,
): Tensor {
  const [batch, query, chunk] = x.strides as [number, number, number];
  return x.view({
    shape: [b1 - b0, ...new Array<number>(axes - 1).fill(1)],
    strides: [batch, ...new Array<number>(axes - 1).fill(1)],
    offset: x.offset + b0 * batch + i * query + j * chunk,
  });
}

/** Returns float32 zeros of the shape of x. */
export function zerosLike(x: Tensor): Tensor {
  const zeros = x.device.empty(x.shape, "float32");
  x.device.kernels.fill(zeros, 0);
  return zeros;
}

/**
 * Returns float32 zeros of the shape of heads [B,H,S,D], in the memory order [B,S,H,D], so that merging the heads is a
 * view.
 */
export function zeroHeads({ device, shape }: Tensor): Tensor {
  const [batch, numHeads, rows, size] = shape as [number, number, number, number];
  using memory = device.empty([batch, rows, numHeads, size], "float32");
  device.kernels.fill(memory, 0);
  return memory.permute([0, 2, 1, 3]);
}

/** Rounds x to a dtype, in the same memory order. Takes ownership of x. */
export function castTo(x: Tensor, dtype: Tensor["dtype"]): Tensor {
  if (x.dtype === dtype) return x;
  using float32Source = x;
  const [batch, numHeads, rows, size] = x.shape as [number, number, number, number];
  using memory = x.device.empty([batch, rows, numHeads, size], dtype);
  const out = memory.permute([0, 2, 1, 3]);
  x.device.kernels.copy(out, float32Source);
  return out;
}

/**
 * Resources that are disposed together, in reverse order. They are not disposed by the `scope` in which they are
 * created; for example, those that a backward needs.
 */
export class ResourceStack implements Disposable {
  readonly #resources: Disposable[] = [];

  use<T extends Disposable>(resource: T): T {
    if (resource instanceof Tensor) keep(resource);
    this.#resources.push(resource);
    return resource;
  }

  [Symbol.dispose](): void {
    for (const resource of this.#resources.splice(0).reverse()) resource[Symbol.dispose]();
  }
}

/** out ← x reduced over every axis on which out has length 1; a copy if the sizes are equal. */
export function reduceInto(kind: ReduceKind, out: Tensor, x: Tensor): void {
  if (out.size === x.size) x.device.kernels.copy(out, x);
  else x.device.kernels.reduce(kind, out, x);
}

/** Runs a function in the grad mode that was captured. */
export type RunWithGradMode = <T>(body: () => T) => T;

/**
 * Captures whether operations are recorded. Call it before an await, because other code may change the mode during the
 * wait.
 */
export function captureGradMode(): RunWithGradMode {
  return isGradEnabled() ? enableGrad : noGrad;
}
