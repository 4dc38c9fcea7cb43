// Test data and expected results. Independent of the test runner, because separate rank processes also use it.
import { type DType, type Shape, numel, type Tensor } from "@mosaic/core";
import { roundTo, type TestDevice } from "./device.ts";

/** Returns values that are exact in every dtype, and that differ by rank and position. */
export function rankValues(rank: number, count: number): Float32Array {
  return Float32Array.from({ length: count }, (_, i) => ((rank * 37 + i * 5) % 61) / 4 - 7);
}

/** Creates a tensor and writes its values in stream order. */
export function tensor(device: TestDevice, values: ArrayLike<number>, shape: Shape, dtype: DType = "float32"): Tensor {
  const x = device.empty(shape, dtype);
  device.write(x, values);
  return x;
}

/** Computes the expected bits of a reduction in rank order with float32 accumulation. */
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

/** Compares bit for bit and reports the position of the first difference. (`toEqual` of long arrays takes seconds.) */
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

/** Splits `count` into `size` unequal shares. */
export function raggedCounts(size: number, count: number): number[] {
  const boundaries = Array.from({ length: size - 1 }, (_, i) =>
    Math.floor((count * (i + 1) * (i + 1)) / (size * size)),
  );
  return [...boundaries, count].map((end, i) => end - (boundaries[i - 1] ?? 0));
}

/** Reads the tensor of every rank. Resolves to the values or the error of each. */
export function readAll(tensors: readonly Tensor[]): Promise<(Float32Array | Error)[]> {
  return Promise.all(tensors.map((x) => x.read().catch((error: Error) => error)));
}

export const nanFilled = (device: TestDevice, shape: Shape, dtype: DType = "float32"): Tensor =>
  tensor(device, new Float32Array(numel(shape)).fill(Number.NaN), shape, dtype);
