// Matrices as arrays of rows, in float64. Slow and short, directly from the definitions.

export type Rows = readonly (readonly number[])[];

export const dot = (a: readonly number[], b: readonly number[]): number => a.reduce((sum, x, i) => sum + x * b[i]!, 0);
export const addVectors = (a: readonly number[], b: readonly number[]): number[] => a.map((x, i) => x + b[i]!);
export const sumValues = (a: readonly number[]): number => a.reduce((sum, x) => sum + x, 0);

/** Returns ln Σ eˣ; −Infinity for an empty array. */
export function logSumExp(values: readonly number[]): number {
  const maxValue = Math.max(...values);
  return maxValue === Number.NEGATIVE_INFINITY
    ? maxValue
    : maxValue + Math.log(sumValues(values.map((x) => Math.exp(x - maxValue))));
}

/** Returns the softmax; zeros if every score is −Infinity. */
export function softmax(scores: readonly number[]): number[] {
  const logSum = logSumExp(scores);
  return scores.map((score) => (logSum === Number.NEGATIVE_INFINITY ? 0 : Math.exp(score - logSum)));
}

/** Returns Σ weight · row. */
export function weightedSum(weights: readonly number[], rows: Rows): number[] {
  return rows[0]!.map((_, column) => rows.reduce((sum, row, i) => sum + weights[i]! * row[column]!, 0));
}

/** Returns (x − mean) / √(variance + 1e-5). */
export function normalize(row: readonly number[]): number[] {
  const mean = sumValues(row) / row.length;
  const variance = sumValues(row.map((x) => (x - mean) ** 2)) / row.length;
  return row.map((x) => (x - mean) / Math.sqrt(variance + 1e-5));
}

/** Returns values [.., width] as rows. */
export function splitRows(values: ArrayLike<number>, width: number): number[][] {
  return Array.from({ length: values.length / width }, (_, i) =>
    Array.from({ length: width }, (_, column) => values[i * width + column]!),
  );
}
