import type { Device, DType } from "@mosaic/core";
import type { Case } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { checkRounded, storageOrders, type MakeDevice, withDevice, tensorFrom, allocate } from "./tensors.ts";

const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];

/** Returns cases of reduce, rowDot and softmax. */
export function reductionCases(make: MakeDevice): Case[] {
  return dtypes.flatMap((dtype) => [
    { name: `reduce, ${dtype}`, run: () => withDevice(make, (device) => checkReduce(device, dtype)) },
    {
      name: `reduce of many elements, ${dtype}`,
      run: () => withDevice(make, (device) => checkLongReduce(device, dtype)),
    },
    { name: `rowDot, ${dtype}`, run: () => withDevice(make, (device) => checkRowDot(device, dtype)) },
    { name: `softmax, ${dtype}`, run: () => withDevice(make, (device) => checkSoftmax(device, dtype)) },
  ]);
}

async function checkReduce(device: Device, dtype: DType): Promise<void> {
  const shape = [3, 5, 7];
  const values = normals(105, 1, dtype);
  for (const outShape of [
    [1, 1, 1],
    [3, 5, 1],
    [1, 5, 7],
    [3, 1, 7],
    [1, 5, 1],
    [3, 5, 7],
  ]) {
    const outIndex = (i: number) => {
      const index = [Math.floor(i / 35), Math.floor(i / 7) % 5, i % 7];
      return index.reduce((flatIndex, j, axis) => flatIndex * outShape[axis]! + (outShape[axis] === 1 ? 0 : j), 0);
    };
    const length = outShape.reduce((a, b) => a * b, 1);
    for (const kind of ["sum", "max"] as const) {
      const expected = new Float64Array(length).fill(kind === "sum" ? 0 : Number.NEGATIVE_INFINITY);
      for (const [i, x] of values.entries()) {
        expected[outIndex(i)] = kind === "sum" ? expected[outIndex(i)]! + x : Math.max(expected[outIndex(i)]!, x);
      }
      for (const storageOrder of storageOrders) {
        using x = tensorFrom(device, values, { shape, dtype, storageOrder });
        using out = allocate(device, outShape, { dtype, storageOrder });
        device.kernels.reduce(kind, out, x);
        const scale = kind === "sum" ? 105 / length : 0;
        checkRounded(await out.read(), expected, {
          dtype,
          scale,
          description: `${kind} to ${outShape.join("×")}, ${storageOrder}`,
        });
      }
    }
  }
}

/** Checks lengths at which a device may split rows and columns among many threads, into unequal parts. */
async function checkLongReduce(device: Device, dtype: DType): Promise<void> {
  const [rows, columns] = [260, 44];
  const values = normals(rows * columns, 2, dtype);
  for (const outShape of [
    [1, 1],
    [rows, 1],
    [1, columns],
  ]) {
    const [rowStride, columnStride] = [outShape[0] === 1 ? 0 : outShape[1]!, outShape[1] === 1 ? 0 : 1];
    for (const kind of ["sum", "max"] as const) {
      const expected = new Float64Array(outShape[0]! * outShape[1]!).fill(
        kind === "sum" ? 0 : Number.NEGATIVE_INFINITY,
      );
      for (const [i, x] of values.entries()) {
        const outIndex = Math.floor(i / columns) * rowStride + (i % columns) * columnStride;
        expected[outIndex] = kind === "sum" ? expected[outIndex]! + x : Math.max(expected[outIndex]!, x);
      }
      using x = tensorFrom(device, values, { shape: [rows, columns], dtype });
      using out = allocate(device, outShape, { dtype });
      device.kernels.reduce(kind, out, x);
      const scale = kind === "sum" ? values.length / expected.length : 0;
      checkRounded(await out.read(), expected, { dtype, scale, description: `${kind} to ${outShape.join("×")}` });
    }
  }
}

async function checkRowDot(device: Device, dtype: DType): Promise<void> {
  const shape = [2, 3, 5, 9];
  const a = normals(270, 2, dtype);
  const b = normals(270, 3);
  const expected = Float64Array.from({ length: 30 }, (_, row) =>
    a.subarray(9 * row, 9 * row + 9).reduce((sum, x, i) => sum + x * b[9 * row + i]!, 0),
  );
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, a, { shape, dtype, storageOrder });
    using y = tensorFrom(device, b, { shape });
    using out = allocate(device, shape.slice(0, 3));
    device.kernels.rowDot(out, x, y);
    checkRounded(await out.read(), expected, { scale: 9, description: `rowDot ${storageOrder}` });
  }
}

async function checkSoftmax(device: Device, dtype: DType): Promise<void> {
  const [rows, width] = [6, 19];
  const values = normals(rows * width, 4, dtype).map((x) => 8 * x);
  values.fill(Number.NEGATIVE_INFINITY, 0, width); // a row in which every score is −Infinity
  values[width] = Number.NEGATIVE_INFINITY;
  const dOutValues = normals(rows * width, 5, dtype);
  const out = new Float64Array(rows * width);
  for (let row = 1; row < rows; row++) {
    const rowValues = values.subarray(row * width, (row + 1) * width);
    const max = Math.max(...rowValues);
    const sum = rowValues.reduce((total, x) => total + Math.exp(x - max), 0);
    out.set(
      rowValues.map((x) => Math.exp(x - max) / sum),
      row * width,
    );
  }
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, values, { shape: [2, 3, width], dtype, storageOrder });
    using y = allocate(device, [2, 3, width], { dtype, storageOrder });
    device.kernels.softmax(y, x);
    checkRounded(await y.read(), out, { dtype, roundings: 64, description: `softmax ${storageOrder}` });

    const storedOut = Float64Array.from(await y.read());
    using dOut = tensorFrom(device, dOutValues, { shape: [2, 3, width], dtype, storageOrder });
    using dx = allocate(device, [2, 3, width], { dtype, storageOrder });
    device.kernels.softmaxBackward(dx, y, dOut);
    const expected = new Float64Array(rows * width);
    for (let row = 0; row < rows; row++) {
      const rowOffset = row * width;
      let dotProduct = 0;
      for (let i = rowOffset; i < rowOffset + width; i++) dotProduct += storedOut[i]! * dOutValues[i]!;
      for (let i = rowOffset; i < rowOffset + width; i++) expected[i] = storedOut[i]! * (dOutValues[i]! - dotProduct);
    }
    checkRounded(await dx.read(), expected, { dtype, scale: 4, description: `softmax backward ${storageOrder}` });
  }
}
