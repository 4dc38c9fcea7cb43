import type { AttentionSpeed } from "./profile.ts";

/** Time of one call of an attention kernel without a mask: `numHeads` heads of rows × keys, of size headDim. */
export interface AttentionTiming {
  readonly numHeads: number;
  readonly rows: number;
  readonly keys: number;
  readonly headDim: number;
  readonly seconds: number;
}

/** Time of a call that moved `bytes` bytes. */
export interface TransferTiming {
  readonly bytes: number;
  readonly seconds: number;
}

/**
 * Returns the speed that fits the samples with the least squares of relative errors. `operations` is 4 forward and 10
 * backward. With only one head size, halfSpeedHeadDim is 0. If samples are so noisy that more pairs take no longer, the fastest
 * one is used.
 */
export function fitAttention(
  samples: readonly AttentionTiming[],
  operations: number,
  launchSeconds: number,
): AttentionSpeed {
  const headDims = new Set(samples.map(({ headDim }) => headDim));
  const fitWithHalfDim = (halfSpeedHeadDim: number): LinearFit => {
    const rows = samples.map(({ numHeads, rows: r, keys, headDim }) => {
      const flopsPerPair = operations * (headDim + halfSpeedHeadDim) * numHeads;
      return [flopsPerPair * r * keys, flopsPerPair * r, flopsPerPair * keys];
    });
    return leastSquares(
      rows,
      samples.map(({ seconds }) => seconds - launchSeconds),
      samples.map(({ seconds }) => seconds),
    );
  };
  const halfSpeedHeadDim =
    headDims.size > 1 ? minimize((x) => fitWithHalfDim(x).error, [0, 4 * Math.max(...headDims)]) : 0;
  const [pairFactor, rowFactor, keyFactor] = fitWithHalfDim(halfSpeedHeadDim).factors as [number, number, number];
  if (pairFactor === 0) {
    const flopsPerSecond = samples.map(
      ({ numHeads, rows, keys, headDim, seconds }) =>
        (operations * (headDim + halfSpeedHeadDim) * numHeads * rows * keys) / seconds,
    );
    return { flops: Math.max(...flopsPerSecond), halfSpeedKeys: 0, halfSpeedRows: 0, halfSpeedHeadDim };
  }
  return {
    flops: 1 / pairFactor,
    halfSpeedKeys: rowFactor / pairFactor,
    halfSpeedRows: keyFactor / pairFactor,
    halfSpeedHeadDim,
  };
}

/**
 * Returns latency in seconds and bandwidth in bytes per second. If samples are so noisy that more bytes take no longer,
 * the fastest one is used.
 */
export function fitBytes(samples: readonly TransferTiming[]): { readonly latency: number; readonly bandwidth: number } {
  const { factors } = leastSquares(
    samples.map(({ bytes }) => [bytes, 1]),
    samples.map(({ seconds }) => seconds),
  );
  const [secondsPerByte, latency] = factors as [number, number];
  if (secondsPerByte > 0) return { latency, bandwidth: 1 / secondsPerByte };
  return { latency: 0, bandwidth: Math.max(...samples.map(({ bytes, seconds }) => bytes / seconds)) };
}

interface LinearFit {
  readonly factors: readonly number[];
  /** Sum of the squared relative errors. */
  readonly error: number;
}

/**
 * Returns factors ≥ 0 of the columns, whose weighted sum is nearest to the values. Errors are relative to `scales`, by
 * default to the values themselves. A factor that would be negative is 0, and the others are fitted again.
 */
export function leastSquares(
  rows: readonly (readonly number[])[],
  values: readonly number[],
  scales: readonly number[] = values,
): LinearFit {
  const weightedRows = rows.map((row, i) => row.map((x) => x / scales[i]!));
  const targets = values.map((value, i) => value / scales[i]!);
  let usedColumns = weightedRows[0]!.map((_, column) => column);
  for (;;) {
    const restrictedRows = weightedRows.map((row) => usedColumns.map((column) => row[column]!));
    const solution = solveLeastSquares(restrictedRows, targets);
    const minIndex = solution.reduce((min, x, i) => (x < solution[min]! ? i : min), 0);
    if (solution[minIndex]! < 0 && usedColumns.length > 1) {
      usedColumns = usedColumns.filter((_, i) => i !== minIndex);
      continue;
    }
    const factors = weightedRows[0]!.map((_, column) =>
      usedColumns.includes(column) ? solution[usedColumns.indexOf(column)]! : 0,
    );
    const error = weightedRows.reduce((sum, row, i) => sum + (dot(row, factors) - targets[i]!) ** 2, 0);
    return { factors, error };
  }
}

/**
 * Returns the x with A·x nearest to b: normal equations with scaled columns, Gauss–Jordan elimination with pivoting.
 */
function solveLeastSquares(a: readonly (readonly number[])[], b: readonly number[]): number[] {
  const n = a[0]!.length;
  const scale = Array.from({ length: n }, (_, i) => Math.sqrt(a.reduce((sum, row) => sum + row[i]! ** 2, 0)) || 1);
  const scaledRows = a.map((row) => row.map((x, i) => x / scale[i]!));
  const system = Array.from({ length: n }, (_, i) => [
    ...Array.from({ length: n }, (__, j) => scaledRows.reduce((sum, row) => sum + row[i]! * row[j]!, 0)),
    scaledRows.reduce((sum, row, k) => sum + row[i]! * b[k]!, 0),
  ]);
  for (let i = 0; i < n; i++) {
    const pivotIndex = system.findIndex((row, j) => j >= i && Math.abs(row[i]!) === maxAbsValue(system, i));
    [system[i], system[pivotIndex]] = [system[pivotIndex]!, system[i]!];
    const pivotValues = system[i]!;
    for (const [j, row] of system.entries()) {
      if (j === i || pivotValues[i] === 0) continue;
      const factor = row[i]! / pivotValues[i]!;
      for (let k = i; k <= n; k++) row[k]! -= factor * pivotValues[k]!;
    }
  }
  return system.map((row, i) => (row[i] === 0 ? 0 : row[n]! / row[i]!) / scale[i]!);
}

function maxAbsValue(system: readonly (readonly number[])[], column: number): number {
  return system.slice(column).reduce((max, row) => Math.max(max, Math.abs(row[column]!)), 0);
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, x, i) => sum + x * b[i]!, 0);
}

/** Returns the x that minimizes a unimodal function, by golden-section search. */
function minimize(f: (x: number) => number, [low, high]: readonly [number, number]): number {
  const goldenRatio = (Math.sqrt(5) - 1) / 2;
  let [a, b] = [low, high];
  while (b - a > 1e-4 * high) {
    const [c, d] = [b - goldenRatio * (b - a), a + goldenRatio * (b - a)];
    if (f(c) < f(d)) b = d;
    else a = c;
  }
  return (a + b) / 2;
}
