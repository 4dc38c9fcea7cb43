import { checkOperands } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { ShapeError } from "../errors.ts";
import { matmulSharding, rowSharding } from "../placement/sharding.ts";
import { broadcastShapes, formatShape, numel } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { sumToSize } from "../views.ts";

/** Returns [..,M,K] · [..,K,N] with leading axes broadcast, in new memory. */
function batchedMatmul(a: Tensor, b: Tensor): Tensor {
  const batch = broadcastShapes(a.shape.slice(0, -2), b.shape.slice(0, -2), "matmul");
  const out = a.device.empty([...batch, a.shape.at(-2)!, b.shape.at(-1)!], a.dtype);
  a.device.kernels.matmul(out, a, b, false);
  return out;
}

const matmulOp = defineOp({
  name: "matmul",
  sharding: matmulSharding,
  forward([a, b]: [Tensor, Tensor]) {
    return { output: batchedMatmul(a, b), saved: { a, b } };
  },
  backward({ a, b }, dOut, [needsGradA, needsGradB]) {
    return [needsGradA ? computeLeftGradient(dOut, b, a) : null, needsGradB ? computeRightGradient(a, dOut, b) : null];
  },
});

/** da = dOut · bᵀ. */
function computeLeftGradient(dOut: Tensor, b: Tensor, a: Tensor): Tensor {
  using transposedB = b.transpose(-2, -1);
  using broadcastGradient = batchedMatmul(dOut, transposedB);
  return sumToSize(broadcastGradient, a.shape);
}

/** db = aᵀ · dOut. */
function computeRightGradient(a: Tensor, dOut: Tensor, b: Tensor): Tensor {
  using transposedA = a.transpose(-2, -1);
  using broadcastGradient = batchedMatmul(transposedA, dOut);
  return sumToSize(broadcastGradient, b.shape);
}

/**
 * Matrix product a [..,M,K] · b [..,K,N] → [..,M,N]; leading axes broadcast. For a weight matrix use `linear`.
 *
 * @example
 * ```ts
 * import { fromArray, matmul } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using b = fromArray(device, [1, 1], [2, 1]);
 * using product = matmul(a, b);
 * Array.from(await product.read()); // => [3, 7]
 * ```
 * @throws ShapeError if the inner lengths differ or an operand has fewer than two axes.
 */
export function matmul(a: Tensor, b: Tensor): Tensor {
  checkOperands("matmul", a, b);
  if (a.rank < 2 || b.rank < 2 || a.shape.at(-1) !== b.shape.at(-2)) {
    throw new ShapeError({
      where: "matmul",
      expected: "[..,M,K] and [..,K,N]",
      received: `${formatShape(a.shape)} and ${formatShape(b.shape)}`,
    });
  }
  if (b.rank > 2 || a.rank === 2) return matmulOp([a, b], undefined);
  // One matrix for the whole batch. Rows are flattened so that its gradient is a single product instead of a sum of
  // many.
  using rows = a.reshape([numel(a.shape.slice(0, -1)), a.shape.at(-1)!]);
  using product = matmulOp([rows, b], undefined);
  const out = product.reshape([...a.shape.slice(0, -1), b.shape[1]!]);
  out.sharding = rowSharding("matmul", [a]);
  return out;
}
