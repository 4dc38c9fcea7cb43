/** Returns ∂f/∂v for every element of `values`, by central differences. `values` is modified and restored. */
export function computeDerivatives(values: Float64Array, f: () => number, step = 1e-5): Float64Array {
  return values.map((value, i) => {
    values[i] = value + step;
    const higher = f();
    values[i] = value - step;
    const lower = f();
    values[i] = value;
    return (higher - lower) / (2 * step);
  });
}
