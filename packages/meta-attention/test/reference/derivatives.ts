/** ∂f/∂v of every number of `values`, by central differences; `values` are changed and restored. */
export function derivatives(values: Float64Array, f: () => number, step = 1e-5): Float64Array {
  return values.map((value, i) => {
    values[i] = value + step;
    const more = f();
    values[i] = value - step;
    const less = f();
    values[i] = value;
    return (more - less) / (2 * step);
  });
}
