import { expect, test } from "vitest";
import { dtypes, firstWrong, generator, layouts, onEveryIsa, place, rounded, sample } from "./sample.ts";

onEveryIsa("copy and fill", (device) => {
  const shapes = [[], [1], [7], [0], [3, 0, 2], [5, 9], [64, 64], [33, 70], [2, 3, 5, 7], [2, 40, 3, 64]];

  test.each(dtypes)("to and from %s, any layout", async (dtype) => {
    const random = generator(1);
    for (const shape of shapes) {
      for (const layout of layouts) {
        const { x, values } = sample(device(), shape, { dtype, layout, value: () => random() * 100 });
        expect(firstWrong(await x.read(), values, { tolerance: 0 })).toBeUndefined();
        for (const to of dtypes) {
          for (const target of layouts) {
            using out = place(device(), shape, to, target);
            device().kernels.copy(out, x);
            const want = values.map((value) => rounded(value, to));
            expect(
              firstWrong(await out.read(), want, { tolerance: 0 }),
              `${shape} ${layout} ${target}`,
            ).toBeUndefined();
          }
        }
        x[Symbol.dispose]();
      }
    }
  });

  test("large ones, on several threads", async () => {
    for (const shape of [[70_001], [300, 200]]) {
      for (const layout of layouts) {
        const { x, values } = sample(device(), shape, { value: (i) => i });
        using out = place(device(), shape, "bfloat16", layout);
        device().kernels.copy(out, x);
        const want = values.map((value) => rounded(value, "bfloat16"));
        expect(firstWrong(await out.read(), want, { tolerance: 0 })).toBeUndefined();
        x[Symbol.dispose]();
      }
    }
  });

  test("permutes [B,S,H,D] to [B,H,S,D]", async () => {
    const [b, s, h, d] = [2, 37, 3, 64];
    const { x, values } = sample(device(), [b, s, h, d], { value: (i) => i });
    using out = device().empty([b, h, s, d], "float32");
    device().kernels.copy(out, x.permute([0, 2, 1, 3]));
    const got = await out.read();
    const want = Array.from(got, (_, i) => {
      const [l, k, j, n] = [i % d, Math.floor(i / d) % s, Math.floor(i / d / s) % h, Math.floor(i / d / s / h)];
      return values[((n * s + k) * h + j) * d + l];
    });
    expect(Array.from(got)).toEqual(want);
  });

  test("broadcasts", async () => {
    const { x } = sample(device(), [3, 1], { value: (i) => i + 1 });
    using out = device().empty([2, 3, 2], "bfloat16");
    device().kernels.copy(out, x);
    expect(Array.from(await out.read())).toEqual([1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3]);
  });

  test("rounds to nearest even, and keeps infinities and NaN", async () => {
    const cases = [1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -11, 65_519, 65_520, 2 ** -25, 3 * 2 ** -25, 2 ** -24 * 1.5];
    const all = [...cases, ...cases.map((x) => -x), Infinity, -Infinity, NaN, 0, -0, 3.39e38, 1e-40];
    for (const dtype of dtypes) {
      const { x } = sample(device(), [all.length], { value: (i) => all[i]! });
      using out = device().empty([all.length], dtype);
      device().kernels.copy(out, x);
      const want = all.map((value) => rounded(Math.fround(value), dtype));
      expect(Array.from(await out.read())).toEqual(want);
    }
  });

  test.each(dtypes)("fills %s of any layout, and nothing beside it", async (dtype) => {
    for (const layout of layouts) {
      using base = device().empty([4, 6, 5], dtype);
      device().kernels.fill(base, 7);
      using part = layout === "dense" ? base.slice(1, 1, 4) : base.transpose(0, 2).slice(1, 1, 4);
      device().kernels.fill(part, 0.1);
      const got = await base.read();
      const inside = Array.from(got, (_, i) => Math.floor(i / 5) % 6 >= 1 && Math.floor(i / 5) % 6 < 4);
      expect(Array.from(got)).toEqual(inside.map((is) => (is ? rounded(Math.fround(0.1), dtype) : 7)));
    }
  });
});
