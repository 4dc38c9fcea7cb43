import { readFileSync } from "node:fs";
import { type DType, fromArray, full } from "@mosaic/core";
import { expect, test } from "vitest";
import { cpu } from "../src/index.ts";
import {
  dtypes,
  findMismatch,
  createGenerator,
  type Layout,
  onEveryIsa,
  allocateWithLayout,
  createSample,
} from "./sample.ts";

interface Case {
  readonly sizes: readonly [m: number, n: number, k: number];
  readonly dtype: DType;
  readonly layouts: readonly [out: Layout, a: Layout, b: Layout];
  readonly accumulate: boolean;
}

onEveryIsa("matmul", (device) => {
  const sizes = [
    [1, 1, 1],
    [5, 7, 3],
    [7, 16, 1],
    [64, 48, 64],
    [1, 70, 300],
    [70, 1, 300],
    [13, 130, 517],
    [200, 33, 1030],
    [30, 70, 2100],
    [40, 200, 530],
    [50, 90, 70],
  ] as const;

  test.each(dtypes)("computes products of any sizes and layouts in %s", async (dtype) => {
    for (const size of sizes) {
      for (const layouts of [
        ["dense", "dense", "dense"],
        ["dense", "turned", "dense"],
        ["dense", "dense", "turned"],
        ["turned", "turned", "turned"],
        ["turned", "dense", "spread"],
        ["spread", "spread", "dense"],
      ] as const) {
        for (const accumulate of [false, true]) {
          const mismatch = await multiplyOnce({ sizes: size, dtype, layouts, accumulate });
          expect(mismatch, `${size} ${layouts} ${accumulate}`).toBeUndefined();
        }
      }
    }
  });

  test.each(["float32", "bfloat16"] as const)(
    "computes products with panels as tasks, of one block of rows and of several, in %s",
    async (dtype) => {
      // More than one block of depths, a partial last panel, and more bytes of b than the L2 cache should hold.
      const depth = dtype === "float32" ? 352 : 704;
      for (const [sizes, layout] of [
        [[17, 780, 130], "dense"],
        [[17, 780, 130], "turned"],
        [[19, 780, 3 * depth], "dense"],
        [[19, 780, 3 * depth], "turned"],
        [[224, 1560, depth], "dense"],
      ] as const) {
        const layouts = ["dense", "dense", layout] as const;
        expect(await multiplyOnce({ sizes, dtype, layouts, accumulate: true }), `${sizes} ${layout}`).toBeUndefined();
      }
    },
  );

  test("computes products of a transposed matrix by many panels, and of one with columns a page apart", async () => {
    for (const sizes of [
      [200, 1600, 40],
      [1024, 20, 40],
    ] as const) {
      for (const layout of ["dense", "turned"] as const) {
        const layouts = ["dense", "turned", layout] as const;
        const mismatch = await multiplyOnce({ sizes, dtype: "float32", layouts, accumulate: true });
        expect(mismatch, `${sizes} ${layout}`).toBeUndefined();
      }
    }
  });

  async function multiplyOnce({ sizes: [m, n, k], dtype, layouts, accumulate }: Case): Promise<string | undefined> {
    const random = createGenerator(m * n + k);
    const a = createSample(device(), [m, k], { dtype, layout: layouts[1], value: random });
    const b = createSample(device(), [k, n], { dtype, layout: layouts[2], value: random });
    using out = allocateWithLayout(device(), [m, n], dtype, layouts[0]);
    device().kernels.fill(out, accumulate ? 0.5 : NaN);
    device().kernels.matmul(out, a.x, b.x, accumulate);
    const { product, magnitude } = reference(a.values, b.values, [m, n, k], accumulate ? 0.5 : 0);
    const mismatch = findMismatch(await out.read(), product, { tolerance: 1e-6, dtype, magnitude });
    for (const { x } of [a, b]) x[Symbol.dispose]();
    return mismatch;
  }

  test("broadcasts batches", async () => {
    const random = createGenerator(5);
    const shapes: (readonly [out: number[], a: number[], b: number[]])[] = [
      [
        [2, 3, 4, 5],
        [2, 3, 4, 6],
        [2, 3, 6, 5],
      ],
      [
        [2, 3, 4, 5],
        [2, 3, 4, 6],
        [6, 5],
      ],
      [
        [2, 3, 4, 5],
        [4, 6],
        [2, 1, 6, 5],
      ],
      [
        [2, 3, 4, 5],
        [1, 3, 4, 6],
        [2, 1, 6, 5],
      ],
      [
        [9, 20, 30],
        [9, 20, 40],
        [9, 40, 30],
      ],
      [
        [0, 4, 5],
        [0, 4, 6],
        [6, 5],
      ],
    ];
    for (const [shape, aShape, bShape] of shapes) {
      for (const layout of ["dense", "turned", "reversed axes"] as const) {
        const a = createSample(device(), aShape, { layout, value: random });
        const b = createSample(device(), bShape, { layout, value: random });
        using out = allocateWithLayout(device(), shape, "float32", layout);
        device().kernels.matmul(out, a.x, b.x, false);
        const actual = await out.read();
        const [m, n, k] = [shape.at(-2)!, shape.at(-1)!, aShape.at(-1)!];
        for (let batch = 0; batch * m * n < actual.length; batch++) {
          const aValues = a.values.slice(m * k * sampleMatrix(batch, shape, aShape)).slice(0, m * k);
          const bValues = b.values.slice(k * n * sampleMatrix(batch, shape, bShape)).slice(0, k * n);
          const { product, magnitude } = reference(aValues, bValues, [m, n, k], 0);
          const actualProduct = actual.slice(batch * m * n, (batch + 1) * m * n);
          expect(findMismatch(actualProduct, product, { tolerance: 1e-6, magnitude })).toBeUndefined();
        }
      }
    }
  });

  test("writes zeros for an empty sum, or keeps the output when it accumulates", async () => {
    using a = device().empty([2, 0], "float32");
    using b = device().empty([0, 3], "float32");
    const out = createSample(device(), [2, 3], { value: (i) => i });
    device().kernels.matmul(out.x, a, b, true);
    expect(Array.from(await out.x.read())).toEqual([0, 1, 2, 3, 4, 5]);
    device().kernels.matmul(out.x, a, b, false);
    expect(Array.from(await out.x.read())).toEqual([0, 0, 0, 0, 0, 0]);
  });

  test("propagates a NaN only to its row", async () => {
    const a = createSample(device(), [20, 30], { value: (i) => (i === 5 * 30 + 7 ? NaN : 1) });
    const b = createSample(device(), [30, 20], { value: () => 1 });
    using out = device().empty([20, 20], "float32");
    device().kernels.matmul(out, a.x, b.x, false);
    const actual = await out.read();
    expect(Array.from(actual, (x) => Number.isNaN(x))).toEqual(Array.from(actual, (_, i) => Math.floor(i / 20) === 5));
  });
});

