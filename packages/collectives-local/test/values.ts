// Data, and what must become of it. Independent of the test runner: processes of their own use it too.
import { type DType, type Shape, numel, type Tensor } from "@mosaic/core";
import { roundTo, type TestDevice } from "./device.ts";

/** Values that every dtype holds exactly, and that differ by rank and place. */
export function rankValues(rank: number, count: number): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => ((rank * 37 + i * 5) % 61) / 4 - 7);
}

/** A tensor written in stream order. */
export function tensor(device: TestDevice, values: ArrayLike<number>, shape: Shape, dtype: DType = "float32"): Tensor {
  const x = device.empty(shape, dtype);
  device.write(x, values);
  return x;
}

/** What a reduction in rank order with float32 accumulation must give, to the bit. */
export function computeReduction(
  inputs: readonly Float32Array[],
  op: "sum" | "mean" | "max",
  dtype: DType,
): Float32Array {
  return inputs[0]!.map((_, i) => {
    let acc = inputs[0]![i]!;
    for (const input of inputs.slice(1)) acc = op === "max" ? Math.max(acc, input[i]!) : Math.fround(acc + input[i]!);
    return roundTo(op === "mean" ? Math.fround(acc / inputs.length) : acc, dtype);
  });
}

/** Bit for bit; reports where the first difference is. (`toEqual` of long arrays takes seconds.) */
export function expectSame(actual: Float32Array, expected: Float32Array): void {
  const bytes = (x: Float32Array) => Buffer.from(x.buffer, x.byteOffset, x.byteLength);
  if (bytes(actual).equals(bytes(expected))) return;
  const firstDifference = expected.findIndex((value, i) => !Object.is(value, actual[i]));
  throw new Error(
    `${actual.length} of ${expected.length} values; at ${firstDifference}: expected ${expected[firstDifference]}, received ${actual[firstDifference]}`,
  );
}

export function concatenate(parts: readonly Float32Array[]): Float32Array {
  const result = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    result.set(part, offset);
    offset += part.length;
  }
  return result;
}

/** `count` cut into `size` shares that differ. */
export function raggedCounts(size: number, count: number): number[] {
  const boundaries = Array.from({ length: size - 1 }, (_, i) =>
    Math.floor((count * (i + 1) * (i + 1)) / (size * size)),
  );
  return [...boundaries, count].map((end, i) => end - (boundaries[i - 1] ?? 0));
}

/** The outcome of reading from every rank: its values, or its error. */
export function readAll(tensors: readonly Tensor[]): Promise<(Float32Array | Error)[]> {
  return Promise.all(tensors.map((x) => x.read().catch((error: Error) => error)));
}

export const nanFilled = (device: TestDevice, shape: Shape, dtype: DType = "float32"): Tensor =>
  tensor(device, new Float32Array(numel(shape)).fill(Number.NaN), shape, dtype);
