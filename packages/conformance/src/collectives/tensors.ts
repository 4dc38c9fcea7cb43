import type { Context, DType, ProcessGroup, Shape, Tensor } from "@mosaic/core";
import { checkEqual } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { runOnWorld, type MakeWorld } from "../world.ts";

export const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];

/** Runs `body` on every rank of a fresh world. */
export async function runOnRanks(
  makeWorld: MakeWorld,
  size: number,
  body: (ctx: Context) => Promise<void>,
): Promise<void> {
  await runOnWorld(makeWorld, { size }, body);
}

/** Returns the values of a rank: different on every rank, representable in the dtype. */
export function rankValues(rank: number, length: number, dtype: DType): Float64Array {
  return normals(length, 1000 + rank, dtype);
}

export function makeTensor(group: ProcessGroup, values: ArrayLike<number>, { dtype, shape }: TensorSpec): Tensor {
  const tensor = group.device.empty(shape ?? [values.length], dtype);
  group.device.write(tensor, values);
  return tensor;
}

interface TensorSpec {
  readonly dtype: DType;
  readonly shape?: Shape;
}

/** Creates a receive buffer filled with NaN, so that a check detects values that were not received. */
export function makeReceiveBuffer(group: ProcessGroup, length: number, dtype: DType): Tensor {
  const tensor = group.device.empty([length], dtype);
  group.device.kernels.fill(tensor, Number.NaN);
  return tensor;
}

export async function checkTensorValues(
  tensor: Tensor,
  expected: ArrayLike<number>,
  description: string,
): Promise<void> {
  checkEqual(await tensor.read(), expected, description);
}

/** Returns the ranks of a group, from 0. */
export function groupRanks(group: ProcessGroup): number[] {
  return Array.from({ length: group.size }, (_, rank) => rank);
}

/** Returns uneven counts. With several ranks, some counts are 0. */
export function unevenCounts(size: number): number[] {
  return Array.from({ length: size }, (_, rank) => (size > 1 && rank % 3 === 1 ? 0 : 3 * rank + 2));
}

export function sumOfCounts(counts: readonly number[]): number {
  return counts.reduce((sum, count) => sum + count, 0);
}
