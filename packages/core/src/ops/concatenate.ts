import { defineOp } from "../autograd/define-op.ts";
import { expectValue, formatValue, OptionError, ShapeError } from "../errors.ts";
import { checkUnsharded, concatenatedSharding } from "../placement/sharding.ts";
import { formatShape, normalizeAxis, sameShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { checkOperands, checkTensor } from "../arguments.ts";

const concatenateOp = defineOp({
  name: "concatenate",
  sharding: concatenatedSharding,
  forward(inputs: readonly Tensor[], axis: number) {
    const lengths = inputs.map((x) => x.shape[axis]!);
    const total = lengths.reduce((sum, length) => sum + length, 0);
    const output = inputs[0]!.device.empty(inputs[0]!.shape.with(axis, total), inputs[0]!.dtype);
    let start = 0;
    for (const [i, x] of inputs.entries()) {
      using outputView = output.slice(axis, start, (start += lengths[i]!));
      if (x.size > 0) x.device.kernels.copy(outputView, x);
    }
    return { output, saved: { lengths, axis } };
  },
  backward({ lengths, axis }, dOut, needsInputGrad) {
    let start = 0;
    return lengths.map((length, i) => {
      const gradientStart = start;
      start += length;
      return needsInputGrad[i] ? dOut.slice(axis, gradientStart, gradientStart + length) : null;
    });
  },
});

/**
 * Concatenates tensors along an axis. Their lengths along all other axes must be equal.
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
  const firstInput = checkInputs("concatenate", inputs);
  const normalizedAxis = normalizeAxis(axis, firstInput.rank, "concatenate");
  for (const x of inputs) {
    const isCompatible =
      x.rank === firstInput.rank &&
      sameShape(x.shape.with(normalizedAxis, 0), firstInput.shape.with(normalizedAxis, 0));
    if (isCompatible) continue;
    throw new ShapeError({
      where: "concatenate",
      expected: `shapes that match ${formatShape(firstInput.shape)} except along axis ${normalizedAxis}`,
      received: formatShape(x.shape),
    });
  }
  return concatenateOp(inputs, normalizedAxis);
}

/** Throws unless `inputs` are tensors of one dtype on one device. Returns the first one. */
function checkInputs(where: string, inputs: readonly Tensor[]): Tensor {
  if (!Array.isArray(inputs)) {
    throw new OptionError({ where, expected: "an array of tensors", received: formatValue(inputs) });
  }
  const [firstInput] = inputs as readonly Tensor[];
  if (!firstInput) throw new ShapeError({ where, expected: "at least one tensor", received: "none" });
  checkOperands(where, firstInput, ...inputs);
  return firstInput;
}

/**
 * Joins tensors of equal shapes along a new axis, as torch.stack: position i along `axis` of the result is tensor i.
 *
 * @example
 * ```ts
 * import { fromArray, stack } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2], [2]);
 * using b = fromArray(device, [3, 4], [2]);
 * using columns = stack([a, b], -1);
 * columns.shape; // => [2, 2]
 * Array.from(await columns.read()); // => [1, 3, 2, 4]
 * ```
 * @throws ShapeError for an axis out of range, for shapes that differ, and if there are no tensors.
 */
export function stack(inputs: readonly Tensor[], axis: number): Tensor {
  const firstInput = checkInputs("stack", inputs);
  const normalizedAxis = normalizeAxis(axis, firstInput.rank + 1, "stack");
  for (const x of inputs) {
    if (sameShape(x.shape, firstInput.shape)) continue;
    throw new ShapeError({
      where: "stack",
      expected: `tensors of equal shapes, ${formatShape(firstInput.shape)} as the first one`,
      received: formatShape(x.shape),
    });
  }
  const views = inputs.map((x) => x.unsqueeze(normalizedAxis));
  try {
    return concatenateOp(views, normalizedAxis);
  } finally {
    for (const view of views) view.dispose();
  }
}

/**
 * Rolls a tensor along an axis by `shift` positions, as torch.roll: elements that are shifted beyond one end are
 * inserted at the other. A shift of −1 turns tokens into next-token labels. Apply it before `shard`, because the label
 * of a shard's last token is in another shard.
 *
 * @example
 * ```ts
 * import { fromArray, roll } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using tokens = fromArray(device, [1, 2, 3, 4], [1, 4]);
 * using labels = roll(tokens, -1, 1);
 * Array.from(await labels.read()); // => [2, 3, 4, 1]
 * ```
 * @throws ShapeError for an axis out of range, and for an axis that is known to be sharded; OptionError for a shift that
 * is not an integer.
 */
export function roll(x: Tensor, shift: number, axis: number): Tensor {
  checkTensor("roll", x);
  const normalizedAxis = normalizeAxis(axis, x.rank, "roll");
  expectValue("roll: shift", Number.isSafeInteger(shift), "an integer", shift);
  checkUnsharded("roll", x, { axis: normalizedAxis, remedy: "roll the whole tensor before shard()" });
  const length = x.shape[normalizedAxis]!;
  const start = length === 0 ? 0 : ((-shift % length) + length) % length;
  using tailView = x.slice(normalizedAxis, start, length);
  using head = x.slice(normalizedAxis, 0, start);
  return concatenateOp([tailView, head], normalizedAxis);
}
