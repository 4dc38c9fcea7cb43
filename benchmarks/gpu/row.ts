/** One row of attention: its scaled scores, and the keys and values that it sees, row-major. */
export interface Row {
  readonly scores: readonly number[];
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly dOut: Float32Array;
  readonly d: number;
}

/** out of the row, by the definition. */
export function outRow(row: Row): Float64Array {
  return combined(weightsOf(row), row.v, row.d);
}

/** dq of the row: scale · Σ pⱼ (dpⱼ − Σ p dp) kⱼ. */
export function gradientRow(row: Row): Float64Array {
  const weights = weightsOf(row);
  const dWeights = weights.map((_, key) => {
    let sum = 0;
    for (let c = 0; c < row.d; c++) sum += row.dOut[c]! * row.v[key * row.d + c]!;
    return sum;
  });
  const delta = weights.reduce((sum, weight, key) => sum + weight * dWeights[key]!, 0);
  const dScores = weights.map((weight, key) => weight * (dWeights[key]! - delta) * row.d ** -0.5);
  return combined(dScores, row.k, row.d);
}

/** ‖x − ref‖ / ‖ref‖; NaN if anything is NaN. */
export function distance(x: ArrayLike<number>, ref: ArrayLike<number>): number {
  if (x.length !== ref.length) throw new Error(`${x.length} numbers against ${ref.length}`);
  let [difference, size] = [0, 0];
  for (let i = 0; i < ref.length; i++) {
    difference += (x[i]! - ref[i]!) ** 2;
    size += ref[i]! ** 2;
  }
  return Math.sqrt(difference / size);
}

function weightsOf({ scores }: Row): number[] {
  const max = scores.reduce((largest, score) => Math.max(largest, score), -Infinity);
  const exps = scores.map((score) => Math.exp(score - max));
  const sum = exps.reduce((total, x) => total + x, 0);
  return exps.map((x) => x / sum);
}

function combined(weights: readonly number[], rows: Float32Array, d: number): Float64Array {
  const out = new Float64Array(d);
  for (const [key, weight] of weights.entries()) {
    for (let c = 0; c < d; c++) out[c] = out[c]! + weight * rows[key * d + c]!;
  }
  return out;
}
