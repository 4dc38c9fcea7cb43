import type { DType } from "@mosaic/core";
import { check, magnitude } from "../check.ts";
import { epsilon } from "../oracle/numbers.ts";

/** Measured errors of one rank's part of a result. */
export interface ResultMeasurement {
  readonly measuredError: ErrorSum;
  /** Error of one device's own kernel on all of the same data. */
  readonly localError: ErrorSum;
  /** Magnitude of the complete result. */
  readonly expected: ValueMagnitude;
  /** Dtype in which each rank stores its partial sum before the sums of all ranks are added. float32 if absent. */
  readonly partialSumDtype?: DType;
  /** Dtype to which kernels may round the weights of attention. float32 if absent. */
  readonly weightDtype?: DType;
}

/** Measurements of one trial on one rank. Serializable as JSON, because ranks may be processes. */
export interface Measurement {
  readonly trial: string;
  /** Results by name: out, dq, … */
  readonly results: Readonly<Record<string, ResultMeasurement>>;
  /** The largest |lse|, or 0 if its rounding does not affect the results. */
  readonly lse: number;
  /** Digest of the values that must be bitwise identical on all ranks. */
  readonly commonDigest?: string;
}

/** Checks that the error of all ranks together is at most twice the error of one device. */
export function checkMeasurements(subject: string, rankMeasurements: readonly Measurement[]): void {
  const { trial, results, lse, commonDigest } = rankMeasurements[0]!;
  for (const [rank, otherMeasurement] of rankMeasurements.entries()) {
    check(
      otherMeasurement.trial === trial,
      `${subject}: expected the same trial on all ranks, received ${trial} and ${otherMeasurement.trial}`,
    );
    check(
      otherMeasurement.commonDigest === commonDigest,
      `${subject}, ${trial}: expected the parameter gradients of rank 0 (digest ${commonDigest}) on rank ${rank}, received digest ${otherMeasurement.commonDigest}`,
    );
  }
  for (const [name, measurement] of Object.entries(results)) {
    const mergedError = mergeErrorSums(rankMeasurements.map((rank) => rank.results[name]!.measuredError));
    checkErrorLimits(
      { ...measurement, measuredError: mergedError },
      lse * Math.sqrt(rankMeasurements.length),
      `${subject}, ${trial}: ${name}`,
    );
  }
}

/** Calls `checkMeasurements` for each trial. Every rank must have run all trials, in the same order. */
export function checkTrials(subject: string, measurementsByRank: readonly (readonly Measurement[])[]): void {
  const counts = measurementsByRank.map(({ length }) => length);
  check(new Set(counts).size === 1, `${subject}: expected the same number of trials on all ranks, received ${counts}`);
  for (const trial of measurementsByRank[0]!.keys()) {
    const trialMeasurements = measurementsByRank.map((measurements) => measurements[trial]!);
    checkMeasurements(subject, trialMeasurements);
  }
}

/** Below this number of values, the mean error varies with the data by a tenth or more. */
const SMALL_SAMPLE_SIZE = 64;

/**
 * Checks that the error is at most twice that of the device's own kernel on the same data, both in the root mean square
 * and in the largest error.
 *
 * A backend that folds keys in blocks must round float32 numbers once more than a kernel that processes all keys at
 * once. `out` and the sums of gradients are rounded by half a unit each. `lse` is also rounded by half a unit. Because
 * it is an exponent, this causes a relative error of |lse| half units in all results. The limits allow for these
 * errors: in full for the largest error, and divided by √3 for the root mean square, because the root mean square of a
 * rounding error is its maximum divided by √3. `lse` is rounded once for each of p ranks, which adds up to a factor of
 * √p. All this matters where there are so few terms that the kernel's own error is small by chance.
 *
 * Weights that are rounded to 16 bits are relative to the maximum of a block. Over all keys, the largest weight of a
 * row is 1, without an error. In a block it may be off by half a unit, and the result is a mean of such weights. The
 * limits allow for this in the largest error, and in the root mean square of a few numbers, such as the gradient of a
 * sink for each head, which depends on chance as much as the largest error does.
 */
