import { emulatedBlas, runsOnGpu } from "./emulated.ts";
import { type Case, checkClose, deviceSuite, normals } from "@mosaic/conformance";
import type { DType, Tensor } from "@mosaic/core";
import { afterAll, describe, expect, test } from "vitest";
import { type CudaDevice, cuda, cudaSystem } from "../src/index.ts";

// Read at the first product of a process; this file has its own. On a GPU the real library is used.
if (!runsOnGpu) process.env.MOSAIC_CUBLASLT_LIBRARY ??= emulatedBlas;

const products: readonly Case[] = deviceSuite(() => cuda()).filter(({ name }) => /^(matmul|linear)/.test(name));

describe("products through cuBLASLt", () => {
  test.each(products)("$name", ({ run }) => run());

  test("finds the library", () => {
    expect(products.length).toBeGreaterThan(20);
    expect(cudaSystem().cublasLt).toMatch(/cublaslt.* 1[23]\.\d+\.\d+$/i);
  });
});

const device: CudaDevice = cuda();
const tf32Device: CudaDevice = cuda({ tf32: true });
afterAll(() => {
  device[Symbol.dispose]();
  tf32Device[Symbol.dispose]();
});

/** Returns the names of the operations that ran. "matmul" is the built-in kernel, once per launch. */
async function traceKernelNames(on: CudaDevice, body: () => void): Promise<string[]> {
  on.startTrace();
  body();
  return (await on.stopTrace()).map(({ name }) => name);
}

interface Sample {
  readonly shape: readonly number[];
  readonly dtype?: DType;
  readonly on?: CudaDevice;
}

function sample(seed: number, { shape, dtype = "float32", on = device }: Sample): Tensor {
  const x = on.empty(shape, dtype);
  on.write(x, normals(x.size, seed, dtype));
  return x;
}

const libraryKernels = ["matmul (cuBLASLt)"];
const ownKernels = ["matmul"];

test("a weight shared by a batch uses cuBLASLt, and layouts that BLAS cannot express use the built-in kernel", async () => {
  const x = sample(1, { shape: [3, 5, 4] });
  const weight = sample(2, { shape: [4, 6] });
  const out = device.empty([3, 5, 6], "float32");
  expect(await traceKernelNames(device, () => device.kernels.matmul(out, x, weight, false))).toEqual(libraryKernels);

  const everyOther = sample(3, { shape: [10, 8] })
    .slice(0, 0, 10, 2)
    .slice(1, 0, 8, 2);
  const square = device.empty([5, 5], "float32");
  const transposed = everyOther.transpose(0, 1);
  expect(await traceKernelNames(device, () => device.kernels.matmul(square, everyOther, transposed, false))).toEqual(
    ownKernels,
  );

  const bfloat16Matrix = sample(4, { shape: [4, 6], dtype: "bfloat16" });
  expect(await traceKernelNames(device, () => device.kernels.matmul(out, x, bfloat16Matrix, false))).toEqual(
    ownKernels,
  );

  const wide = device.empty([6, 6], "float32");
  const narrow = sample(5, { shape: [6, 4], dtype: "bfloat16" });
  expect(await traceKernelNames(device, () => device.kernels.matmul(wide, narrow, bfloat16Matrix, false))).toEqual(
    libraryKernels,
  );
});

test("both factors may be views of the same part of a larger tensor, one of them transposed", async () => {
  const paddedTensor = sample(6, { shape: [2, 3, 7, 9] });
  const values = await paddedTensor.read();
  for (const firstColumn of [0, 1, 2]) {
    const view = paddedTensor.slice(3, firstColumn, firstColumn + 5); // odd addresses, wide rows
    const out = device.empty([2, 3, 7, 7], "float32");
    const transposedView = view.transpose(2, 3);
    expect(await traceKernelNames(device, () => device.kernels.matmul(out, view, transposedView, false))).toEqual(
      libraryKernels,
    );
    const expected = Array.from({ length: out.size }, (_, i) => {
      const [matrix, row, column] = [Math.floor(i / 49), Math.floor(i / 7) % 7, i % 7];
      const valueAt = (line: number, k: number): number => values[(matrix * 7 + line) * 9 + firstColumn + k]!;
      return [0, 1, 2, 3, 4].reduce((sum, k) => sum + valueAt(row, k) * valueAt(column, k), 0);
    });
    checkClose(await out.read(), expected, 1e-5, `columns from ${firstColumn}`);
  }
});

