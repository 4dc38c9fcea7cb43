/**
 * Computes the standard normal distribution function in float64: a series near 0, a continued fraction in the tails.
 */
export function normalCdf(x: number): number {
  const z = Math.abs(x) / Math.SQRT2;
  const tail = z < 2 ? 0.5 - seriesOfErf(z) / 2 : (Math.exp(-z * z) / Math.sqrt(Math.PI) / fractionOfErfc(z)) * 0.5;
  return x < 0 ? tail : 1 - tail;
}

function seriesOfErf(z: number): number {
  let [sum, term] = [z, z];
  for (let n = 1; n < 100; n++) {
    term *= (-z * z) / n;
    sum += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}

function fractionOfErfc(z: number): number {
  let fraction = z;
  for (let k = 100; k > 0; k--) fraction = z + k / 2 / fraction;
  return fraction;
}
