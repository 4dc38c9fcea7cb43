import { defineOp, type Tensor } from "@mosaic/core";
import { reduceInto } from "../reduce.ts";

const logSoftmaxOp = defineOp({
  name: "logSoftmax",
  forward([x]: [Tensor]) {
    const { device, shape, dtype } = x;
    const { kernels } = device;
    using row = device.empty(shape.with(-1, 1), dtype);
    using exps = device.empty(shape, dtype);
    const output = device.empty(shape, dtype);
    reduceInto("max", row, x);
    kernels.binary("sub", output, x, row);
    kernels.unary("exp", exps, output);
    reduceInto("sum", row, exps);
    kernels.unary("log", row, row);
    kernels.binary("sub", output, output, row);
    return { output, saved: { output } };
  },
  backward({ output }, dOut) {
    const { kernels } = output.device;
    using row = output.device.empty(output.shape.with(-1, 1), output.dtype);
    const dx = output.device.empty(output.shape, output.dtype);
    reduceInto("sum", row, dOut);
    kernels.unary("exp", dx, output);
    kernels.binary("mul", dx, dx, row);
    kernels.binary("sub", dx, dOut, dx);
    return [dx];
  },
});

/** ln of the softmax over the last axis, of finite numbers: finite even where the softmax is 0. */
export function logSoftmax(x: Tensor): Tensor {
  return logSoftmaxOp([x], undefined);
}
