import {
  attentionOracle,
  attentionOracleBackward,
  type AttentionProblem,
  checkClose,
  epsilon,
  magnitude,
  normals,
} from "@mosaic/conformance";
import type { AttentionModifiers, Device, DType, Shape, Slice, Span, Tensor } from "@mosaic/core";

/** An attention call whose rows need not be in the order of positions. */
export interface VariantCall {
  readonly problem: AttentionProblem & { readonly valueHeadDim: number };
  readonly queries: readonly Span[];
  readonly keys: readonly Span[];
  readonly mask: readonly Slice[];
  readonly sampleMasks?: readonly (readonly Slice[])[];
  readonly dtype: DType;
}

const listPositions = (spans: readonly Span[]): number[] =>
  spans.flatMap(({ start, length, step }) => Array.from({ length }, (_, i) => start + i * step));

/** Returns rows of [outer, rows, width] at the given positions. */
function selectRows(
  values: ArrayLike<number>,
  rowIndices: readonly number[],
  [rows, width]: readonly [number, number],
) {
  const outer = values.length / rows / width;
  return Float32Array.from({ length: outer * rowIndices.length * width }, (_, i) => {
    const row = Math.floor(i / width);
    return values[
      (Math.floor(row / rowIndices.length) * rows + rowIndices[row % rowIndices.length]!) * width + (i % width)
    ]!;
  });
}

/** Creates a tensor with these values on the device. */
export function write(device: Device, values: ArrayLike<number>, shape: Shape, dtype: DType = "float32"): Tensor {
  const x = device.empty(shape, dtype);
  device.write(x, Float32Array.from(values));
  return x;
}

/** Checks forward and backward on the device against float64. */
export async function checkVariant(device: Device, call: VariantCall): Promise<void> {
  const { problem, dtype, mask, sampleMasks } = call;
  const { batch, numHeads, numKvHeads, headDim, valueHeadDim, scale, queries, keys } = problem;
  const dOut = normals(batch * numHeads * queries * valueHeadDim, 7, dtype);
  const expected = { ...attentionOracle(problem), ...attentionOracleBackward(problem, dOut) };
  const [rows, columns] = [listPositions(call.queries), listPositions(call.keys)];
  const writeRows = (
    values: ArrayLike<number>,
    heads: number,
    [rowIndices, length, width]: [number[], number, number],
  ) => write(device, selectRows(values, rowIndices, [length, width]), [batch, heads, rowIndices.length, width], dtype);
  using q = writeRows(problem.q, numHeads, [rows, queries, headDim]);
  using k = writeRows(problem.k, numKvHeads, [columns, keys, headDim]);
  using v = writeRows(problem.v, numKvHeads, [columns, keys, valueHeadDim]);
  using g = writeRows(dOut, numHeads, [rows, queries, valueHeadDim]);
  const { slopes: perHead, softcap, dropout, origin } = problem.modifiers ?? {};
  using slopes = perHead && write(device, perHead, [perHead.length]);
  const modifiers: AttentionModifiers = { softcap, slopes, dropout, sampleMasks, ...(origin && { origin }) };
  const tile = { q: call.queries, k: call.keys, mask, scale, modifiers };

  const createFilled = (shape: Shape, value: number): Tensor => {
    const x = device.empty(shape, "float32");
    device.kernels.fill(x, value);
    return x;
  };
  using out = createFilled(g.shape, 0);
  using lse = createFilled(q.shape.slice(0, 3), Number.NEGATIVE_INFINITY);
  using delta = createFilled(lse.shape, 0);
  using dq = createFilled(q.shape, 0);
  using dk = createFilled(k.shape, 0);
  using dv = createFilled(v.shape, 0);
  device.kernels.attend({ out, lse }, q, { k, v }, tile);
  device.kernels.rowDot(delta, g, out);
  device.kernels.attendBackward({ dq, dk, dv }, q, { dOut: g, lse, delta }, { k, v }, tile);
  const tolerance = { float32: 64 * epsilon.float32, bfloat16: 2 ** -6, float16: 2 ** -9 }[dtype];
  for (const [name, actual, rowIndices, size] of [
    ["out", out, rows, [queries, valueHeadDim]],
    ["lse", lse, rows, [queries, 1]],
    ["dq", dq, rows, [queries, headDim]],
    ["dk", dk, columns, [keys, headDim]],
    ["dv", dv, columns, [keys, valueHeadDim]],
  ] as const) {
    const expectedRows = Float64Array.from(selectRows(expected[name], rowIndices, size));
    checkClose(await actual.read(), expectedRows, tolerance * (1 + magnitude(expectedRows)), name);
  }
}
