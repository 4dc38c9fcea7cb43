import { check, magnitude } from "../check.ts";

// Everything here survives JSON, so that ranks may be processes.

/** How far numbers are from what they should be; sums, so that ranks can be taken together. */
export interface ErrorSum {
  readonly count: number;
  readonly squares: number;
  readonly largest: number;
}

/** How large numbers are. */
export interface Extent {
  readonly mean: number;
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

/** Root mean square. */
export function meanOf({ count, squares }: Pick<ErrorSum, "count" | "squares">): number {
  return count === 0 ? 0 : Math.sqrt(squares / count);
}

/** Of the finite numbers. */
export function extentOf(values: Float64Array): Extent {
  let [count, squares] = [0, 0];
  for (const x of values) {
    if (!Number.isFinite(x)) continue;
    count++;
    squares += x * x;
  }
  return { mean: meanOf({ count, squares }), largest: magnitude(values) };
}
