// Arithmetic with logarithms of sums of exponentials, as attention returns them, and of shares. The logarithm of an
// empty sum is −Infinity, and never a finite number: every finite value is the logarithm of a non-empty sum.
import { defineOp, LOWEST_FLOAT32, type Tensor } from "@mosaic/core";
import { reduceInto } from "./tensor-views.ts";

/** target ← ln(e^target + e^source). */
export function logAddExp(target: Tensor, source: Tensor): void {
  const { kernels } = target.device;
  using maximum = target.device.empty(target.shape, "float32");
  using expOfSource = target.device.empty(target.shape, "float32");
  kernels.binary("max", maximum, target, source);
  kernels.scalar("max", maximum, maximum, LOWEST_FLOAT32);
  kernels.binary("sub", expOfSource, source, maximum);
  kernels.unary("exp", expOfSource, expOfSource);
  kernels.binary("sub", target, target, maximum);
  kernels.unary("exp", target, target);
  kernels.binary("add", target, target, expOfSource);
  kernels.unary("log", target, target);
  kernels.binary("add", target, target, maximum);
}

/** Returns e^(part − total): the share of a softmax that falls on some of its keys; 0 for rows without visible keys. */
export function softmaxShare(partLse: Tensor, totalLse: Tensor): Tensor {
  const { kernels } = partLse.device;
  const share = partLse.device.empty(partLse.shape, "float32");
  kernels.scalar("max", share, totalLse, LOWEST_FLOAT32);
  kernels.binary("sub", share, partLse, share);
  kernels.unary("exp", share, share);
  return share;
}

/** x ← min(x, −negatedLimit), with broadcasting. The minimum of two numbers is minus the maximum of their negatives. */
export function clampMax(x: Tensor, negatedLimit: Tensor | number): void {
  const { kernels } = x.device;
  kernels.scalar("mul", x, x, -1);
  if (typeof negatedLimit === "number") kernels.scalar("max", x, x, negatedLimit);
  else kernels.binary("max", x, x, negatedLimit);
  kernels.scalar("mul", x, x, -1);
}

const logSoftmaxOp = defineOp({
  name: "logSoftmax",
  forward([x, mask]: [Tensor, Tensor]) {
    const { device, shape, dtype } = x;
    const { kernels } = device;
    using rowStatistic = device.empty(shape.with(-1, 1), dtype);
    using exponentials = device.empty(shape, dtype);
    const output = device.empty(shape, dtype);
    const counts = device.empty(mask.shape, dtype);
    kernels.binary("add", output, x, mask);
    // The maximum of a row of −∞, and the logarithm of its sum, are replaced by finite numbers, because −∞ − (−∞) would
    // be NaN.
    reduceInto("max", rowStatistic, output);
    kernels.scalar("max", rowStatistic, rowStatistic, LOWEST_FLOAT32);
    kernels.binary("sub", output, output, rowStatistic);
    kernels.unary("exp", exponentials, output);
    reduceInto("sum", rowStatistic, exponentials);
    kernels.unary("log", rowStatistic, rowStatistic);
    kernels.scalar("max", rowStatistic, rowStatistic, LOWEST_FLOAT32);
    kernels.binary("sub", output, output, rowStatistic);
    // −∞ · 0 would be NaN.
    kernels.scalar("max", output, output, LOWEST_FLOAT32);
    kernels.unary("exp", counts, mask);
    kernels.binary("mul", output, output, counts);
    return { output, saved: { output, counts } };
  },
  backward({ output, counts }, dOut) {
    const { device, shape, dtype } = output;
    const { kernels } = device;
    using rowSums = device.empty(shape.with(-1, 1), dtype);
    using share = device.empty(shape, dtype);
    const dx = device.empty(shape, dtype);
    kernels.binary("mul", dx, dOut, counts);
    reduceInto("sum", rowSums, dx);
    kernels.unary("exp", share, output);
    kernels.binary("mul", share, share, counts);
    kernels.binary("mul", share, share, rowSums);
    kernels.binary("sub", dx, dx, share);
    return [dx, null];
  },
});

/**
 * Computes the logarithm of the softmax over the entries of the last axis at which `mask` is 0. The result is 0 where
 * the mask is −Infinity, so that products with a probability of 0 are 0. It is always finite, also where the softmax
 * rounds to 0. The mask broadcasts to x.
 */
export function logSoftmax(x: Tensor, mask: Tensor): Tensor {
  return logSoftmaxOp([x, mask], undefined);
}
