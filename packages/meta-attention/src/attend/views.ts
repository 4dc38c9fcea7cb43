import type { Tensor } from "@mosaic/core";
import type { Chunk } from "../chunks.ts";

// Looks at memory, without history: what kernels are given.

/** Part of [B,S,parts·H·D] as heads [B,H,S,D]. */
export function headsOf(x: Tensor, part: number, { numHeads, headDim }: { numHeads: number; headDim: number }): Tensor {
  const [batch, rows] = x.shape as [number, number];
  const [whole, row, one] = x.strides as [number, number, number];
  return x.view({
    shape: [batch, numHeads, rows, headDim],
    strides: [whole, headDim * one, row, one],
    offset: x.offset + part * numHeads * headDim * one,
  });
}

/** Rows of a chunk, and batch elements [b0, b1), of [B,H,S] or [B,H,S,D]. */
export function rowsOf(
  x: Tensor,
  { offset, length }: Pick<Chunk, "offset" | "length">,
  b0 = 0,
  b1: number = x.shape[0]!,
): Tensor {
  return x.view({
    shape: x.shape.with(0, b1 - b0).with(2, length),
    offset: x.offset + b0 * x.strides[0]! + offset * x.strides[2]!,
  });
}

/** Numbers (b, i, j) for b in [b0, b1) of [B,c,N], shaped to broadcast over [b1 − b0, …] of so many axes. */
export function pairOf(
  x: Tensor,
  { b0, b1, i, j }: { b0: number; b1: number; i: number; j: number },
  axes: number,
): Tensor {
  const [batch, query, chunk] = x.strides as [number, number, number];
  return x.view({
    shape: [b1 - b0, ...new Array<number>(axes - 1).fill(1)],
    strides: [batch, ...new Array<number>(axes - 1).fill(1)],
    offset: x.offset + b0 * batch + i * query + j * chunk,
  });
}

/** float32 zeros. */
export function zerosLike(x: Tensor): Tensor {
  const zeros = x.device.empty(x.shape, "float32");
  x.device.kernels.fill(zeros, 0);
  return zeros;
}

/** float32 zeros of the shape of heads [B,H,S,D], in memory as [B,S,H,D], so that merging the heads is a view. */
export function headsOfZeros({ device, shape }: Tensor): Tensor {
  const [batch, numHeads, rows, size] = shape as [number, number, number, number];
  using memory = device.empty([batch, rows, numHeads, size], "float32");
  device.kernels.fill(memory, 0);
  return memory.permute([0, 2, 1, 3]);
}

/** x rounded to a dtype, in memory laid out the same way; takes x. */
export function rounded(x: Tensor, dtype: Tensor["dtype"]): Tensor {
  if (x.dtype === dtype) return x;
  using exact = x;
  const [batch, numHeads, rows, size] = x.shape as [number, number, number, number];
  using memory = x.device.empty([batch, rows, numHeads, size], dtype);
  const out = memory.permute([0, 2, 1, 3]);
  x.device.kernels.copy(out, exact);
  return out;
}
