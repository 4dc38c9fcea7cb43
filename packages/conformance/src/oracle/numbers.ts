import type { DType } from "@mosaic/core";

// Numbers as a device stores them, computed independently of the device's code.

const floatView = new Float32Array(1);
const bitsView = new Uint32Array(floatView.buffer);

/**
 * Returns the nearest value that the dtype can store, ties to even.
 *
 * @example
 * ```ts
 * import { roundTo } from "@mosaic/conformance";
 * [roundTo(1.005, "bfloat16"), roundTo(70_000, "float16")]; // => [1.0078125, Infinity]
 * ```
 */
export function roundTo(value: number, dtype: DType): number {
  if (dtype === "float32") return Math.fround(value);
  if (dtype === "bfloat16") return roundToBfloat16(Math.fround(value));
  return roundToFloat16(value);
}

export function roundAll(values: ArrayLike<number>, dtype: DType): Float64Array {
  return Float64Array.from({ length: values.length }, (_, i) => roundTo(values[i]!, dtype));
}

function roundToBfloat16(value: number): number {
  if (!Number.isFinite(value)) return value;
  floatView[0] = value;
  const word = bitsView[0]!;
  bitsView[0] = (word + 0x7fff + ((word >>> 16) & 1)) & 0xffff0000;
  return floatView[0];
}

/** Rounds to 11 significant bits down to 2^-14, and to a spacing of 2^-24 below. */
function roundToFloat16(value: number): number {
  if (!Number.isFinite(value) || value === 0) return value;
  const exponent = Math.max(-14, Math.floor(Math.log2(Math.abs(value))));
  const spacing = 2 ** (exponent - 10);
  const nearestValue = roundHalfEven(value / spacing) * spacing;
  return Math.abs(nearestValue) > 65504 ? Math.sign(value) * Number.POSITIVE_INFINITY : nearestValue;
}

function roundHalfEven(value: number): number {
  const floorValue = Math.floor(value);
  const fraction = value - floorValue;
  if (fraction !== 0.5) return Math.round(value);
  return floorValue % 2 === 0 ? floorValue : floorValue + 1;
}

/** Half the distance between neighboring numbers near 1: the relative error of one rounding. */
export const epsilon: Readonly<Record<DType, number>> = { float32: 2 ** -24, bfloat16: 2 ** -8, float16: 2 ** -11 };

/**
 * Returns a generator of uniform numbers in [0, 1), the same for the same seed (mulberry32).
 *
 * @example
 * ```ts
 * import { uniforms } from "@mosaic/conformance";
 * const [a, b] = [uniforms(7), uniforms(7)];
 * a() === b(); // => true
 * ```
 */
export function uniforms(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
}

/**
 * Returns `length` standard normal numbers (Box and Muller), rounded to a dtype, the same for the same seed.
 *
 * @example
 * ```ts
 * import { normals } from "@mosaic/conformance";
 * const [a, b] = [normals(4, 7), normals(4, 7)];
 * a.join() === b.join(); // => true
 * ```
 */
export function normals(length: number, seed: number, dtype: DType = "float32"): Float64Array {
  const nextUniform = uniforms(seed);
  return Float64Array.from({ length }, () =>
    roundTo(Math.sqrt(-2 * Math.log(1 - nextUniform())) * Math.cos(2 * Math.PI * nextUniform()), dtype),
  );
}

/**
 * Returns a random integer in [0, limit), from a generator such as that of `uniforms`.
 *
 * @example
 * ```ts
 * import { integer, uniforms } from "@mosaic/conformance";
 * integer(uniforms(7), 10) < 10; // => true
 * ```
 */
export function integer(nextUniform: () => number, limit: number): number {
  return Math.floor(nextUniform() * limit);
}
