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

const lengths = [1, 7, 64, 1000, 5000];

onEveryIsa("softmax and rowDot", (device) => {
  test.each(dtypes)("softmax computes rows in %s forward and backward", async (dtype) => {
    const random = createGenerator(11);
    for (const n of lengths) {
      for (const layout of n > 100 ? (["dense"] as const) : layouts) {
        const x = createSample(device(), [2, 3, n], {
          dtype,
          layout,
          value: (i) => (Math.floor(i / n) === 4 || i === 0 ? -Infinity : random() * 5),
        });
        const dOut = createSample(device(), [2, 3, n], { dtype, layout, value: random });
        using out = allocateWithLayout(device(), [2, 3, n], "float32", layout);
        using dx = allocateWithLayout(device(), [2, 3, n], dtype, layout);
        device().kernels.softmax(out, x.x);
        device().kernels.softmaxBackward(dx, out, dOut.x);
        const y = softmax(x.values, n);
        expect(findMismatch(await out.read(), y, { tolerance: 3e-6 }), `${n} ${layout}`).toBeUndefined();
        const { gradient, magnitude } = softmaxBackward(y, dOut.values, n);
        const mismatch = findMismatch(await dx.read(), gradient, { tolerance: 3e-6, dtype, magnitude });
        expect(mismatch, `${n} ${layout}`).toBeUndefined();
      }
    }
  });

  test("rowDot writes outputs with and without a last axis", async () => {
    const random = createGenerator(12);
    for (const n of lengths) {
      const a = createSample(device(), [2, 3, n], { dtype: "bfloat16", value: random });
      const b = createSample(device(), [2, 3, n], { layout: "turned", value: random });
      const terms = a.values.map((value, i) => value * b.values[i]!);
      const sums = Array.from({ length: 6 }, (_, row) => sum(terms.slice(row * n, (row + 1) * n)));
      const magnitude = Array.from({ length: 6 }, (_, row) => sum(terms.slice(row * n, (row + 1) * n).map(Math.abs)));
      for (const shape of [
        [2, 3],
        [2, 3, 1],
      ]) {
        using out = device().empty(shape, "float32");
        device().kernels.rowDot(out, a.x, b.x);
        expect(findMismatch(await out.read(), sums, { tolerance: 5e-7, magnitude })).toBeUndefined();
      }
    }
  });
});

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

function softmax(values: readonly number[], n: number): number[] {
  return rows(values, n).flatMap((row) => {
    const maxValue = Math.max(...row);
    const weights = row.map((x) => (maxValue === -Infinity ? 0 : Math.exp(x - maxValue)));
    const total = sum(weights);
    return weights.map((weight) => (total === 0 ? 0 : weight / total));
  });
}

function softmaxBackward(
  y: readonly number[],
  dOut: readonly number[],
  n: number,
): { gradient: number[]; magnitude: number[] } {
  const dots = rows(y, n).map((row, r) => sum(row.map((value, i) => value * dOut[r * n + i]!)));
  const gradient = y.map((value, i) => value * (dOut[i]! - dots[Math.floor(i / n)]!));
  return { gradient, magnitude: y.map((value) => value * 2) };
}

function rows(values: readonly number[], n: number): number[][] {
  return Array.from({ length: values.length / n }, (_, row) => values.slice(row * n, (row + 1) * n));
}
