import { nextStreamNumber } from "./autograd/rng-state.ts";
import type { Context } from "./context.ts";
import type { Device } from "./device.ts";
import { checkDType, checkNumber, checkShape } from "./arguments.ts";
import type { DType } from "./dtype.ts";
import { formatValue, OptionError, ShapeError } from "./errors.ts";
import * as option from "./option.ts";
import { defineOptions, type OptionsOf } from "./options.ts";
import { formatShape, type Shape, numel } from "./shape.ts";
import type { Tensor } from "./tensor.ts";

/** Where a tensor shall live: a device, or the one of a context. */
export type DeviceOrContext = Context | Device;

function isContext(on: DeviceOrContext): on is Context {
  return "mesh" in on;
}

function resolveDevice(on: DeviceOrContext, where: string): Device {
  if (typeof on !== "object" || on === null || !("mesh" in on || "kernels" in on)) {
    throw new OptionError({ where, expected: "a Context or a Device", received: formatValue(on) });
  }
  if (!isContext(on)) return on;
  on.assertOpen(where);
  return on.device;
}

/**
 * Uninitialised memory of a shape.
 *
 * @throws ShapeError for a length that is not a whole number ≥ 0; DTypeError for an unknown dtype.
 */
export function empty(on: DeviceOrContext, shape: Shape, dtype: DType = "float32"): Tensor {
  return allocate(resolveDevice(on, "empty"), { shape, dtype, where: "empty" });
}

function allocate(device: Device, spec: { shape: Shape; dtype: DType; where: string }): Tensor {
  const { shape, dtype, where } = spec;
  checkShape(where, shape);
  checkDType(where, dtype);
  return device.empty(shape, dtype);
}

/**
 * Host values, row-major, copied to a tensor of `shape`; taken at the call. Rounds to nearest even for 16-bit dtypes.
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
 * @throws ShapeError if the shape has another number of elements; OptionError for an element that is not a number.
 */
export function fromArray(on: DeviceOrContext, values: ArrayLike<number>, shape: Shape, dtype: DType = "float32"): Tensor {
  const device = resolveDevice(on, "fromArray");
  checkShape("fromArray", shape);
  checkArrayLike(values);
  if (numel(shape) !== values.length) {
    throw new ShapeError({
      where: "fromArray",
      expected: `${values.length} elements, as many as values`,
      received: `${formatShape(shape)} (${numel(shape)})`,
    });
  }
  checkNumbers(values);
  const out = allocate(device, { shape, dtype, where: "fromArray" });
  device.write(out, values);
  return out;
}

function checkArrayLike(values: unknown): void {
  if (typeof values === "object" && values !== null && Number.isSafeInteger((values as ArrayLike<unknown>).length))
    return;
  throw new OptionError({ where: "fromArray: values", expected: "an array of numbers", received: formatValue(values) });
}

/** Texts and gaps would become NaN. Typed arrays of numbers hold nothing else. */
function checkNumbers(values: ArrayLike<number>): void {
  const isTyped = ArrayBuffer.isView(values) && !(values instanceof BigInt64Array || values instanceof BigUint64Array);
  if (isTyped) return;
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (typeof value === "number") continue;
    throw new OptionError({
      where: `fromArray: values[${i}]`,
      expected: "a number",
      received: formatValue(value),
    });
  }
}

/** A tensor of one value throughout. */
export function full(on: DeviceOrContext, shape: Shape, value: number, dtype: DType = "float32"): Tensor {
  const device = resolveDevice(on, "full");
  checkNumber("full: value", value);
  const out = allocate(device, { shape, dtype, where: "full" });
  device.kernels.fill(out, value);
  return out;
}

/** A tensor of zeros. */
export function zeros(on: DeviceOrContext, shape: Shape, dtype: DType = "float32"): Tensor {
  return full(on, shape, 0, dtype);
}

/** A tensor of ones. */
export function ones(on: DeviceOrContext, shape: Shape, dtype: DType = "float32"): Tensor {
  return full(on, shape, 1, dtype);
}

