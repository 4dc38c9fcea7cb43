import { expect } from "vitest";

/** Returns reproducible numbers in [-1, 1) (mulberry32). */
export function generateNumbers(size: number, seed: number): number[] {
  let state = seed >>> 0;
  return Array.from({ length: size }, () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return Math.fround(((x ^ (x >>> 14)) >>> 0) / 2147483648 - 1);
  });
}

/** Returns the largest difference, relative to the largest expected value (or 1e-30). */
export function maxDifference(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  expect(actual.length).toBe(expected.length);
  let [difference, maxMagnitude] = [0, 1e-30];
  for (let i = 0; i < expected.length; i++) {
    if (actual[i] === expected[i]) continue;
    const absoluteDifference = Math.abs(actual[i]! - expected[i]!);
    difference = Math.max(difference, Number.isNaN(absoluteDifference) ? Infinity : absoluteDifference);
    maxMagnitude = Math.max(maxMagnitude, Math.abs(expected[i]!));
  }
  return difference / maxMagnitude;
}

/** Returns d f / d x by central differences of a float64 function. */
export function numericalDerivative(f: (x: readonly number[]) => number, x: readonly number[], step = 1e-5): number[] {
  return x.map((value, i) => (f(x.with(i, value + step)) - f(x.with(i, value - step))) / (2 * step));
}