function checkErrorLimits(measurement: ResultMeasurement, lse: number, description: string): void {
  const {
    measuredError: mergedError,
    localError,
    expected,
    partialSumDtype = "float32",
    weightDtype = "float32",
  } = measurement;
  const rounding = epsilon.float32 * (1 + lse) + epsilon[partialSumDtype];
  const weightEpsilon = weightDtype === "float32" ? 0 : epsilon[weightDtype];
  const meanRounding = rounding + (localError.count < SMALL_SAMPLE_SIZE ? weightEpsilon : 0);
  const errorsAndLimits = {
    "root mean square": [
      rootMeanSquare(mergedError),
      2 * rootMeanSquare(localError) + (meanRounding / Math.sqrt(3)) * expected.mean,
    ],
    largest: [mergedError.maxError, 2 * localError.maxError + (rounding + weightEpsilon) * expected.maxMagnitude],
  } as const;
  for (const [name, [error, limit]] of Object.entries(errorsAndLimits)) {
    check(
      error <= limit,
      `${description}: ${name} error ${error.toExponential(2)} exceeds ${limit.toExponential(2)}; ` +
        `single-device error: root mean square ${rootMeanSquare(localError).toExponential(2)}, largest ${localError.maxError.toExponential(2)}`,
    );
  }
}

// All types here are serializable as JSON, because ranks may be processes.

/** Errors of values, as sums, so that the errors of several ranks can be merged. */
export interface ErrorSum {
  readonly count: number;
  readonly sumOfSquares: number;
  readonly maxError: number;
}

/** Magnitude of values: the root mean square and the largest absolute value. */
export interface ValueMagnitude {
  readonly mean: number;
  readonly maxMagnitude: number;
}

/**
 * Returns the errors of `actual`. A NaN, or an unexpected or missing infinity, counts as the largest finite number.
 *
 * @example
 * ```ts
 * import { computeErrorSum } from "@mosaic/conformance";
 * computeErrorSum([1, 2], [1, 4]); // => { count: 2, sumOfSquares: 4, maxError: 2 }
 * ```
 * @throws AssertionError for lists of different lengths.
 */
export function computeErrorSum(actual: ArrayLike<number>, expected: ArrayLike<number>): ErrorSum {
  check(
    actual.length === expected.length,
    `computeErrorSum: expected ${expected.length} numbers, received ${actual.length}`,
  );
  let sumOfSquares = 0;
  let maxError = 0;
  for (let i = 0; i < actual.length; i++) {
    const difference = actual[i] === expected[i] ? 0 : Math.abs(actual[i]! - expected[i]!);
    const error = difference < Number.MAX_VALUE ? difference : Number.MAX_VALUE;
    sumOfSquares = Math.min(sumOfSquares + error * error, Number.MAX_VALUE);
    maxError = Math.max(maxError, error);
  }
  return { count: actual.length, sumOfSquares, maxError };
}

/**
 * Merges the errors of several ranks.
 *
 * @example
 * ```ts
 * import { computeErrorSum, mergeErrorSums } from "@mosaic/conformance";
 * const errors = [computeErrorSum([1], [2]), computeErrorSum([1], [4])];
 * mergeErrorSums(errors); // => { count: 2, sumOfSquares: 10, maxError: 3 }
 * ```
 */
export function mergeErrorSums(sums: readonly ErrorSum[]): ErrorSum {
  return {
    count: sums.reduce((total, { count }) => total + count, 0),
    sumOfSquares: sums.reduce((total, { sumOfSquares }) => Math.min(total + sumOfSquares, Number.MAX_VALUE), 0),
    maxError: Math.max(0, ...sums.map(({ maxError }) => maxError)),
  };
}

function rootMeanSquare({ count, sumOfSquares }: Pick<ErrorSum, "count" | "sumOfSquares">): number {
  return count === 0 ? 0 : Math.sqrt(sumOfSquares / count);
}

/**
 * Returns the magnitude of the finite values.
 *
 * @example
 * ```ts
 * import { measureMagnitude } from "@mosaic/conformance";
 * measureMagnitude(Float64Array.of(3, -4, Infinity)); // => { mean: 3.5355339, maxMagnitude: 4 }
 * ```
 */
export function measureMagnitude(values: Float64Array): ValueMagnitude {
  let [count, sumOfSquares] = [0, 0];
  for (const x of values) {
    if (!Number.isFinite(x)) continue;
    count++;
    sumOfSquares += x * x;
  }
  return { mean: rootMeanSquare({ count, sumOfSquares }), maxMagnitude: magnitude(values) };
}
