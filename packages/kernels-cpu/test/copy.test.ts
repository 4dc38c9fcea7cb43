import { expect, test } from "vitest";
import {
  dtypes,
  findMismatch,
  createGenerator,
  layouts,
  onEveryIsa,
  allocateWithLayout,
  roundTo,
  createSample,
} from "./sample.ts";

onEveryIsa("copy and fill", (device) => {
  const shapes = [[], [1], [7], [0], [3, 0, 2], [5, 9], [64, 64], [33, 70], [2, 3, 5, 7], [2, 40, 3, 64]];

  test.each(dtypes)("copies %s of any layout to every dtype and layout", async (dtype) => {
    const random = createGenerator(1);
    for (const shape of shapes) {
      for (const layout of layouts) {
        const { x, values } = createSample(device(), shape, { dtype, layout, value: () => random() * 100 });
        expect(findMismatch(await x.read(), values, { tolerance: 0 })).toBeUndefined();
        for (const targetDType of dtypes) {
          for (const targetLayout of layouts) {
            using out = allocateWithLayout(device(), shape, targetDType, targetLayout);
            device().kernels.copy(out, x);
            const expected = values.map((value) => roundTo(value, targetDType));
            expect(
              findMismatch(await out.read(), expected, { tolerance: 0 }),
              `${shape} ${layout} ${targetLayout}`,
            ).toBeUndefined();
          }
        }
        x[Symbol.dispose]();
      }
    }
  });

  test("copies large tensors of any layout", async () => {
    for (const shape of [[70_001], [300, 200]]) {
      for (const layout of layouts) {
        const { x, values } = createSample(device(), shape, { value: (i) => i });
        using out = allocateWithLayout(device(), shape, "bfloat16", layout);
        device().kernels.copy(out, x);
        const expected = values.map((value) => roundTo(value, "bfloat16"));
        expect(findMismatch(await out.read(), expected, { tolerance: 0 })).toBeUndefined();
        x[Symbol.dispose]();
      }
    }
  });

  test("permutes [B,S,H,D] to [B,H,S,D]", async () => {
    const [b, s, h, d] = [2, 37, 3, 64];
    const { x, values } = createSample(device(), [b, s, h, d], { value: (i) => i });
    using out = device().empty([b, h, s, d], "float32");
    device().kernels.copy(out, x.permute([0, 2, 1, 3]));
    const actual = await out.read();
    const expected = Array.from(actual, (_, i) => {
      const [l, k, j, n] = [i % d, Math.floor(i / d) % s, Math.floor(i / d / s) % h, Math.floor(i / d / s / h)];
      return values[((n * s + k) * h + j) * d + l];
    });
    expect(Array.from(actual)).toEqual(expected);
  });

  test("broadcasts", async () => {
    const { x } = createSample(device(), [3, 1], { value: (i) => i + 1 });
    using out = device().empty([2, 3, 2], "bfloat16");
    device().kernels.copy(out, x);
    expect(Array.from(await out.read())).toEqual([1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3]);
  });

  test("rounds to nearest even, and keeps infinities and NaN", async () => {
    const cases = [1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -11, 65_519, 65_520, 2 ** -25, 3 * 2 ** -25, 2 ** -24 * 1.5];
    const testValues = [...cases, ...cases.map((x) => -x), Infinity, -Infinity, NaN, 0, -0, 3.39e38, 1e-40];
    for (const dtype of dtypes) {
      const { x } = createSample(device(), [testValues.length], { value: (i) => testValues[i]! });
      using out = device().empty([testValues.length], dtype);
      device().kernels.copy(out, x);
      const expected = testValues.map((value) => roundTo(Math.fround(value), dtype));
      expect(Array.from(await out.read())).toEqual(expected);
    }
  });

  test.each(dtypes)("fills views of %s of any layout, and changes no other element", async (dtype) => {
    for (const layout of layouts) {
      using base = device().empty([4, 6, 5], dtype);
      device().kernels.fill(base, 7);
      using view = layout === "dense" ? base.slice(1, 1, 4) : base.transpose(0, 2).slice(1, 1, 4);
      device().kernels.fill(view, 0.1);
      const actual = await base.read();
      const insideFlags = Array.from(actual, (_, i) => Math.floor(i / 5) % 6 >= 1 && Math.floor(i / 5) % 6 < 4);
      expect(Array.from(actual)).toEqual(
        insideFlags.map((isInside) => (isInside ? roundTo(Math.fround(0.1), dtype) : 7)),
      );
    }
  });
});
