// Maximum, Gini and top-5 mass of n weights that sum to 1 are linear in the weights, given their order. The host finds the
// order; what it returns is the linear map, so that the device computes the statistics and their derivatives.

/** Numbers of statistics that need the order. */
export const orderedStatistics = 3;
const TOP = 5;

/**
 * Coefficients [B,S,3] of maximum, Gini coefficient and mass of the five largest, for weights [B,S] whose rows sum to 1.
 * Gini = Σ (2·rank − n − 1)/n · a, ranks 1 … n by rising a; equal weights in the order of their places.
 */
export function orderCoefficients(weights: Float32Array, batch: number): Float32Array {
  const n = weights.length / batch;
  const result = new Float32Array(weights.length * orderedStatistics);
  for (let b = 0; b < batch; b++) {
    const order = risingOrder(weights.subarray(b * n, (b + 1) * n));
    for (let rank = 0; rank < n; rank++) {
      const at = (b * n + order[rank]!) * orderedStatistics;
      result[at] = rank === n - 1 ? 1 : 0;
      result[at + 1] = (2 * (rank + 1) - n - 1) / n;
      result[at + 2] = rank >= n - TOP ? 1 : 0;
    }
  }
  return result;
}

/** Places of the values, smallest first. Sorts values and places packed into one number: a typed array sorts natively. */
function risingOrder(values: Float32Array): Uint32Array {
  const n = values.length;
  if (n > 2 ** 21) return Uint32Array.from(values.keys()).sort((a, b) => values[a]! - values[b]! || a - b);
  const bits = new Uint32Array(Float32Array.from(values).buffer);
  // Bits of floats ≥ 0 are in the order of the floats; 32 of value and up to 21 of place fit in 53.
  const keys = Float64Array.from({ length: n }, (_, place) => bits[place]! * 2 ** 21 + place).sort();
  return Uint32Array.from(keys, (key) => key % 2 ** 21);
}
