import { type DType, full, type UnaryOp } from "@mosaic/core";
import { expect, test } from "vitest";
import { dtypes, firstWrong, generator, type Layout, onEveryIsa, place, sample } from "./sample.ts";

/** linear: bias and activation in the product's epilogue, and what the activation is applied to. */
interface Case {
  readonly sizes: readonly [m: number, n: number, k: number];
  readonly dtype: DType;
  readonly out: Layout;
  readonly bias: Layout | null;
  readonly activation: UnaryOp | null;
  readonly preActivation: Layout | null;
}

const functions = {
  relu: (x: number) => Math.max(x, 0),
  sigmoid: (x: number) => 1 / (1 + Math.exp(-x)),
  square: (x: number) => x * x,
} as const;

onEveryIsa("linear", (device) => {
  // Whole and partial tiles, one row and one column, a sum of many depths, few rows and a long sum, none.
  const sizes = [
    [64, 96, 64],
    [13, 130, 517],
    [1, 70, 300],
    [70, 1, 300],
    [2, 130, 33],
    [5, 9, 48],
    [8, 64, 17],
    [16, 200, 70],
    [4, 16, 600],
    [40, 33, 1030],
    [3, 5, 4200],
    [5, 7, 0],
  ] as const;

  test.each(dtypes)("any sizes, layouts and epilogues in %s", async (dtype) => {
    for (const size of sizes) {
      for (const each of [
        { out: "dense", bias: "dense", activation: null, preActivation: null },
        { out: "dense", bias: null, activation: null, preActivation: "dense" },
        { out: "dense", bias: "spread", activation: "relu", preActivation: null },
        { out: "dense", bias: "dense", activation: "sigmoid", preActivation: "dense" },
        { out: "turned", bias: "dense", activation: "square", preActivation: "turned" },
        { out: "turned", bias: null, activation: "relu", preActivation: "dense" },
        { out: "spread", bias: "dense", activation: "sigmoid", preActivation: "spread" },
        { out: "spread", bias: "dense", activation: null, preActivation: "dense" },
      ] as const) {
        const wrong = await applyOnce({ sizes: size, dtype, ...each });
        expect(wrong, `${size} ${JSON.stringify(each)}`).toBeUndefined();
      }
    }
  });

  async function applyOnce(each: Case): Promise<string | undefined> {
    const { dtype, activation } = each;
    const [m, n, k] = each.sizes;
    const random = generator(m * n + k);
    const a = sample(device(), [m, k], { dtype, value: random });
    const b = sample(device(), [k, n], { dtype, layout: "turned", value: random });
    const bias = each.bias === null ? null : sample(device(), [n], { dtype, layout: each.bias, value: random });
    using out = place(device(), [m, n], dtype, each.out);
    using before = each.preActivation === null ? null : place(device(), [m, n], dtype, each.preActivation);
    for (const written of [out, before]) if (written) device().kernels.fill(written, NaN);
    device().kernels.linear(out, a.x, b.x, { bias: bias?.x ?? null, activation, preActivation: before });
    const { sums, magnitude } = reference({ a: a.values, b: b.values, bias: bias?.values }, each.sizes);
    const wrongSums = before && firstWrong(await before.read(), sums, { tolerance: 1e-6, dtype, magnitude });
    // Where its layout is another, the activation is applied to what was rounded.
    const isRounded = each.preActivation !== null && each.preActivation !== each.out;
    const tolerance = isRounded && dtype !== "float32" ? 2 ** -8 : 2e-6;
    const apply = activation === null ? (x: number) => x : functions[activation as keyof typeof functions];
    const steep = magnitude.map((value) => (activation === "square" ? 2 * value * value : value) + 1);
    const wrong = firstWrong(await out.read(), sums.map(apply), { tolerance, dtype, magnitude: steep });
    for (const used of [a, b, bias]) used?.x[Symbol.dispose]();
    return wrongSums ?? wrong;
  }

  test("a batch: every product has the bias, and a place of its own for what is activated", async () => {
    const random = generator(11);
    const a = sample(device(), [6, 9, 40], { value: random });
    const b = sample(device(), [6, 40, 20], { value: random });
    const bias = sample(device(), [20], { value: random });
    using out = device().empty([6, 9, 20], "float32");
    using before = device().empty([6, 9, 20], "float32");
    device().kernels.linear(out, a.x, b.x, { bias: bias.x, activation: "relu", preActivation: before });
    const [got, gotBefore] = [await out.read(), await before.read()];
    for (let i = 0; i < 6; i++) {
      const operands = { a: a.values.slice(i * 360), b: b.values.slice(i * 800), bias: bias.values };
      const { sums, magnitude } = reference(operands, [9, 20, 40]);
      const part = [i * 180, (i + 1) * 180] as const;
      expect(firstWrong(gotBefore.slice(...part), sums, { tolerance: 1e-6, magnitude })).toBeUndefined();
      const activated = sums.map(functions.relu);
      expect(firstWrong(got.slice(...part), activated, { tolerance: 1e-6, magnitude })).toBeUndefined();
    }
  });

  test("NaN and infinities of products and bias reach what they are added to, and nothing else", async () => {
    const a = sample(device(), [20, 30], { value: (i) => (i === 5 * 30 + 7 ? NaN : 1) });
    const b = sample(device(), [30, 20], { value: () => 1 });
    const bias = sample(device(), [20], { value: (i) => (i === 3 ? Infinity : i === 4 ? -Infinity : 1) });
    using out = full(device(), [20, 20], 7);
    device().kernels.linear(out, a.x, b.x, { bias: bias.x, activation: "relu", preActivation: null });
    const expected = Array.from({ length: 400 }, (_, i) => {
      const [row, column] = [Math.floor(i / 20), i % 20];
      return row === 5 ? NaN : column === 3 ? Infinity : column === 4 ? 0 : 31;
    });
    expect(Array.from(await out.read())).toEqual(expected);
  });
});

interface Operands {
  readonly a: readonly number[];
  readonly b: readonly number[];
  readonly bias: readonly number[] | undefined;
}

/** a · b + bias in float64, and the same of absolute values. */
function reference({ a, b, bias }: Operands, [m, n, k]: Case["sizes"]): { sums: number[]; magnitude: number[] } {
  const sums = Array.from({ length: m * n }, (_, i) => bias?.[i % n] ?? 0);
  const magnitude = sums.map(Math.abs);
  for (let i = 0; i < m; i++) {
    for (let d = 0; d < k; d++) {
      for (let j = 0; j < n; j++) {
        const term = a[i * k + d]! * b[d * n + j]!;
        sums[i * n + j]! += term;
        magnitude[i * n + j]! += Math.abs(term);
      }
    }
  }
  return { sums, magnitude };
}
