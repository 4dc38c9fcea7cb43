import { type Device, type DType, type Shape, numel, type Tensor } from "@mosaic/core";
import { check } from "../check.ts";
import { epsilon } from "../oracle/numbers.ts";

/**
 * Layout of a tensor in memory: dense; with its axes stored in reverse order; or as every other element of a larger
 * tensor, whose remaining elements are NaN.
 */
export type StorageOrder = "dense" | "reversed" | "gapped";
export const storageOrders: readonly StorageOrder[] = ["dense", "reversed", "gapped"];

/** Allocates a tensor filled with NaN, for memory whose contents must not be used. */
export function allocate(
  device: Device,
  shape: Shape,
  { dtype = "float32", storageOrder = "dense" }: TensorOptions = {},
): Tensor {
  if (storageOrder === "reversed") {
    using reversedTensor = nanTensor(device, shape.toReversed(), dtype);
    return reversedTensor.permute(shape.map((_, axis) => shape.length - 1 - axis));
  }
  if (storageOrder === "dense") return nanTensor(device, shape, dtype);
  let view = nanTensor(
    device,
    shape.map((length) => 2 * length + 1),
    dtype,
  );
  for (let axis = 0; axis < shape.length; axis++) {
    using fullView = view;
    view = fullView.slice(axis, 1, 2 * shape[axis]! + 1, 2);
  }
  return view;
}

export interface TensorOptions {
  readonly dtype?: DType;
  readonly storageOrder?: StorageOrder;
}

/** Creates a tensor with these values. */
export function tensorFrom(
  device: Device,
  values: ArrayLike<number>,
  options: TensorOptions & { readonly shape: Shape },
): Tensor {
  const tensor = allocate(device, options.shape, options);
  check(
    values.length === numel(options.shape),
    `expected values of shape ${options.shape.join("×")}, received ${values.length} values`,
  );
  device.write(tensor, values);
  return tensor;
}

function nanTensor(device: Device, shape: Shape, dtype: DType): Tensor {
  const tensor = device.empty(shape, dtype);
  device.kernels.fill(tensor, Number.NaN);
  return tensor;
}

/** Tolerance of a result: relative to the result, plus relative to `scale`, the magnitude of the summed terms. */
export interface Tolerance {
  readonly dtype?: DType;
  /** Number of float32 rounding errors that the kernel may accumulate. */
  readonly roundings?: number;
  /** Magnitude of the terms. 0 if there is no cancellation. */
  readonly scale?: number;
}

/** Checks that every element is within some float32 rounding errors and one rounding to its storage dtype. */
export function checkRounded(
  actual: Float32Array,
  expected: Float64Array,
  tolerance: Tolerance & { description: string },
): void {
  const { dtype = "float32", roundings = 4, scale = 0, description } = tolerance;
  check(
    actual.length === expected.length,
    `${description}: expected ${expected.length} numbers, received ${actual.length}`,
  );
  for (let i = 0; i < expected.length; i++) {
    const e = expected[i]!;
    if (Object.is(actual[i], e) || actual[i] === e || (Number.isNaN(actual[i]) && Number.isNaN(e))) continue;
    const storageRounding = dtype === "float32" ? 0 : epsilon[dtype] * Math.abs(e) + smallestSpacing[dtype];
    const elementTolerance =
      storageRounding + roundings * epsilon.float32 * (Math.abs(e) + scale) + smallestSpacing.float32;
    check(
      Math.abs(actual[i]! - e) <= elementTolerance,
      `${description}: element ${i} is ${actual[i]}, expected ${e} ± ${elementTolerance.toExponential(1)}`,
    );
  }
}

/**
 * Spacing of numbers near zero. Below the smallest normal number, the rounding error is absolute. float32 may be
 * flushed to zero.
 */
const smallestSpacing: Readonly<Record<DType, number>> = { float32: 2 ** -126, bfloat16: 2 ** -126, float16: 2 ** -24 };

/** Makes a fresh device. */
export type MakeDevice = () => Device;

/** Runs `body` on a fresh device and closes it. */
export async function withDevice(make: MakeDevice, body: (device: Device) => Promise<void>): Promise<void> {
  using device = make();
  await body(device);
}
