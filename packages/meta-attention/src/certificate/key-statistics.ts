import type { Tensor } from "@mosaic/core";
import { rowsOf } from "../attend/views.ts";
import type { Chunk } from "../chunks.ts";
import { reduceInto } from "../reduce.ts";

/** Numbers that bound where a chunk's keys lie: for each key head a centre [D] and a radius. */
export function keyStatisticsWidth({ numKvHeads, headDim }: { numKvHeads: number; headDim: number }): number {
  return numKvHeads * (headDim + 1);
}

/** Centre and radius of the keys k [B,Hkv,S,D] of each chunk: float32 [c,B,Hkv·D + Hkv], the centres of all heads before the radii. */
export function keyStatistics(k: Tensor, chunks: readonly Chunk[]): Tensor {
  const [batch, numHeads, , size] = k.shape as [number, number, number, number];
  const { device } = k;
  const result = device.empty([chunks.length, batch, numHeads * (size + 1)], "float32");
  for (const [i, chunk] of chunks.entries()) {
    using keys = rowsOf(k, chunk);
    using line = result.slice(0, i, i + 1);
    const row = line.strides[1]!;
    using centre = line.view({ shape: [batch, numHeads, 1, size], strides: [row, size, size, 1] });
    using radius = line.view({
      shape: [batch, numHeads, 1],
      strides: [row, 1, 1],
      offset: line.offset + numHeads * size,
    });
    writeStatistics(keys, centre, radius);
  }
  return result;
}

function writeStatistics(keys: Tensor, centre: Tensor, radius: Tensor): void {
  const { device, shape } = keys;
  const { kernels } = device;
  reduceInto("sum", centre, keys);
  kernels.scalar("mul", centre, centre, 1 / shape[2]!);
  using apart = device.empty(shape, "float32");
  using squares = device.empty(shape.slice(0, 3), "float32");
  kernels.binary("sub", apart, keys, centre);
  kernels.rowDot(squares, apart, apart);
  reduceInto("max", radius, squares);
  rootOf(radius, shape[3]!);
}

/** x ← √x, for sums x of `count` squares, and not less because squares below 2⁻¹²⁶ are rounded to 0. */
export function rootOf(x: Tensor, count: number): void {
  x.device.kernels.unary("sqrt", x, x);
  x.device.kernels.scalar("add", x, x, Math.sqrt(count) * 2 ** -63);
}
