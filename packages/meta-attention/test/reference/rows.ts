// Matrices as arrays of rows, in float64: slow, short, and by the definition.

export type Rows = readonly (readonly number[])[];

export const dot = (a: readonly number[], b: readonly number[]): number => a.reduce((sum, x, i) => sum + x * b[i]!, 0);
export const plus = (a: readonly number[], b: readonly number[]): number[] => a.map((x, i) => x + b[i]!);
export const total = (a: readonly number[]): number => a.reduce((sum, x) => sum + x, 0);

/** ln Σ eˣ; −Infinity of nothing. */
export function logSumExp(values: readonly number[]): number {
  const most = Math.max(...values);
  return most === Number.NEGATIVE_INFINITY ? most : most + Math.log(total(values.map((x) => Math.exp(x - most))));
}

/** Zeros where every score is −Infinity. */
export function softmax(scores: readonly number[]): number[] {
  const all = logSumExp(scores);
  return scores.map((score) => (all === Number.NEGATIVE_INFINITY ? 0 : Math.exp(score - all)));
}

/** Σ weight · row. */
export function mixed(weights: readonly number[], rows: Rows): number[] {
  return rows[0]!.map((_, column) => rows.reduce((sum, row, i) => sum + weights[i]! * row[column]!, 0));
}

/** (x − mean) / √(variance + 1e-5). */
export function normalized(row: readonly number[]): number[] {
  const mean = total(row) / row.length;
  const variance = total(row.map((x) => (x - mean) ** 2)) / row.length;
  return row.map((x) => (x - mean) / Math.sqrt(variance + 1e-5));
}

/** Values [.., width] as rows. */
export function cut(values: ArrayLike<number>, width: number): number[][] {
  return Array.from({ length: values.length / width }, (_, i) =>
    Array.from({ length: width }, (_, column) => values[i * width + column]!),
  );
}
