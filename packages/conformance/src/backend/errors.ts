import type { DType } from "@mosaic/core";
import { check, magnitude } from "../check.ts";
import { epsilon } from "../oracle/numbers.ts";

/** How far numbers are from what they should be; sums, so that ranks can be taken together. Survives JSON. */
export interface ErrorSum {
  readonly count: number;
  readonly squares: number;
  readonly largest: number;
}

/** NaN, and an infinity that should not be there or is missing, count as the largest number there is. */
export function errorSum(actual: ArrayLike<number>, expected: ArrayLike<number>): ErrorSum {
  check(actual.length === expected.length, `expected ${expected.length} numbers, received ${actual.length}`);
  let squares = 0;
  let largest = 0;
  for (let i = 0; i < actual.length; i++) {
    const difference = actual[i] === expected[i] ? 0 : Math.abs(actual[i]! - expected[i]!);
    const error = difference < Number.MAX_VALUE ? difference : Number.MAX_VALUE;
    squares = Math.min(squares + error * error, Number.MAX_VALUE);
    largest = Math.max(largest, error);
  }
  return { count: actual.length, squares, largest };
}

/** The errors of several ranks as one. */
export function joined(sums: readonly ErrorSum[]): ErrorSum {
  return {
    count: sums.reduce((total, { count }) => total + count, 0),
    squares: sums.reduce((total, { squares }) => Math.min(total + squares, Number.MAX_VALUE), 0),
    largest: Math.max(0, ...sums.map(({ largest }) => largest)),
  };
}

export function rootMeanSquare({ count, squares }: Pick<ErrorSum, "count" | "squares">): number {
  return count === 0 ? 0 : Math.sqrt(squares / count);
}

export interface Gate {
  /** What one device's own kernel makes of the same data. */
  readonly local: ErrorSum;
  readonly expected: Float64Array;
  /** The largest |lse|. */
  readonly lse: number;
  /** The dtype in which each rank stores its part of a sum before ranks add theirs; float32 if absent. */
  readonly partial?: DType;
  readonly what: string;
}

/**
 * At most twice the error of the device's own kernel on the same data: in the root of the mean square, and the largest.
 *
 * Whoever folds keys in pieces must round float32 numbers once more than the kernel that sees all keys at once: `out` and
 * the sums of gradients by half a unit each, and `lse` by half a unit, which, being an exponent, is a relative error of
 * |lse| half units in everything. One such rounding of each is allowed on top. It matters where terms are so few that the
 * kernel's own error is small by luck; the mean, over everything, leaves no room to hide behind it.
 */
export function checkErrors(found: ErrorSum, { local, expected, lse, partial = "float32", what }: Gate): void {
  const rounding = epsilon.float32 * (1 + lse) + epsilon[partial];
  const scale = rootMeanSquare({
    count: expected.length,
    squares: expected.reduce((sum, x) => sum + finite(x) ** 2, 0),
  });
  const limits = {
    "mean error": [rootMeanSquare(found), 2 * rootMeanSquare(local) + epsilon[partial] * scale],
    "largest error": [found.largest, 2 * local.largest + rounding * magnitude(expected)],
  } as const;
  for (const [name, [error, limit]] of Object.entries(limits)) {
    check(
      error <= limit,
      `${what}: ${name} ${error.toExponential(2)} exceeds ${limit.toExponential(2)}, ` +
        `twice one device's own (${rootMeanSquare(local).toExponential(2)}, at most ${local.largest.toExponential(2)})`,
    );
  }
}

const finite = (x: number): number => (Number.isFinite(x) ? x : 0);