test("cuBLASLt computes batches whose axes cannot be merged", async () => {
  const x = sample(7, { shape: [4, 2, 3, 5] }).permute([1, 0, 2, 3]);
  const y = sample(8, { shape: [4, 5, 2] });
  const out = device.empty([2, 4, 3, 2], "float32");
  expect(await traceKernelNames(device, () => device.kernels.matmul(out, x, y, false))).toEqual(libraryKernels);
  const [leftValues, rightValues, actual] = [await x.read(), await y.read(), await out.read()];
  const expected = Array.from(actual, (_, i) => {
    const [matrix, row, column] = [Math.floor(i / 6), Math.floor(i / 2) % 3, i % 2];
    return [0, 1, 2, 3, 4].reduce((sum, k) => {
      return sum + leftValues[(matrix * 3 + row) * 5 + k]! * rightValues[((matrix % 4) * 5 + k) * 2 + column]!;
    }, 0);
  });
  checkClose(actual, expected, 1e-5, "a permuted batch");
});

// The library has no preference for the alignment of a bias, and its kernels may load 16 bytes at a time.
test.each(["float32", "bfloat16"] as const)(
  "a bias that is not aligned to 16 bytes is not passed to cuBLASLt, %s",
  async (dtype) => {
    const [rows, columns, depth] = [8, 16, 8];
    const x = sample(11, { shape: [rows, depth], dtype });
    const weight = sample(12, { shape: [depth, columns], dtype });
    const biases = sample(13, { shape: [columns + 8], dtype });
    const [xValues, weightValues, biasValues] = [await x.read(), await weight.read(), await biases.read()];
    const out = device.empty([rows, columns], dtype);
    for (const offset of [0, 1, 8]) {
      const bias = biases.slice(0, offset, offset + columns);
      const kernelNames = await traceKernelNames(device, () =>
        device.kernels.linear(out, x, weight, { bias, activation: null, gate: null, preActivation: null }),
      );
      if (offset !== 1) expect(kernelNames).toEqual(libraryKernels);
      else expect(kernelNames).toEqual(expect.arrayContaining(["copy", ...libraryKernels]));
      const expected = Array.from({ length: out.size }, (_, i) => {
        const [row, column] = [Math.floor(i / columns), i % columns];
        let sum = biasValues[offset + column]!;
        for (let k = 0; k < depth; k++) sum += xValues[row * depth + k]! * weightValues[k * columns + column]!;
        return sum;
      });
      checkClose(await out.read(), expected, dtype === "float32" ? 1e-5 : 0.05, `a bias from element ${offset} on`);
    }
  },
);

test("float32 is multiplied in full precision unless the option tf32 is set", async () => {
  const measureError = async (on: CudaDevice): Promise<number> => {
    const x = sample(9, { shape: [256, 256], on });
    const y = sample(10, { shape: [256, 256], on });
    const out = on.empty([256, 256], "float32");
    on.kernels.matmul(out, x, y, false);
    const [a, b, c] = [await x.read(), await y.read(), await out.read()];
    return Math.max(
      ...Array.from(c, (value, i) => {
        let sum = 0;
        for (let k = 0; k < 256; k++) sum += a[Math.floor(i / 256) * 256 + k]! * b[k * 256 + (i % 256)]!;
        return Math.abs(value - sum);
      }),
    );
  };
  expect(await measureError(device)).toBeLessThan(1e-4);
  expect(await measureError(tf32Device)).toBeGreaterThan(1e-3);
  expect(await measureError(tf32Device)).toBeLessThan(0.1);
});
