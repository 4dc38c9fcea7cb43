import type { Context } from "./context.ts";
import type { Device } from "./device.ts";
import { checkDType, checkNumber, checkShape, contextRemedy } from "./arguments.ts";
import { formatValue, OptionError, ShapeError } from "./errors.ts";
import * as option from "./option.ts";
import { defineOptions, type OptionsOf } from "./options.ts";
import type { DType } from "./storage.ts";
import { formatShape, type Shape, numel } from "./shape.ts";
import type { Tensor } from "./tensor.ts";

/** The device of a new tensor, or a context with this device. */
export type DeviceOrContext = Context | Device;

export function isContext(deviceOrContext: DeviceOrContext): deviceOrContext is Context {
  return "mesh" in deviceOrContext;
}

export function resolveDevice(deviceOrContext: DeviceOrContext, where: string): Device {
  if (
    typeof deviceOrContext !== "object" ||
    deviceOrContext === null ||
    !("mesh" in deviceOrContext || "kernels" in deviceOrContext)
  ) {
    throw new OptionError({
      where,
      expected: "a Context or a Device",
      received: formatValue(deviceOrContext),
      remedy: contextRemedy(where, deviceOrContext),
    });
  }
  if (!isContext(deviceOrContext)) return deviceOrContext;
  deviceOrContext.assertOpen(where);
  return deviceOrContext.device;
}

export const tensorOptions = defineOptions("tensor", {
  /** The dtype of the elements. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of a new tensor. */
export type TensorOptions = OptionsOf<typeof tensorOptions>;

/**
 * Returns an uninitialized tensor of this shape. Its elements are undefined until they are written.
 *
 * @example
 * ```ts
 * import { empty } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = empty(device, [2, 3], { dtype: "bfloat16" });
 * [x.shape, x.dtype]; // => [[2, 3], "bfloat16"]
 * ```
 * @throws ShapeError for a length that is not an integer ≥ 0; OptionError for an unknown dtype.
 */
export function empty(deviceOrContext: DeviceOrContext, shape: Shape, options?: TensorOptions): Tensor {
  return create(deviceOrContext, shape, { options, where: "empty" });
}

function create(deviceOrContext: DeviceOrContext, shape: Shape, call: { options: unknown; where: string }): Tensor {
  const device = resolveDevice(deviceOrContext, call.where);
  checkShape(call.where, shape);
  const { dtype } = tensorOptions.parse(call.options, call.where);
  return device.empty(shape, dtype);
}

export function allocate(device: Device, spec: { shape: Shape; dtype: DType; where: string }): Tensor {
  const { shape, dtype, where } = spec;
  checkShape(where, shape);
  checkDType(where, dtype);
  return device.empty(shape, dtype);
}

/**
 * Copies row-major host values to a new tensor of `shape`. The values are read during the call. Rounds to nearest even
 * for 16-bit dtypes.
 *
 * @example
 * ```ts
 * import { fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2, 3, 4, 5, 6], [2, 3]);
 * using y = x.transpose(0, 1).slice(0, 1);
 * Array.from(await y.read()); // => [2, 5, 3, 6]
 * ```
 * @throws ShapeError if the number of elements of the shape differs from that of the values; OptionError for an element
 * that is not a number.
 */
export function fromArray(
  deviceOrContext: DeviceOrContext,
  values: ArrayLike<number>,
  shape: Shape,
  options?: TensorOptions,
): Tensor {
  if (shape === undefined) {
    const expected = "a shape, such as [2, 2], after the flat values";
    throw new ShapeError({ where: "fromArray", expected, received: "none" });
  }
  checkShape("fromArray", shape);
  checkArrayLike(values);
  checkNumbers(values);
  if (numel(shape) !== values.length) {
    throw new ShapeError({
      where: "fromArray",
      expected: `a shape with ${values.length} elements, one per value`,
      received: `${formatShape(shape)} (${numel(shape)} elements)`,
    });
  }
  const out = create(deviceOrContext, shape, { options, where: "fromArray" });
  out.device.write(out, values);
  return out;
}

function checkArrayLike(values: unknown): void {
  if (typeof values === "object" && values !== null && Number.isSafeInteger((values as ArrayLike<unknown>).length))
    return;
  throw new OptionError({ where: "fromArray: values", expected: "an array of numbers", received: formatValue(values) });
}

/** Strings and holes would become NaN. Numeric typed arrays contain neither, so only other arrays are checked. */
function checkNumbers(values: ArrayLike<number>): void {
  const isTypedArray =
    ArrayBuffer.isView(values) && !(values instanceof BigInt64Array || values instanceof BigUint64Array);
  if (isTypedArray) return;
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (typeof value === "number") continue;
    throw new OptionError({
      where: `fromArray: values[${i}]`,
      expected: "a number",
      received: formatValue(value),
      ...(Array.isArray(value) && {
        remedy: "pass the flat values of all rows, such as values.flat(), and their shape",
      }),
    });
  }
}

/**
 * Returns a tensor of this shape in which every element is `value`, rounded to the dtype.
 *
 * @example
 * ```ts
 * import { full } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = full(device, [2, 2], 0.5);
 * Array.from(await x.read()); // => [0.5, 0.5, 0.5, 0.5]
 * ```
 * @throws ShapeError for a length that is not an integer ≥ 0; OptionError for an unknown dtype or a value that is not a
 * number.
 */
export function full(deviceOrContext: DeviceOrContext, shape: Shape, value: number, options?: TensorOptions): Tensor {
  checkNumber("full: value", value);
  return fill(create(deviceOrContext, shape, { options, where: "full" }), value);
}

/**
 * Returns a tensor of this shape in which every element is 0.
 *
 * @example
 * ```ts
 * import { zeros } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = zeros(device, [3]);
 * Array.from(await x.read()); // => [0, 0, 0]
 * ```
 * @throws ShapeError for a length that is not an integer ≥ 0; OptionError for an unknown dtype.
 */
export function zeros(deviceOrContext: DeviceOrContext, shape: Shape, options?: TensorOptions): Tensor {
  return fill(create(deviceOrContext, shape, { options, where: "zeros" }), 0);
}

/**
 * Returns a tensor of this shape in which every element is 1.
 *
 * @example
 * ```ts
 * import { ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = ones(device, [3]);
 * Array.from(await x.read()); // => [1, 1, 1]
 * ```
 * @throws ShapeError for a length that is not an integer ≥ 0; OptionError for an unknown dtype.
 */
export function ones(deviceOrContext: DeviceOrContext, shape: Shape, options?: TensorOptions): Tensor {
  return fill(create(deviceOrContext, shape, { options, where: "ones" }), 1);
}

function fill(out: Tensor, value: number): Tensor {
  out.device.kernels.fill(out, value);
  return out;
}
