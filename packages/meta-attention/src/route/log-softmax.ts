import { defineOp, type Tensor } from "@mosaic/core";
import { LOWEST } from "../logarithms.ts";
import { reduceInto } from "../reduce.ts";

const logSoftmaxOp = defineOp({
  name: "logSoftmax",
  forward([x, mask]: [Tensor, Tensor]) {
    const { device, shape, dtype } = x;
    const { kernels } = device;
    using row = device.empty(shape.with(-1, 1), dtype);
    using exps = device.empty(shape, dtype);
    const output = device.empty(shape, dtype);
    const counts = device.empty(mask.shape, dtype);
    kernels.binary("add", output, x, mask);
    // A row of −∞ has a finite maximum here, and a finite logarithm of its sum: −∞ − (−∞) would be NaN.
    reduceInto("max", row, output);
    kernels.scalar("max", row, row, LOWEST);
    kernels.binary("sub", output, output, row);
    kernels.unary("exp", exps, output);
    reduceInto("sum", row, exps);
    kernels.unary("log", row, row);
    kernels.scalar("max", row, row, LOWEST);
    kernels.binary("sub", output, output, row);
    // −∞ · 0 would be NaN.
    kernels.scalar("max", output, output, LOWEST);
    kernels.unary("exp", counts, mask);
    kernels.binary("mul", output, output, counts);
    return { output, saved: { output, counts } };
  },
  backward({ output, counts }, dOut) {
    const { device, shape, dtype } = output;
    const { kernels } = device;
    using row = device.empty(shape.with(-1, 1), dtype);
    using share = device.empty(shape, dtype);
    const dx = device.empty(shape, dtype);
    kernels.binary("mul", dx, dOut, counts);
    reduceInto("sum", row, dx);
    kernels.unary("exp", share, output);
    kernels.binary("mul", share, share, counts);
    kernels.binary("mul", share, share, row);
    kernels.binary("sub", dx, dx, share);
    return [dx, null];
  },
});

/**
 * ln of the softmax over those entries of the last axis at which `mask` is 0; 0 where it is −Infinity. Always finite: also
 * where the softmax rounds to 0, and, as 0 · ln 0 is 0, where an entry does not count. The mask broadcasts to x.
 */
export function logSoftmax(x: Tensor, mask: Tensor): Tensor {
  return logSoftmaxOp([x, mask], undefined);
}
