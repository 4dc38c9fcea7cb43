import { checkTensor } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { checkUnsharded, elementwiseSharding } from "../placement/sharding.ts";
import { normalizeAxis } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { contiguousRows } from "../views.ts";

const softmaxOp = defineOp({
  name: "softmax",
  sharding: elementwiseSharding,
  forward([x]: [Tensor]) {
    const output = x.device.empty(x.shape, x.dtype);
    x.device.kernels.softmax(output, x);
    return { output, saved: { output } };
  },
  backward({ output }, dOutput) {
    using dOut = contiguousRows(dOutput);
    const dx = dOut.device.empty(dOut.shape, dOut.dtype);
    dOut.device.kernels.softmaxBackward(dx, output, dOut);
    return [dx];
  },
});

/**
 * Returns the softmax along one axis, the last by default. A row of −Infinity yields 0.
 *
 * @example
 * ```ts
 * import { fromArray, softmax } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [0, 0, -Infinity], [3]);
 * using y = softmax(x);
 * Array.from(await y.read()); // => [0.5, 0.5, 0]
 * ```
 * @throws ShapeError for an axis out of range, and for an axis that is known to be sharded: each rank would normalize its
 * own rows only.
 */
export function softmax(x: Tensor, axis = -1): Tensor {
  checkTensor("softmax", x);
  const normalizedAxis = normalizeAxis(axis, x.rank, "softmax");
  const remedy = "use attention with a backend over the mesh axis, or unshard() first";
  checkUnsharded("softmax", x, { axis: normalizedAxis, remedy });
  using transposedX = x.transpose(normalizedAxis, -1);
  using contiguousX = contiguousRows(transposedX);
  using out = softmaxOp([contiguousX], undefined);
  return out.transpose(normalizedAxis, -1);
}
