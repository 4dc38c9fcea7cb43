import type { Context } from "./context.ts";
import { allocate, type DeviceOrContext, isContext, resolveDevice } from "./creation.ts";
import type { Device } from "./device.ts";
import { OptionError } from "./errors.ts";
import * as option from "./option.ts";
import { defineOptions, type OptionsOf } from "./options.ts";
import type { Shape } from "./shape.ts";
import { type DType, significandBits } from "./storage.ts";
import type { Tensor } from "./tensor.ts";

// Random tensors, and the numbers of their streams: Philox by seed and stream, so that a checkpoint's second forward draws the
// same numbers as its first.

const commonRandomOptions = {
  /** Seed of the generator. Default: the seed of the context, mixed with the rank so that ranks draw different numbers; 0 on a device without context. */
  seed: option.integer({ min: 0, optional: true }),
  /** Distinguishes tensors of the same seed. Default: a new one for every call. */
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
  /** Inclusive lower bound. Default 0. */
  low: option.number({ default: 0 }),
  /** Exclusive upper bound. Default 1. */
  high: option.number({ default: 1 }),
});
/** What `rand` takes beside a shape. */
export type RandOptions = OptionsOf<typeof randOptions>;

/**
 * Normally distributed numbers, mean 0 and standard deviation 1 by default. With `seed` and `stream` given,
 * element i is the same on every device and every mesh (Philox4x32-10); without, every call and every rank draws different numbers.
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
 * @throws OptionError for a mean or std that is not finite, a negative std, or a seed that is no integer ≥ 0.
 */
export function randn(deviceOrContext: DeviceOrContext, shape: Shape, options?: RandnOptions): Tensor {
  const { mean, std, dtype, ...randomOptions } = randnOptions.parse(options);
  const device = resolveDevice(deviceOrContext, "randn");
  const randomStream = resolveRandomStream(deviceOrContext, randomOptions);
  const out = allocate(device, { shape, dtype, where: "randn" });
  device.kernels.random(out, { kind: "normal", mean, std, ...randomStream });
  return out;
}

/** Uniformly distributed numbers in [low, high), by default [0, 1), also once they are rounded to the dtype. Seeds as in `randn`. OptionError unless low ≤ high are finite. */
export function rand(deviceOrContext: DeviceOrContext, shape: Shape, options?: RandOptions): Tensor {
  const { low, high, dtype, ...randomOptions } = randOptions.parse(options);
  checkDistribution("rand", { kind: "uniform", low, high });
  const device = resolveDevice(deviceOrContext, "rand");
  const randomStream = resolveRandomStream(deviceOrContext, randomOptions);
  const out = allocate(device, { shape, dtype, where: "rand" });
  device.kernels.random(out, { kind: "uniform", low, high: getUnroundedBound(dtype, low, high), ...randomStream });
  return out;
}

const minNormalExponents = { bfloat16: -126, float16: -14 } as const;

/** The bound below which float32 numbers, once rounded to the dtype, are below `high`: half way from the number before it. */
function getUnroundedBound(dtype: DType, low: number, high: number): number {
  if (dtype === "float32") return high;
  const minExponent = minNormalExponents[dtype];
  const exponent = Math.max(minExponent, Math.floor(Math.log2(Math.abs(high))));
  // Below a power of two numbers are twice as close.
  const isPowerOfTwo = high === 2 ** exponent && exponent > minExponent;
  const spacing = 2 ** (exponent - significandBits[dtype] + (isPowerOfTwo ? 0 : 1));
  const numberBefore = (Math.ceil(high / spacing) - 1) * spacing;
  const bound = Math.min(high, numberBefore + spacing / 2);
  return bound > low ? bound : high;
}

/** A distribution by its parameters. */
type Distribution =
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "uniform"; readonly low: number; readonly high: number };

/** Throws an OptionError unless mean and std ≥ 0, or low ≤ high, are finite. */
export function checkDistribution(where: string, spec: Distribution): void {
  const { isValid, expected, received } =
    spec.kind === "normal"
      ? {
          isValid: Number.isFinite(spec.mean) && Number.isFinite(spec.std) && spec.std >= 0,
          expected: "a finite mean and a finite std ≥ 0",
          received: `mean ${spec.mean}, std ${spec.std}`,
        }
      : {
          isValid: Number.isFinite(spec.low) && Number.isFinite(spec.high) && spec.low <= spec.high,
          expected: "finite low and high with low ≤ high",
          received: `low ${spec.low}, high ${spec.high}`,
        };
  if (!isValid) throw new OptionError({ where, expected, received });
}

const nextStreamByDevice = new WeakMap<Device, number>();

interface RandomStream {
  readonly seed: number | undefined;
  readonly stream: number | undefined;
}

function resolveRandomStream(
  deviceOrContext: DeviceOrContext,
  { seed, stream }: RandomStream,
): { seed: number; stream: number } {
  if (isContext(deviceOrContext))
    return { seed: seed ?? rankSeed(deviceOrContext), stream: stream ?? deviceOrContext.nextRandomStream() };
  return { seed: seed ?? 0, stream: stream ?? nextStreamNumber(() => takeNextStream(deviceOrContext)) };
}

function takeNextStream(device: Device): number {
  const streamNumber = nextStreamByDevice.get(device) ?? 0;
  nextStreamByDevice.set(device, streamNumber + 1);
  return streamNumber;
}

/** A seed per rank, different from the shared seed of parameters. 2³²/φ separates neighbouring ranks. */
function rankSeed(ctx: Context): number {
  return (ctx.seed + Math.imul(ctx.rank + 1, 0x9e3779b9)) >>> 0;
}

/** The random stream numbers that a body used, in order. */
interface RngState {
  readonly streamNumbers: number[];
  /** Those of the body around it, when it ran the first time. */
  readonly outerState: RngState | undefined;
  /** Undefined while the body runs the first time; later, the place of the number that comes next. */
  nextNumberIndex: number | undefined;
}

let activeRngState: RngState | undefined;

/** Runs synchronous bodies: the first run takes new stream numbers for random tensors, later runs repeat them. */
export function preserveRngState(): <T>(body: () => T) => T {
  const recordedState: RngState = { streamNumbers: [], outerState: activeRngState, nextNumberIndex: undefined };
  return (body) => {
    const previousState = activeRngState;
    activeRngState = recordedState;
    try {
      return body();
    } finally {
      activeRngState = previousState;
      recordedState.nextNumberIndex = 0;
    }
  };
}

/** The stream number of a random tensor: a new one, or, in a recomputed body, that of the first run. */
export function nextStreamNumber(createNumber: () => number): number {
  return replayStreamNumber(activeRngState, createNumber);
}

function replayStreamNumber(state: RngState | undefined, createNumber: () => number): number {
  if (!state) return createNumber();
  if (state.nextNumberIndex !== undefined) return state.streamNumbers[state.nextNumberIndex++] ?? createNumber();
  const streamNumber = replayStreamNumber(state.outerState, createNumber);
  state.streamNumbers.push(streamNumber);
  return streamNumber;
}
