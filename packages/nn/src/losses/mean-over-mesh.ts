import {
  concatenate,
  type Context,
  dataParallelSize,
  defineOp,
  formatShape,
  full,
  sameShape,
  scope,
  ShapeError,
  type Tensor,
  checkContext,
  checkTensor,
} from "@mosaic/core";

// A loss is first computed as a pair (sum, count) of this rank's part, a tensor [2]. Pairs can be added, over
// micro-batches and over ranks.

/**
 * Returns the pair (sum of losses · weights, sum of weights) as a tensor [2] float32. Weights have the shape of the
 * losses, default to 1 and receive no gradient. Use it for custom losses: `meanOverMesh` of the pair is equal on every
 * mesh.
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { lossTerms, meanOverMesh } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using losses = fromArray(ctx, [4, 2, 9], [3]);
 * using weights = fromArray(ctx, [1, 1, 0], [3]);
 * using terms = lossTerms(losses, weights);
 * Array.from(await terms.read()); // => [6, 2]
 * using loss = meanOverMesh(ctx, terms);
 * await loss.item(); // => 3
 * ```
 * @throws ShapeError if the shape of the weights differs.
 */
export function lossTerms(losses: Tensor, weights?: Tensor): Tensor {
  checkTensor("lossTerms: losses", losses);
  if (weights !== undefined) checkTensor("lossTerms: weights", weights);
  if (weights && !sameShape(weights.shape, losses.shape)) {
    throw new ShapeError({
      where: "lossTerms",
      expected: `weights ${formatShape(losses.shape)}, one weight per loss`,
      received: formatShape(weights.shape),
    });
  }
  return scope(() => {
    const float32Losses = losses.to("float32");
    const weight = weights?.detach().to("float32");
    const lossSum = weight ? float32Losses.mul(weight).sum() : float32Losses.sum();
    const count = weight ? weight.sum() : full(losses.device, [], losses.size);
    return concatenate([lossSum.reshape([1]), count.reshape([1])], 0);
  });
}

/**
 * Counts are split into a multiple of this number and a remainder. Sums of either part are exact where a float32 sum of
 * counts would be rounded.
 */
const LIMB_SIZE = 4096;
/** Adding and then subtracting this number rounds a number below 2²² to the nearest integer. */
const ROUNDING_CONSTANT = 1.5 * 2 ** 23;

/**
 * Sums (sum, count) over all ranks. The total of integer counts is rounded only once for any number of ranks, up to
 * 2³⁶.
 */
function allReduceTerms(ctx: Context, terms: Tensor): Tensor {
  const { device } = ctx;
  const { kernels } = device;
  using limbs = device.empty([3], "float32");
  using termLimbs = limbs.slice(0, 0, 2);
  using highLimb = limbs.slice(0, 1, 2);
  using lowLimb = limbs.slice(0, 2, 3);
  using countTerm = terms.slice(0, 1, 2);
  kernels.copy(termLimbs, terms);
  kernels.scalar("mul", highLimb, highLimb, 1 / LIMB_SIZE);
  kernels.scalar("add", highLimb, highLimb, ROUNDING_CONSTANT);
  kernels.scalar("sub", highLimb, highLimb, ROUNDING_CONSTANT);
  kernels.scalar("mul", lowLimb, highLimb, -LIMB_SIZE);
  kernels.binary("add", lowLimb, lowLimb, countTerm);
  ctx.world.allReduce(limbs, "sum", { label: "loss" }).wait();
  kernels.scalar("mul", highLimb, highLimb, LIMB_SIZE);
  kernels.binary("add", highLimb, highLimb, lowLimb);
  return termLimbs.detach();
}

const meanOverMeshOp = defineOp({
  name: "meanOverMesh",
  forward([terms]: [Tensor], ctx: Context) {
    const { device } = terms;
    using totals = ctx.size > 1 ? allReduceTerms(ctx, terms) : terms.detach();
    using sum = totals.slice(0, 0, 1);
    const count = totals.slice(0, 1, 2);
    using value = device.empty([1], "float32");
    device.kernels.binary("div", value, sum, count);
    return { output: value.reshape([]), saved: { count, numReplicas: dataParallelSize(ctx.mesh) } };
  },
  backward({ count, numReplicas }, dOut) {
    const { device } = dOut;
    const dTerms = device.empty([2], "float32");
    device.kernels.fill(dTerms, 0);
    using dSum = dTerms.slice(0, 0, 1);
    device.kernels.binary("div", dSum, dOut, count);
    device.kernels.scalar("mul", dSum, dSum, numReplicas);
    return [dTerms];
  },
});

/**
 * Returns the mean over all ranks' parts of the batch: (sum of all sums) / (sum of all counts), a scalar, the same on
 * every rank and on every mesh. Its gradient is this rank's part of the gradient that a single device would have.
 * `reduceGradients` combines the parts: it sums over sequence axes and averages over data-parallel axes. Collective.
 *
 * terms: a pair (sum, count) [2] float32, of one loss or the sum of several pairs. A total count of 0 gives NaN, as in
 * PyTorch. The count of a rank is exact up to 2²⁴; counts are added over the ranks without rounding.
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { meanOverMesh, mseLossTerms } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using first = mseLossTerms(fromArray(ctx, [1, 2], [2]), fromArray(ctx, [1, 4], [2]));
 * using second = mseLossTerms(fromArray(ctx, [5], [1]), fromArray(ctx, [6], [1]));
 * using loss = meanOverMesh(ctx, first.add(second)); // of two micro-batches
 * (await loss.item()).toFixed(4); // => "1.6667"
 * ```
 * @throws ShapeError unless terms is a pair.
 */
export function meanOverMesh(ctx: Context, terms: Tensor): Tensor {
  checkContext("meanOverMesh", ctx);
  checkTensor("meanOverMesh: terms", terms);
  if (!sameShape(terms.shape, [2]) || terms.dtype !== "float32") {
    throw new ShapeError({
      where: "meanOverMesh",
      expected: "a pair (sum, count) [2] float32",
      received: `${formatShape(terms.shape)} ${terms.dtype}`,
      remedy: "create the pair with lossTerms, crossEntropyTerms or mseLossTerms",
    });
  }
  return meanOverMeshOp([terms], ctx);
}