test("a product of one row is exact if its depth exceeds what is packed at once", async () => {
  using device = cpu({ threads: 2 });
  const [n, k] = [2080, 4100];
  const sums = new Float32Array(n).fill(1);
  const values = new Float32Array(k * n);
  for (let d = 0; d < k; d++) {
    for (let j = 0; j < n; j++) {
      values[d * n + j] = (d + j) % 3;
      sums[j]! += (d % 5) * ((d + j) % 3); // integers, exact in float32
    }
  }
  using a = fromArray(
    device,
    Float32Array.from({ length: k }, (_, d) => d % 5),
    [1, k],
  );
  using b = fromArray(device, values, [k, n]);
  using out = full(device, [1, n], 1);
  device.kernels.matmul(out, a, b, true);
  expect(await out.read()).toEqual(sums);
});

test("a large product in 16 bits is correct in all of its strips, and retains little memory", async () => {
  using device = cpu({ threads: 2 });
  const [m, n] = [600, 60_000];
  const bytesBefore = residentBytes();
  {
    using a = fromArray(
      device,
      Float32Array.from({ length: m }, (_, i) => i % 128),
      [m, 1],
      { dtype: "bfloat16" },
    );
    using b = fromArray(
      device,
      Float32Array.from({ length: n }, (_, j) => 1 + (j % 2)),
      [1, n],
      { dtype: "bfloat16" },
    );
    using out = full(device, [m, n], 1, { dtype: "bfloat16" });
    device.kernels.matmul(out, a, b, true);
    for (const row of [0, 278, 279, 280, 557, 558, 559, 599]) {
      using line = out.slice(0, row, row + 1);
      const values = await line.read();
      const [even, odd] = [(row % 128) + 1, 2 * (row % 128) + 1].map((value) => Math.fround(value));
      expect(
        values.every((value, j) => value === (j % 2 ? odd : even)),
        `row ${row}`,
      ).toBe(true);
    }
  }
  device.trim();
  await device.stream.synchronize();
  // A float32 copy of the whole output would be 137 MiB.
  expect(residentBytes() - bytesBefore).toBeLessThan(100 * 2 ** 20);
});

