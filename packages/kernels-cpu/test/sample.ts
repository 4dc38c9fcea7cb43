import { type DType, type Tensor, dtypeBytes, numel } from "@mosaic/core";
import { afterAll, beforeAll, describe } from "vitest";
import { type CpuDevice, cpu, features } from "../src/index.ts";

export const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];

/**
 * Runs a block of tests on every instruction set that this machine supports, and on several threads with the fastest.
 */
export function onEveryIsa(name: string, body: (device: () => CpuDevice) => void): void {
  const { supported } = features();
  const cases = [...supported.map((isa) => ({ isa, threads: 1 })), { isa: supported.at(-1)!, threads: 3 }];
  describe.each(cases)(`${name} on $isa, $threads threads`, ({ isa, threads }) => {
    let device: CpuDevice;
    beforeAll(() => {
      process.env.MOSAIC_ISA = isa;
      device = cpu({ threads });
      delete process.env.MOSAIC_ISA;
      if (device.instructionSet !== isa) throw new Error(`wanted ${isa}, got ${device.instructionSet}`);
    });
    afterAll(() => device[Symbol.dispose]());
    body(() => device);
  });
}

/** Creates a small generator of reproducible numbers in [-1, 1) (Mulberry32). */
export function createGenerator(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}

const significandBits = { float32: 24, bfloat16: 8, float16: 11 } as const;
const smallestExponent = { float32: -149, bfloat16: -133, float16: -24 } as const;

/** Returns the distance from x to its neighbors in a dtype. */
export function ulp(x: number, dtype: DType): number {
  const exponent = x === 0 ? -Infinity : Math.floor(Math.log2(Math.abs(x)));
  return 2 ** Math.max(exponent - significandBits[dtype] + 1, smallestExponent[dtype]);
}

/** Rounds x to nearest, ties to even, in float64 arithmetic. */
export function roundTo(x: number, dtype: DType): number {
  if (dtype === "float32") return Math.fround(x);
  if (!Number.isFinite(x) || x === 0) return x;
  const unit = ulp(x, dtype);
  const steps = x / unit;
  const floor = Math.floor(steps);
  const roundsUp = steps - floor > 0.5 || (steps - floor === 0.5 && floor % 2 !== 0);
  const result = Math.abs((floor + (roundsUp ? 1 : 0)) * unit);
  const largest = dtype === "bfloat16" ? 2 ** 128 - 2 ** 120 : 65504;
  return Math.sign(x) * (result > largest ? Infinity : result);
}

/** Memory layout of a tensor. */
export type Layout = "dense" | "turned" | "spread" | "reversed axes";
export const layouts: readonly Layout[] = ["dense", "turned", "spread", "reversed axes"];

/** Creates an uninitialized tensor of a shape and layout. Views keep the storage alive. */
export function allocateWithLayout(device: CpuDevice, shape: readonly number[], dtype: DType, layout: Layout): Tensor {
  const rank = shape.length;
  if (layout === "dense" || rank === 0) return device.empty(shape, dtype);
  if (layout === "spread") {
    using base = device.empty([...shape, 3], dtype); // every third element, with an offset
    return base.slice(rank, 1, 2).reshape(shape);
  }
  if (layout === "turned" && rank > 1) {
    using base = device.empty([...shape.slice(0, -2), shape[rank - 1]!, shape[rank - 2]!], dtype);
    return base.transpose(rank - 1, rank - 2);
  }
  using base = device.empty(shape.toReversed(), dtype);
  return base.permute(shape.map((_, axis) => rank - 1 - axis));
}

export interface Sample {
  readonly x: Tensor;
  /** Row-major values, rounded to the dtype. */
  readonly values: number[];
}

/** Creates a tensor of given values; returns it with those values rounded to its dtype. */
export function createSample(
  device: CpuDevice,
  shape: readonly number[],
  options: { dtype?: DType; layout?: Layout; value: (index: number) => number },
): Sample {
  const { dtype = "float32", layout = "dense", value } = options;
  const values = Array.from({ length: numel(shape) }, (_, i) => roundTo(Math.fround(value(i)), dtype));
  const x = allocateWithLayout(device, shape, dtype, layout);
  device.write(x, values);
  return { x, values };
}

/**
 * Compares results with expected values. Each may differ by `tolerance` times the magnitude of its terms, plus half a
 * unit of the dtype for the one rounding at the end. Returns the first mismatch, or undefined.
 */
export function findMismatch(
  actualValues: Float32Array,
  expectedValues: readonly number[],
  options: { tolerance: number; dtype?: DType; magnitude?: readonly number[] },
): string | undefined {
  const { tolerance, dtype = "float32", magnitude } = options;
  if (actualValues.length !== expectedValues.length)
    return `${actualValues.length} values, expected ${expectedValues.length}`;
  for (const [i, expected] of expectedValues.entries()) {
    const value = actualValues[i]!;
    if (Object.is(value, expected) || value === expected || (Number.isNaN(value) && Number.isNaN(expected))) continue;
    const maxError = tolerance * (magnitude?.[i] ?? Math.abs(expected)) + (ulp(expected, dtype) / 2) * 1.001;
    if (!(Math.abs(value - expected) <= maxError)) {
      return `[${i}] is ${value}, expected ${expected}, allowed ${maxError}`;
    }
  }
  return undefined;
}

/** Returns the bytes of a dense tensor. */
export function bytes(shape: readonly number[], dtype: DType): number {
  return numel(shape) * dtypeBytes[dtype];
}
