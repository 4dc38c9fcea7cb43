import type { DType } from "@mosaic/core";
import { check, magnitude } from "../check.ts";
import { epsilon } from "../oracle/numbers.ts";

/** One rank's part of a result, measured. */
export interface ResultMeasurement {
  readonly measuredError: ErrorSum;
  /** What one device's own kernel makes of the whole of the same data. */
  readonly localError: ErrorSum;
  /** Of the whole result. */
  readonly expected: ValueMagnitude;
  /** The dtype in which each rank stores its part of a sum before ranks add theirs; float32 if absent. */
  readonly partialSumDtype?: DType;
  /** The dtype to which kernels may round the weights of attention; float32 if absent. */
  readonly weightDtype?: DType;
}

/** What one rank measured of one trial. Survives JSON: ranks may be processes. */
export interface Measurement {
  readonly trial: string;
  /** By the name of the result: out, dq, … */
  readonly results: Readonly<Record<string, ResultMeasurement>>;
  /** The largest |lse|; 0 where its rounding does not show in the results. */
  readonly lse: number;
  /** A digest of what all ranks must have in common to the last bit. */
  readonly commonDigest?: string;
}

/** All ranks together make at most twice the error of one device. */
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

/** `checkMeasurements` of each trial; every rank ran all of them, in one order. */
export function checkTrials(subject: string, measurementsByRank: readonly (readonly Measurement[])[]): void {
  const counts = measurementsByRank.map(({ length }) => length);
  check(new Set(counts).size === 1, `${subject}: expected the same number of trials on all ranks, received ${counts}`);
  for (const trial of measurementsByRank[0]!.keys()) {
    const trialMeasurements = measurementsByRank.map((measurements) => measurements[trial]!);
    checkMeasurements(subject, trialMeasurements);
  }
}

/** The mean error of fewer numbers than this varies with the data by a tenth or more. */
const SMALL_SAMPLE_SIZE = 64;

/**
 * At most twice the error of the device's own kernel on the same data: in the root of the mean square, and the largest.
 *
 * A backend that folds keys in pieces must round float32 numbers once more than the kernel that sees all keys at once: `out` and
 * the sums of gradients by half a unit each, and `lse` by half a unit, which, being an exponent, is a relative error of
 * |lse| half units in everything. That is allowed on top: in full for the largest error, and over √3, the root of the mean
 * square of what rounding does, for the mean. `lse` is rounded once for each of p ranks, which adds up as √p. All this
 * matters where terms are so few that the kernel's own error is small by luck.
 *
 * Weights that are rounded to 16 bits are so relative to the maximum of a piece: over all keys the largest weight of a row is 1, without
 * an error; in pieces it may be off by half a unit, of which the result is a mean. That is allowed for the largest error, and for
 * the mean of a few numbers, such as the gradient of a sink for each head: it is as much chance as the largest.
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

// Everything here survives JSON, so that ranks may be processes.

/** How far numbers are from what they should be; sums, so that ranks can be taken together. */
export interface ErrorSum {
  readonly count: number;
  readonly sumOfSquares: number;
  readonly maxError: number;
}

/** How large numbers are. */
export interface ValueMagnitude {
  readonly mean: number;
  readonly maxMagnitude: number;
}

/** NaN, and an infinity that should not be there or is missing, count as the largest number there is. */
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

/** The errors of several ranks as one. */
export function mergeErrorSums(sums: readonly ErrorSum[]): ErrorSum {
  return {
    count: sums.reduce((total, { count }) => total + count, 0),
    sumOfSquares: sums.reduce((total, { sumOfSquares }) => Math.min(total + sumOfSquares, Number.MAX_VALUE), 0),
    maxError: Math.max(0, ...sums.map(({ maxError }) => maxError)),
  };
}

/** Root mean square. */
function rootMeanSquare({ count, sumOfSquares }: Pick<ErrorSum, "count" | "sumOfSquares">): number {
  return count === 0 ? 0 : Math.sqrt(sumOfSquares / count);
}

/** Of the finite numbers. */
export function measureMagnitude(values: Float64Array): ValueMagnitude {
  let [count, sumOfSquares] = [0, 0];
  for (const x of values) {
    if (!Number.isFinite(x)) continue;
    count++;
    sumOfSquares += x * x;
  }
  return { mean: rootMeanSquare({ count, sumOfSquares }), maxMagnitude: magnitude(values) };
}
