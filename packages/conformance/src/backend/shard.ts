import { type Device, type DType, type Layout, layoutOf, type Shape, type Span, type Tensor } from "@mosaic/core";
import type { Trial } from "./trial.ts";

/** Global positions of a list of spans, in order. */
export function listPositions(spans: readonly Span[]): number[] {
  return spans.flatMap(({ start, length, step }) => Array.from({ length }, (_, i) => start + i * step));
}

/** Returns the rows at `positions` of each matrix in a dense stack [stack, rows, width]. */
export function takeRows(
  values: ArrayLike<number>,
  positions: readonly number[],
  { rows, width }: MatrixSize,
): Float64Array {
  const numMatrices = rows * width === 0 ? 0 : values.length / (rows * width);
  const takenRows = new Float64Array(numMatrices * positions.length * width);
  for (let i = 0, offset = 0; i < numMatrices; i++) {
    for (const position of positions) {
      const sourceOffset = (i * rows + position) * width;
      for (let column = 0; column < width; column++) takenRows[offset++] = values[sourceOffset + column]!;
    }
  }
  return takenRows;
}

export interface MatrixSize {
  readonly rows: number;
  readonly width: number;
}

/** Returns the layouts of the queries and keys of a trial. */
export function trialLayouts({ mesh, axes, queries, keys }: Trial): {
  readonly queries: Layout;
  readonly keys: Layout;
} {
  return { queries: layoutOf({ mesh, axes, ...queries }), keys: layoutOf({ mesh, axes, ...keys }) };
}

/**
 * Creates a tensor [B,H,S,D] as a module does: as a view of [B,S,H,D], which is dense only where H or S is 1.
 */
export function createHeadsFirst(device: Device, values: ArrayLike<number>, shape: Shape, dtype: DType): Tensor {
  const [batch, numHeads, length, headDim] = shape as [number, number, number, number];
  using rows = device.empty([batch, length, numHeads, headDim], dtype);
  const view = rows.permute([0, 2, 1, 3]);
  device.write(view, values);
  return view;
}

/** Creates a dense float32 tensor filled with `value`. */
export function fullTensor(device: Device, shape: Shape, value: number): Tensor {
  const tensor = device.empty(shape, "float32");
  device.kernels.fill(tensor, value);
  return tensor;
}

export function concatenate(arrays: readonly Float64Array[]): Float64Array {
  return Float64Array.from(arrays.flatMap((array) => Array.from(array)));
}