const commonRandomOptions = {
  /** What the numbers follow from. Default: the context's seed, mixed with the rank so that every rank draws its own numbers; 0 on a bare device. */
  seed: option.integer({ min: 0, optional: true }),
  /** Distinguishes tensors of one seed. Default: a fresh one at every call. */
  stream: option.integer({ min: 0, optional: true }),
  /** Of the tensor. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
};
export const randnOptions = defineOptions("randn", {
  ...commonRandomOptions,
  /** Of the normal distribution. Default 0. */
  mean: option.number({ default: 0 }),
  /** Standard deviation. Default 1. */
  std: option.number({ min: 0, default: 1 }),
});
/** What `randn` takes beside a shape. */
export type RandnOptions = OptionsOf<typeof randnOptions>;
export const randOptions = defineOptions("rand", {
  ...commonRandomOptions,
  /** The smallest number. Default 0. */
  low: option.number({ default: 0 }),
  /** What all numbers are below. Default 1. */
  high: option.number({ default: 1 }),
});
/** What `rand` takes beside a shape. */
export type RandOptions = OptionsOf<typeof randOptions>;

/**
 * Normally distributed numbers, mean 0 and standard deviation 1 by default. With `seed` and `stream` given,
 * element i is the same on every device and every mesh (Philox4x32-10); without, every call and every rank draws its own.
 *
 * @example
 * ```ts
 * import { randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = randn(device, [2, 3], { seed: 7, stream: 1 });
 * using y = randn(device, [2, 3], { seed: 7, stream: 1 });
 * String(await x.read()) === String(await y.read()); // => true
 * ```
 * @throws OptionError for a mean or std that is not finite, a negative std, or a seed that is no whole number ≥ 0.
 */
export function randn(on: DeviceOrContext, shape: Shape, options?: RandnOptions): Tensor {
  const { mean, std, dtype, ...draw } = randnOptions.parse(options);
  const device = resolveDevice(on, "randn");
  const from = resolveRandomStream(on, draw);
  const out = allocate(device, { shape, dtype, where: "randn" });
  device.kernels.random(out, { kind: "normal", mean, std, ...from });
  return out;
}

/** Uniformly distributed numbers in [low, high), by default [0, 1). Seeds as in `randn`. OptionError unless low ≤ high are finite. */
export function rand(on: DeviceOrContext, shape: Shape, options?: RandOptions): Tensor {
  const { low, high, dtype, ...draw } = randOptions.parse(options);
  checkDistribution("rand", { kind: "uniform", low, high });
  const device = resolveDevice(on, "rand");
  const from = resolveRandomStream(on, draw);
  const out = allocate(device, { shape, dtype, where: "rand" });
  device.kernels.random(out, { kind: "uniform", low, high, ...from });
  return out;
}

/** A distribution by its parameters. */
type Distribution =
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "uniform"; readonly low: number; readonly high: number };

/** Throws an OptionError unless mean and std ≥ 0, or low ≤ high, are finite. */
export function checkDistribution(where: string, spec: Distribution): void {
  const { isRight, expected, received } =
    spec.kind === "normal"
      ? {
          isRight: Number.isFinite(spec.mean) && Number.isFinite(spec.std) && spec.std >= 0,
          expected: "a finite mean and a finite std ≥ 0",
          received: `mean ${spec.mean}, std ${spec.std}`,
        }
      : {
          isRight: Number.isFinite(spec.low) && Number.isFinite(spec.high) && spec.low <= spec.high,
          expected: "finite low ≤ high",
          received: `low ${spec.low}, high ${spec.high}`,
        };
  if (!isRight) throw new OptionError({ where, expected, received });
}

const nextStreams = new WeakMap<Device, number>();

interface RandomStream {
  readonly seed: number | undefined;
  readonly stream: number | undefined;
}

function resolveRandomStream(on: DeviceOrContext, { seed, stream }: RandomStream): { seed: number; stream: number } {
  if (isContext(on)) return { seed: seed ?? rankSeed(on), stream: stream ?? on.nextRandomStream() };
  return { seed: seed ?? 0, stream: stream ?? nextStreamNumber(() => nextStream(on)) };
}

function nextStream(device: Device): number {
  const next = nextStreams.get(device) ?? 0;
  nextStreams.set(device, next + 1);
  return next;
}

/** Apart from the plain seed, which parameters use, on every rank. 2³²/φ spreads neighbouring ranks. */
function rankSeed(ctx: Context): number {
  return (ctx.seed + Math.imul(ctx.rank + 1, 0x9e3779b9)) >>> 0;
}