function residentBytes(): number {
  return Number(/^\d+ (\d+)/.exec(readFileSync("/proc/self/statm", "utf8"))![1]) * 4096;
}

/** Returns the index of the operand's matrix that belongs to a matrix of the result. */
function sampleMatrix(batch: number, shape: readonly number[], operand: readonly number[]): number {
  let [remainingIndex, matrixIndex, stride] = [batch, 0, 1];
  for (let axis = shape.length - 3; axis >= 0; axis--) {
    const operandAxis = axis - shape.length + operand.length;
    if (operandAxis >= 0) {
      if (operand[operandAxis] !== 1) matrixIndex += (remainingIndex % shape[axis]!) * stride;
      stride *= operand[operandAxis]!;
    }
    remainingIndex = Math.floor(remainingIndex / shape[axis]!);
  }
  return matrixIndex;
}

function reference(
  a: readonly number[],
  b: readonly number[],
  [m, n, k]: readonly [number, number, number],
  start: number,
): { product: number[]; magnitude: number[] } {
  const product = new Array<number>(m * n).fill(start);
  const magnitude = new Array<number>(m * n).fill(Math.abs(start));
  for (let i = 0; i < m; i++) {
    for (let d = 0; d < k; d++) {
      for (let j = 0; j < n; j++) {
        const term = a[i * k + d]! * b[d * n + j]!;
        product[i * n + j]! += term;
        magnitude[i * n + j]! += Math.abs(term);
      }
    }
  }
  return { product, magnitude };
}

test("multiplies wide products into a strided result in strips of whole tiles", async () => {
  // Panels are tasks, rows of a are read in place, and a float32 copy of the result has less than 1024 rows. Rows that
  // are not a multiple of 32 cannot be read in place by tile registers.
  using device = cpu({ threads: 2 });
  const [rows, columns, depth] = [1024, 16_500, 64];
  const spec = { kind: "normal", mean: 0, std: 1, stream: 0 } as const;
  using a = device.empty([rows, depth], "bfloat16");
  using b = device.empty([depth, columns], "bfloat16");
  device.kernels.random(a, { ...spec, seed: 1 });
  device.kernels.random(b, { ...spec, seed: 2 });
  using dense = device.empty([rows, columns], "bfloat16");
  using memory = device.empty([rows, columns, 2], "bfloat16");
  using strided = memory.slice(2, 0, 1).reshape([rows, columns]);
  for (const out of [dense, strided]) device.kernels.matmul(out, a, b, false);
  const [expected, actual] = [await dense.read(), await strided.read()];
  expect(actual.findIndex((value, i) => value !== expected[i])).toBe(-1);
});

// Tasks are ranges of rows, or panels of columns. Some rows are fewer than the threads, or not a multiple of a tile.
test.each(["float32", "bfloat16"] as const)(
  "products in %s have the same bits for any number of threads",
  async (dtype) => {
    const [columns, depth] = [70, 600];
    for (const rows of [17, 50, 130, 193, 577]) {
      const results: Float32Array[] = [];
      for (const threads of [1, 2, 3, 7]) {
        using device = cpu({ threads });
        const random = createGenerator(rows);
        const [a, b] = [
          [rows, depth],
          [depth, columns],
        ].map((shape) => createSample(device, shape, { dtype, value: random }).x);
        for (const outDType of ["float32", dtype] as const) {
          using out = device.empty([rows, columns], outDType);
          device.kernels.matmul(out, a!, b!, false);
          results.push(await out.read());
        }
      }
      for (const [i, result] of results.entries()) expect(result).toEqual(results[i % 2]);
    }
  },
);
