import { defineOp } from "../autograd/define-op.ts";
import { formatValue, OptionError, ShapeError } from "../errors.ts";
import { formatShape, normalizeAxis, sameShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { checkOperands } from "../arguments.ts";

const concatenateOp = defineOp({
  name: "concatenate",
  forward(inputs: readonly Tensor[], axis: number) {
    const lengths = inputs.map((x) => x.shape[axis]!);
    const total = lengths.reduce((sum, length) => sum + length, 0);
    const output = inputs[0]!.device.empty(inputs[0]!.shape.with(axis, total), inputs[0]!.dtype);
    let start = 0;
    for (const [i, x] of inputs.entries()) {
      using part = output.slice(axis, start, (start += lengths[i]!));
      if (x.size > 0) x.device.kernels.copy(part, x);
    }
    return { output, saved: { lengths, axis } };
  },
  backward({ lengths, axis }, dOut, needed) {
    let start = 0;
    return lengths.map((length, i) => {
      const from = start;
      start += length;
      return needed[i] ? dOut.slice(axis, from, from + length) : null;
    });
  },
});

/**
 * Tensors one after another along an axis; their other lengths must agree.
 *
 * @example
 * ```ts
 * import { concatenate, fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2], [1, 2]);
 * using b = fromArray(device, [3, 4, 5, 6], [2, 2]);
 * using both = concatenate([a, b], 0);
 * both.shape; // => [3, 2]
 * ```
 */
export function concatenate(inputs: readonly Tensor[], axis: number): Tensor {
  if (!Array.isArray(inputs)) {
    throw new OptionError({ where: "concatenate", expected: "an array of tensors", received: formatValue(inputs) });
  }
  const [first] = inputs as readonly Tensor[];
  if (!first) throw new ShapeError({ where: "concatenate", expected: "at least one tensor", received: "none" });
  checkOperands("concatenate", first, ...inputs);
  const along = normalizeAxis(axis, first.rank, "concatenate");
  for (const x of inputs) {
    const lines = x.rank === first.rank && sameShape(x.shape.with(along, 0), first.shape.with(along, 0));
    if (lines) continue;
    throw new ShapeError({
      where: "concatenate",
      expected: `shapes equal to ${formatShape(first.shape)} except along axis ${along}`,
      received: formatShape(x.shape),
    });
  }
  return concatenateOp(inputs, along);
}
