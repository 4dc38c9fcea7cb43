import type { ReduceKind } from "@mosaic/core";
import { expect, test } from "vitest";
import {
  dtypes,
  findMismatch,
  createGenerator,
  layouts,
  onEveryIsa,
  allocateWithLayout,
  createSample,
} from "./sample.ts";

const cases: (readonly [shape: number[], axes: number[]])[] = [
  [[7], [0]],
  [[5, 9], [0]],
  [[5, 9], [1]],
  [[5, 9], []],
  [[300, 100], [0]],
  [
    [300, 100],
    [0, 1],
  ],
  [
    [3, 50, 7, 11],
    [1, 3],
  ],
  [
    [3, 50, 7, 11],
    [0, 2],
  ],
  [[4, 1, 5], [0]],
  [[2, 60_000], [1]],
  [[60_000, 2], [0]],
  [[3, 0, 2], [1]],
];

onEveryIsa("reduce", (device) => {
  test.each(["sum", "max"] as const)("computes %s over any axes in any layout", async (kind) => {
    const random = createGenerator(7);
    for (const [shape, axes] of cases) {
      const isLarge = shape.includes(60_000);
      for (const layout of isLarge ? (["dense"] as const) : layouts) {
        for (const dtype of isLarge ? (["float32"] as const) : dtypes) {
          const x = createSample(device(), shape, { dtype, layout, value: random });
          const keptShape = shape.map((length, axis) => (axes.includes(axis) ? 1 : length));
          using out = allocateWithLayout(device(), keptShape, "float32", layout);
          device().kernels.reduce(kind, out, x.x);
          const { result, magnitude } = reference(kind, x.values, shape, axes);
          const mismatch = findMismatch(await out.read(), result, { tolerance: 2e-7, magnitude });
          expect(mismatch, `${kind} ${shape} over ${axes}, ${layout} ${dtype}`).toBeUndefined();
          x.x[Symbol.dispose]();
        }
      }
    }
  });

  test("stays accurate over a million equal terms", async () => {
    using x = device().empty([1_000_000], "float32");
    device().kernels.fill(x, 0.1);
    using out = device().empty([1], "float32");
    device().kernels.reduce("sum", out, x);
    const [sum] = await out.read();
    expect(Math.abs(sum! / (1e6 * Math.fround(0.1)) - 1)).toBeLessThan(2e-7);
  });

  test("max propagates NaN", async () => {
    const x = createSample(device(), [3, 40], { value: (i) => (i === 50 ? NaN : i) });
    for (const shape of [
      [3, 1],
      [1, 40],
    ]) {
      using out = device().empty(shape, "float32");
      device().kernels.reduce("max", out, x.x);
      const at = shape[1] === 1 ? 1 : 10;
      expect(Array.from(await out.read(), (value, i) => Number.isNaN(value) === (i === at))).not.toContain(false);
    }
  });
});

function reference(
  kind: ReduceKind,
  values: readonly number[],
  shape: readonly number[],
  axes: readonly number[],
): { result: number[]; magnitude: number[] } {
  const size = shape.reduce((product, length, axis) => (axes.includes(axis) ? product : product * length), 1);
  const result = new Array<number>(size).fill(kind === "sum" ? 0 : -Infinity);
  const magnitude = new Array<number>(size).fill(0);
  for (const [index, value] of values.entries()) {
    let [remainingIndex, offset, stride] = [index, 0, 1];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      if (!axes.includes(axis)) {
        offset += (remainingIndex % shape[axis]!) * stride;
        stride *= shape[axis]!;
      }
      remainingIndex = Math.floor(remainingIndex / shape[axis]!);
    }
    result[offset] = kind === "sum" ? result[offset]! + value : Math.max(result[offset]!, value);
    magnitude[offset]! += Math.abs(value);
  }
  return { result, magnitude };
}
