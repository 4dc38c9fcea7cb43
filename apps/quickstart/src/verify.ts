import { setImmediate } from "node:timers/promises";
import type { Results, Settings } from "./job.ts";
import { cotangentAt, type HeadReference, type Problem, referenceAttention, sampleRows } from "./reference.ts";

/** Accuracy of one tensor of the ranks. All differences are the largest absolute differences. */
export interface Accuracy {
  /** Difference of the ranks from single-device attention, over all elements. */
  readonly difference: number;
  /**
   * Unit of errors: the difference of single-device attention from float64, over the sample. At least one rounding
   * step, see `GRADIENT_ROUNDING_STEP`.
   */
  readonly errorUnit: number;
  /** Difference of the ranks from float64, over the sample. */
  readonly error: number;
  /** The largest absolute value of the float64 result, over the sample. */
  readonly size: number;
  /** Limit of `error` in units: two and, for gradients, the allowance of `gradientRounding`. */
  readonly limit: number;
}

export interface VerificationResult {
  readonly tensors: Readonly<Record<string, Accuracy>>;
  /**
   * The largest difference between ranks and single device in units, over all tensors. Both have errors, so two correct
   * results may differ by 3 units.
   */
  readonly errorRatio: number;
  /** The ranks' largest error against float64 in units, which is checked. */
  readonly ranksErrorRatio: number;
  readonly maxError: number;
  /** Descriptions of all failed checks. Empty if there are none. */
  readonly failures: readonly string[];
  /** Number of query rows that were compared with float64. */
  readonly rows: number;
  /** Mean of e^entropy of those rows' weights: the effective number of keys that a query attends to. */
  readonly meanEffectiveKeyCount: number;
}

/** Both sets of results, and their problem. */
export interface ComparedResults {
  readonly distributedResults: Results;
  readonly singleDeviceResults: Results;
  readonly problem: Problem;
}

/** Limit of the single-device error relative to the largest element. A unit is meaningful only below this limit. */
const MAX_REFERENCE_ERROR = { float32: 1e-4, bfloat16: 2e-2, float16: 5e-3 } as const;
/** Rounding step of float32 relative to the largest element. A few values may be closer to float64 by chance. */
const GRADIENT_ROUNDING_STEP = 2 ** -23;
/**
 * Returns the additional error allowed for gradients, relative to the largest element. Gradients are computed from e^(s
 * − lse), and lse is a float32. A rank that folds keys block by block rounds it by half a step. Over all ranks, this
 * adds up to the square root of their number and, because lse is an exponent, to a relative error of |lse| half steps
 * in all gradients. Sums are also rounded by half a step, both where they are computed and where they are returned to
 * their owner. Mosaic's conformance suites allow the same.
 */
function gradientRounding(lse: number, ranks: number): number {
  return (GRADIENT_ROUNDING_STEP / 2) * (2 + lse * Math.sqrt(ranks));
}

/**
 * Number of rows with the largest difference between ranks and single device that are checked besides the even rows.
 */
const MAX_WORST_ROWS = 64;

/** Compares the ranks with single-device attention everywhere, and both with float64 on a sample of query rows. */
export async function verify(
  results: ComparedResults,
  settings: Settings,
  onProgress: (share: number) => void,
): Promise<VerificationResult> {
  const { distributedResults, singleDeviceResults, problem } = results;
  const { numHeads } = problem;
  const sampledRowIndices = sampleRows(problem.tokens);
  const rows = [
    ...new Set([
      ...sampledRowIndices,
      ...findWorstRows(distributedResults["out"]!, singleDeviceResults["out"]!, problem),
    ]),
  ];
  const errorsByTensor = new Map<string, MaxErrors>(
    Object.keys(distributedResults).map((name) => [name, { singleDeviceError: 0, ranksError: 0, exactMagnitude: 0 }]),
  );
  let meanEffectiveKeyCount = 0;
  let lse = 0;
  for (let head = 0; head < numHeads; head++) {
    // Yield to the event loop, so that Ctrl-C is handled.
    await setImmediate();
    const reference = referenceAttention(
      problem,
      head,
      rows,
      settings.backward ? cotangents(settings, rows, head) : undefined,
    );
    for (const [name, maxErrors] of errorsByTensor)
      updateMaxErrors(maxErrors, name, results, { head, rows, reference });
    lse = reference.lse.reduce(maxMagnitude, lse);
    meanEffectiveKeyCount += reference.effectiveKeyCounts.reduce((a, b) => a + b, 0) / rows.length / numHeads;
    onProgress((head + 1) / numHeads);
  }
  const tensors = Object.fromEntries(
    [...errorsByTensor].map(([name, maxErrors]) => {
      const difference = largestDifference(distributedResults[name]!, singleDeviceResults[name]!);
      const roundingAllowance = name === "out" ? 0 : gradientRounding(lse, settings.ranks);
      return [name, toAccuracy(maxErrors, difference, roundingAllowance)];
    }),
  );
  const tensorResults = Object.values(tensors);
  return {
    tensors,
    errorRatio: Math.max(...tensorResults.map(({ difference, errorUnit }) => toErrorUnits(difference, errorUnit))),
    ranksErrorRatio: Math.max(...tensorResults.map(({ error, errorUnit }) => toErrorUnits(error, errorUnit))),
    maxError: Math.max(...tensorResults.map(({ difference }) => difference)),
    failures: Object.entries(tensors).flatMap(([name, accuracy]) => checkAccuracy(name, accuracy, settings)),
    rows: rows.length,
    meanEffectiveKeyCount,
  };
}

