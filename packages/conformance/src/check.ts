import { AssertionError } from "node:assert";

/**
 * Checks a condition of a case.
 *
 * @example
 * ```ts
 * import { check } from "@mosaic/conformance";
 * check(1 > 2, "expected a larger number"); // throws expected a larger number
 * ```
 * @throws AssertionError with `message` if the condition is false.
 */
export function check(condition: boolean, message: string): asserts condition {
  if (!condition) throw new AssertionError({ message, stackStartFn: check });
}

/**
 * Checks that `action` throws, or rejects with, an error whose name is `name` and whose message matches.
 *
 * @example
 * ```ts
 * import { OptionError } from "@mosaic/core";
 * import { checkThrows } from "@mosaic/conformance";
 * const action = () => {
 *   throw new OptionError("axis: expected a name");
 * };
 * await checkThrows(action, "OptionError", /expected a name/);
 * ```
 * @throws Rejects with an AssertionError unless it does.
 */
export async function checkThrows(action: () => unknown, name: string, pattern: RegExp): Promise<void> {
  let error: unknown;
  try {
    await action();
  } catch (thrownError) {
    error = thrownError;
  }
  check(error instanceof Error, `expected ${name}, received no error`);
  check(error.name === name, `expected ${name}, received ${error.name}: ${error.message}`);
  check(pattern.test(error.message), `expected a message that matches ${pattern}, received "${error.message}"`);
}

/**
 * Returns the largest absolute difference. Equal infinities differ by 0. The difference is infinite for a NaN and for
 * an infinity on one side only, because a comparison with NaN must never pass.
 *
 * @example
 * ```ts
 * import { maxError } from "@mosaic/conformance";
 * maxError([1, 2], [1, 4]); // => 2
 * maxError([NaN], [NaN]); // => Infinity
 * ```
 * @throws AssertionError for lists of different lengths.
 */
export function maxError(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  check(actual.length === expected.length, `maxError: expected ${expected.length} numbers, received ${actual.length}`);
  let maxDifference = 0;
  for (let i = 0; i < actual.length; i++) {
    const difference = actual[i] === expected[i] ? 0 : Math.abs(actual[i]! - expected[i]!);
    if (!(difference <= maxDifference))
      maxDifference = Number.isNaN(difference) ? Number.POSITIVE_INFINITY : difference;
  }
  return maxDifference;
}

/**
 * Returns the largest absolute value among the finite values; 0 if there is none.
 *
 * @example
 * ```ts
 * import { magnitude } from "@mosaic/conformance";
 * magnitude([1, -3, Infinity]); // => 3
 * ```
 */
export function magnitude(values: ArrayLike<number>): number {
  let largest = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i])) largest = Math.max(largest, Math.abs(values[i]!));
  }
  return largest;
}

/**
 * Checks that corresponding values differ by at most `tolerance`, which is absolute. `description` names the values in
 * the error.
 *
 * @example
 * ```ts
 * import { checkClose } from "@mosaic/conformance";
 * checkClose([1, 2], [1, 2.5], 0.1, "dq"); // throws dq: largest error 5.00e-1 exceeds 1.00e-1
 * ```
 * @throws AssertionError that states the largest error and the first element that exceeds the tolerance.
 */
export function checkClose(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  tolerance: number,
  description: string,
): void {
  const error = maxError(actual, expected);
  if (error <= tolerance) return;
  let index = 0;
  while (Math.abs(actual[index]! - expected[index]!) <= tolerance || actual[index] === expected[index]) index++;
  check(
    false,
    `${description}: largest error ${error.toExponential(2)} exceeds ${tolerance.toExponential(2)}; ` +
      `element ${index} is ${actual[index]}, expected ${expected[index]}`,
  );
}

/**
 * Checks that all values are identical. NaN is equal to NaN, and −0 to 0. `description` names the values in the error.
 *
 * @example
 * ```ts
 * import { checkEqual } from "@mosaic/conformance";
 * checkEqual([1, 2], [1, 3], "counts"); // throws counts: element 1 is 2, expected 3
 * ```
 * @throws AssertionError that names the first element that differs.
 */
export function checkEqual(actual: ArrayLike<number>, expected: ArrayLike<number>, description: string): void {
  check(
    actual.length === expected.length,
    `${description}: expected ${expected.length} numbers, received ${actual.length}`,
  );
  for (let i = 0; i < actual.length; i++) {
    if (Object.is(actual[i], expected[i]) || actual[i] === expected[i]) continue;
    check(false, `${description}: element ${i} is ${actual[i]}, expected ${expected[i]}`);
  }
}

/**
 * One test case. Any test runner can run it: `test(name, run)`. It rejects with an AssertionError if the check fails.
 */
export interface Case {
  readonly name: string;
  run(): Promise<void>;
}

/** The remedy of a failure in which memory is not released. */
export const LEAK_HINT =
  "release temporaries with scope(() => …) or using, views too, because each holds the memory of its tensor until it is disposed";
