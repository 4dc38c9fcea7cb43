import { type DType, full, type UnaryOp } from "@mosaic/core";
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

/** A case of linear: bias, activation and gate in the product's epilogue, and the tensors that they are applied to. */
interface Case {
  readonly sizes: readonly [m: number, n: number, k: number];
  readonly dtype: DType;
  readonly out: Layout;
  readonly bias: Layout | null;
  readonly activation: UnaryOp | null;
  readonly gate: Layout | null;
  readonly preActivation: Layout | null;
}

const activationFunctions = {
  relu: (x: number) => Math.max(x, 0),
  sigmoid: (x: number) => 1 / (1 + Math.exp(-x)),
  square: (x: number) => x * x,
} as const;

onEveryIsa("linear", (device) => {
  // Whole and partial tiles, one row and one column, a sum over many depths, few rows and a long sum, and an empty
  // product.
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
    [17, 140, 544],
    [3, 5, 4200],
    [5, 7, 0],
  ] as const;

  test.each(dtypes)("computes products of any sizes, layouts and epilogues in %s", async (dtype) => {
    for (const size of sizes) {
      for (const variant of [
        { out: "dense", bias: "dense", activation: null, gate: null, preActivation: null },
        { out: "dense", bias: null, activation: null, gate: null, preActivation: "dense" },
        { out: "dense", bias: "spread", activation: "relu", gate: null, preActivation: null },
        { out: "dense", bias: "dense", activation: "sigmoid", gate: null, preActivation: "dense" },
        { out: "turned", bias: "dense", activation: "square", gate: null, preActivation: "turned" },
        { out: "turned", bias: null, activation: "relu", gate: null, preActivation: "dense" },
        { out: "spread", bias: "dense", activation: "sigmoid", gate: null, preActivation: "spread" },
        { out: "spread", bias: "dense", activation: null, gate: null, preActivation: "dense" },
        { out: "dense", bias: "dense", activation: "sigmoid", gate: "dense", preActivation: null },
        { out: "dense", bias: null, activation: "square", gate: "dense", preActivation: "dense" },
        { out: "dense", bias: null, activation: null, gate: "dense", preActivation: null },
        { out: "turned", bias: "dense", activation: "relu", gate: "turned", preActivation: "turned" },
        { out: "spread", bias: null, activation: "sigmoid", gate: "spread", preActivation: null },
        { out: "dense", bias: "dense", activation: "sigmoid", gate: "turned", preActivation: null },
        { out: "turned", bias: null, activation: null, gate: "dense", preActivation: null },
      ] as const) {
        const mismatch = await applyOnce({ sizes: size, dtype, ...variant });
        expect(mismatch, `${size} ${JSON.stringify(variant)}`).toBeUndefined();
      }
    }
  });

  async function applyOnce(testCase: Case): Promise<string | undefined> {
    const { dtype, activation } = testCase;
    const [m, n, k] = testCase.sizes;
    const random = createGenerator(m * n + k);
    const a = createSample(device(), [m, k], { dtype, value: random });
    const b = createSample(device(), [k, n], { dtype, layout: "turned", value: random });
    const bias =
      testCase.bias === null ? null : createSample(device(), [n], { dtype, layout: testCase.bias, value: random });
    const gate =
      testCase.gate === null ? null : createSample(device(), [m, n], { dtype, layout: testCase.gate, value: random });
    using out = allocateWithLayout(device(), [m, n], dtype, testCase.out);
    using preActivation =
      testCase.preActivation === null ? null : allocateWithLayout(device(), [m, n], dtype, testCase.preActivation);
    for (const outputTensor of [out, preActivation]) if (outputTensor) device().kernels.fill(outputTensor, NaN);
    device().kernels.linear(out, a.x, b.x, {
      bias: bias?.x ?? null,
      activation,
      gate: gate?.x ?? null,
      preActivation,
    });
    const { sums, magnitude } = reference({ a: a.values, b: b.values, bias: bias?.values }, testCase.sizes);
    const wrongSums =
      preActivation && findMismatch(await preActivation.read(), sums, { tolerance: 1e-6, dtype, magnitude });
    const activate =
      activation === null ? (x: number) => x : activationFunctions[activation as keyof typeof activationFunctions];
    const expected = sums.map((sum, i) => (gate ? activate(gate.values[i]!) * sum : activate(sum)));
    const expectedMagnitude = magnitude.map((value, i) => {
      if (gate) return (Math.abs(activate(gate.values[i]!)) + 1) * (value + 1);
      return (activation === "square" ? 2 * value * value : value) + 1;
    });
    const mismatch = findMismatch(await out.read(), expected, { tolerance: 2e-6, dtype, magnitude: expectedMagnitude });
    for (const input of [a, b, bias, gate]) input?.x[Symbol.dispose]();
    return wrongSums ?? mismatch;
  }

  test("applies one bias to all products of a batch, and a separate gate and preActivation to each", async () => {
    const random = createGenerator(11);
    const a = createSample(device(), [6, 9, 40], { value: random });
    const b = createSample(device(), [6, 40, 20], { value: random });
    const bias = createSample(device(), [20], { value: random });
    using out = device().empty([6, 9, 20], "float32");
    const gate = createSample(device(), [6, 9, 20], { value: random });
    using preActivation = device().empty([6, 9, 20], "float32");
    device().kernels.linear(out, a.x, b.x, { bias: bias.x, activation: "relu", gate: gate.x, preActivation });
    const [actual, actualPreActivation] = [await out.read(), await preActivation.read()];
    for (let i = 0; i < 6; i++) {
      const operands = { a: a.values.slice(i * 360), b: b.values.slice(i * 800), bias: bias.values };
      const { sums, magnitude } = reference(operands, [9, 20, 40]);
      const elementRange = [i * 180, (i + 1) * 180] as const;
      expect(
        findMismatch(actualPreActivation.slice(...elementRange), sums, { tolerance: 1e-6, magnitude }),
      ).toBeUndefined();
      const gateValues = gate.values.slice(...elementRange);
      const expected = sums.map((sum, j) => activationFunctions.relu(gateValues[j]!) * sum);
      const expectedMagnitude = magnitude.map((value, j) => value * Math.abs(gateValues[j]!));
      expect(
        findMismatch(actual.slice(...elementRange), expected, { tolerance: 1e-6, magnitude: expectedMagnitude }),
      ).toBeUndefined();
    }
  });

  test("propagates NaN and infinities only to the elements that include them", async () => {
    const a = createSample(device(), [20, 30], { value: (i) => (i === 5 * 30 + 7 ? NaN : 1) });
    const b = createSample(device(), [30, 20], { value: () => 1 });
    const bias = createSample(device(), [20], { value: (i) => (i === 3 ? Infinity : i === 4 ? -Infinity : 1) });
    using out = full(device(), [20, 20], 7);
    device().kernels.linear(out, a.x, b.x, { bias: bias.x, activation: "relu", gate: null, preActivation: null });
    const expected = Array.from({ length: 400 }, (_, i) => {
      const [row, column] = [Math.floor(i / 20), i % 20];
      return row === 5 ? NaN : column === 3 ? Infinity : column === 4 ? 0 : 31;
    });
    expect(Array.from(await out.read())).toEqual(expected);
  });
});

test("splits a large call whose gate is not in the layout of the result, and rounds once", async () => {
  using device = cpu({ threads: 2 });
  const shape = [3, 2100, 2700] as const; // more elements than the float32 copy of the sums has
  const random = createGenerator(5);
  const a = createSample(device, [2100, 2], { dtype: "bfloat16", value: random });
  const b = createSample(device, [3, 2, 2700], { dtype: "bfloat16", value: random });
  const gate = createSample(device, [3, 1, 2700], { dtype: "bfloat16", value: random });
  using expandedGate = gate.x.expand(shape);
  using denseGate = device.empty(shape, "bfloat16");
  device.kernels.copy(denseGate, expandedGate);
  const results: Float32Array[] = [];
  for (const each of [denseGate, expandedGate]) {
    using out = device.empty(shape, "bfloat16");
    device.kernels.linear(out, a.x, b.x, { bias: null, activation: "relu", gate: each, preActivation: null });
    results.push(await out.read());
  }
  expect(results[0]!.findIndex((value, i) => value !== results[1]![i])).toBe(-1);
});

interface Operands {
  readonly a: readonly number[];
  readonly b: readonly number[];
  readonly bias: readonly number[] | undefined;
}

/** Computes a · b + bias in float64, and the same for absolute values. */
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