/** Largest magnitudes over the heads so far: of the single-device error, the ranks' error and the float64 values. */
interface MaxErrors {
  singleDeviceError: number;
  ranksError: number;
  exactMagnitude: number;
}

/** `roundingAllowance` is the additional error allowed, relative to the largest element. */
function toAccuracy(
  { singleDeviceError, ranksError, exactMagnitude }: MaxErrors,
  difference: number,
  roundingAllowance: number,
): Accuracy {
  const errorUnit = Math.max(singleDeviceError, GRADIENT_ROUNDING_STEP * exactMagnitude);
  const limit = 2 + toErrorUnits(roundingAllowance * exactMagnitude, errorUnit);
  return { difference, errorUnit, error: ranksError, size: exactMagnitude, limit };
}

/** Float64 results of one head, and their query rows. */
interface ReferenceRows {
  readonly head: number;
  readonly rows: readonly number[];
  readonly reference: HeadReference;
}

/** Updates the largest errors by one head of one tensor: by the sampled rows, or by all rows for dk and dv. */
function updateMaxErrors(
  maxErrors: MaxErrors,
  name: string,
  { distributedResults, singleDeviceResults, problem }: ComparedResults,
  { head, rows, reference }: ReferenceRows,
): void {
  const { tokens, headDim } = problem;
  const isSampledTensor = name === "out" || name === "dq";
  const exactValues = reference[name as "out"];
  const numRows = isSampledTensor ? rows.length : tokens;
  for (let i = 0; i < numRows * headDim; i++) {
    const row = isSampledTensor ? rows[Math.floor(i / headDim)]! : Math.floor(i / headDim);
    const elementIndex = (head * tokens + row) * headDim + (i % headDim);
    maxErrors.singleDeviceError = maxMagnitude(
      maxErrors.singleDeviceError,
      singleDeviceResults[name]![elementIndex]! - exactValues[i]!,
    );
    maxErrors.exactMagnitude = maxMagnitude(maxErrors.exactMagnitude, exactValues[i]!);
    maxErrors.ranksError = maxMagnitude(
      maxErrors.ranksError,
      distributedResults[name]![elementIndex]! - exactValues[i]!,
    );
  }
}

function checkAccuracy(name: string, accuracy: Accuracy, { dtype }: Settings): readonly string[] {
  const { errorUnit, size, limit } = accuracy;
  const [errorUnits, differenceUnits] = [
    toErrorUnits(accuracy.error, errorUnit),
    toErrorUnits(accuracy.difference, errorUnit),
  ];
  const describeLimit = (units: number): string => `expected at most ${Number(units.toPrecision(3))}`;
  return [
    ...(errorUnits <= limit
      ? []
      : [
          `distributed ${name} differs from float64 by ${errorUnits} times the single-device error, ${describeLimit(limit)}`,
        ]),
    ...(differenceUnits <= limit + 1
      ? []
      : [
          `distributed ${name} differs from the single-device result by ${differenceUnits} times the single-device error, ${describeLimit(limit + 1)}`,
        ]),
    ...(errorUnit <= MAX_REFERENCE_ERROR[dtype] * size
      ? []
      : [
          `the single-device reference is inaccurate: ${name} differs from float64 by ${errorUnit}, expected at most ${MAX_REFERENCE_ERROR[dtype] * size}`,
        ]),
  ];
}

/**
 * Returns an error in units, rounded to three digits. Further digits would decide, with 16-bit results, whether one
 * rounding step is slightly less or more than two units.
 */
export function toErrorUnits(error: number, unit: number): number {
  return error === 0 ? 0 : Number((error / unit).toPrecision(3));
}

/** Returns dOut [rows,D] of one head. The loss reads the evenly spread rows only. */
function cotangents(settings: Settings, rows: readonly number[], head: number): Float64Array {
  const { headDim, tokens } = settings;
  const sampledRowSet = new Set(sampleRows(tokens));
  const dOut = new Float64Array(rows.length * headDim);
  rows.forEach((row, index) => {
    if (sampledRowSet.has(row))
      dOut.set(cotangentAt(settings, row).subarray(head * headDim, (head + 1) * headDim), index * headDim);
  });
  return dOut;
}

function findWorstRows(a: Float32Array, b: Float32Array, { numHeads, tokens, headDim }: Problem): readonly number[] {
  const maxRowErrors = new Float64Array(tokens);
  for (let i = 0; i < numHeads * tokens * headDim; i++) {
    const row = Math.floor(i / headDim) % tokens;
    maxRowErrors[row] = maxMagnitude(maxRowErrors[row]!, a[i]! - b[i]!);
  }
  const rowsByError = Array.from({ length: tokens }, (_, row) => row).sort(
    (x, y) => maxRowErrors[y]! - maxRowErrors[x]!,
  );
  return rowsByError.slice(0, MAX_WORST_ROWS);
}

function largestDifference(a: Float32Array, b: Float32Array): number {
  let max = 0;
  for (let i = 0; i < a.length; i++) max = maxMagnitude(max, a[i]! - b[i]!);
  return max;
}

/** Returns the larger magnitude. NaN counts as infinite. */
function maxMagnitude(maxSoFar: number, difference: number): number {
  const magnitude = Math.abs(difference);
  return Number.isNaN(magnitude) ? Number.POSITIVE_INFINITY : Math.max(maxSoFar, magnitude);
}
