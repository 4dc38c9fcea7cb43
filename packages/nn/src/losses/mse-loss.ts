import { checkTensor, type Context, formatShape, sameShape, scope, ShapeError, type Tensor } from "@mosaic/core";
import { lossTerms, meanOverMesh } from "./mean-over-mesh.ts";

/**
 * Computes the squared differences of this rank's elements as a pair (sum, count) [2] float32, for `meanOverMesh`.
 * Arguments as in `mseLoss`. Does not communicate.
 *
 * @example
 * ```ts
 * import { fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { mseLossTerms } from "@mosaic/nn";
 * using device = cpu();
 * using terms = mseLossTerms(fromArray(device, [1, 2], [2]), fromArray(device, [1, 4], [2]));
 * Array.from(await terms.read()); // => [4, 2]
 * ```
 * @throws ShapeError if shapes differ.
 */
export function mseLossTerms(prediction: Tensor, target: Tensor, weights?: Tensor): Tensor {
  checkTensor("mseLoss: prediction", prediction);
  checkTensor("mseLoss: target", target);
  if (!sameShape(prediction.shape, target.shape)) {
    throw new ShapeError({
      where: "mseLoss",
      expected: `a target ${formatShape(prediction.shape)}, the shape of the prediction`,
      received: formatShape(target.shape),
    });
  }
  return scope(() => lossTerms(prediction.to("float32").sub(target.to("float32")).square(), weights));
}

/**
 * Computes the mean of (prediction − target)² over all elements of all ranks: a scalar float32, equal on every rank and
 * every mesh. See `meanOverMesh` for its gradient. Collective. `weights`, of the same shape, are factors on the squared
 * differences; 0 excludes an element.
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { mseLoss } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using prediction = fromArray(ctx, [1, 2], [2]);
 * using target = fromArray(ctx, [1, 4], [2]);
 * using loss = mseLoss(ctx, prediction, target);
 * await loss.item(); // => 2
 * ```
 * @throws ShapeError if shapes differ.
 */
export function mseLoss(ctx: Context, prediction: Tensor, target: Tensor, weights?: Tensor): Tensor {
  return scope(() => meanOverMesh(ctx, mseLossTerms(prediction, target, weights)));
}
