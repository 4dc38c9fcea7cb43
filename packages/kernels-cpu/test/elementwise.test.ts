import { type BinaryOp, full, type UnaryOp } from "@mosaic/core";
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
import { normalCdf } from "./normal.ts";

const binaryReferences: Record<BinaryOp, (a: number, b: number) => number> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  max: Math.max,
};

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
/** ½ (1 + tanh(√(2/π) (x + 0.044715 x³))). */
const tanhGate = (x: number): number => sigmoid(2 * Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3));
const normalDensity = (x: number): number => Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);

const unaryReferences: Record<UnaryOp, readonly [value: (x: number) => number, slope: (x: number) => number]> = {
  neg: [(x) => -x, () => -1],
  exp: [Math.exp, Math.exp],
  log: [Math.log, (x) => 1 / x],
  sqrt: [Math.sqrt, (x) => 0.5 / Math.sqrt(x)],
  rsqrt: [(x) => 1 / Math.sqrt(x), (x) => -0.5 * x ** -1.5],
  tanh: [Math.tanh, (x) => 1 / Math.cosh(x) ** 2],
  sigmoid: [sigmoid, (x) => sigmoid(x) * sigmoid(-x)],
  relu: [(x) => Math.max(x, 0), (x) => (x > 0 ? 1 : 0)],
  gelu: [(x) => x * normalCdf(x), (x) => normalCdf(x) + x * normalDensity(x)],
  geluTanh: [
    (x) => x * tanhGate(x),
    (x) => tanhGate(x) * (1 + x * tanhGate(-x) * 2 * Math.sqrt(2 / Math.PI) * (1 + 3 * 0.044715 * x ** 2)),
  ],
  silu: [(x) => x * sigmoid(x), (x) => sigmoid(x) * (1 + x * sigmoid(-x))],
  square: [(x) => x * x, (x) => 2 * x],
};
const positiveDomainOps: readonly UnaryOp[] = ["log", "sqrt", "rsqrt"];
const operations = Object.keys(unaryReferences) as UnaryOp[];

onEveryIsa("elementwise", (device) => {
  const pairs: (readonly [number[], number[], number[]])[] = [
    [[], [], []],
    [[0], [0], [1]],
    [[7], [7], [1]],
    [[5, 33], [5, 33], [33]],
    [
      [5, 33],
      [5, 1],
      [1, 33],
    ],
    [
      [2, 3, 4, 5],
      [3, 1, 5],
      [2, 1, 4, 1],
    ],
    [[40_000], [40_000], []],
  ];

  test.each(Object.keys(binaryReferences) as BinaryOp[])("computes %s with broadcasting", async (op) => {
    const random = createGenerator(2);
    for (const [shape, aShape, bShape] of pairs) {
      const isLarge = shape[0] === 40_000;
      for (const layout of isLarge ? (["dense"] as const) : layouts) {
        for (const dtype of isLarge ? (["float16"] as const) : dtypes) {
          const a = createSample(device(), aShape, { dtype, layout, value: () => random() * 4 });
          const b = createSample(device(), bShape, { layout, value: () => random() + 2 });
          using out = allocateWithLayout(device(), shape, dtype, layout);
          device().kernels.binary(op, out, a.x, b.x);
          const bValues = broadcastValues(b.values, bShape, shape);
          const expected = broadcastValues(a.values, aShape, shape).map((x, i) => binaryReferences[op](x, bValues[i]!));
          expect(findMismatch(await out.read(), expected, { tolerance: 2 ** -24, dtype })).toBeUndefined();
        }
      }
    }
  });

  test("computes operations with a scalar in place", async () => {
    for (const op of Object.keys(binaryReferences) as BinaryOp[]) {
      const { x, values } = createSample(device(), [3, 333], { layout: "turned", value: (i) => i - 500 });
      device().kernels.scalar(op, x, x, 2.5);
      const expected = values.map((value) => binaryReferences[op](value, 2.5));
      expect(findMismatch(await x.read(), expected, { tolerance: 2 ** -24 })).toBeUndefined();
    }
  });

  test("max propagates NaN of either operand", async () => {
    const a = createSample(device(), [17], { value: (i) => (i === 3 ? NaN : i) });
    const b = createSample(device(), [17], { value: (i) => (i === 5 ? NaN : 16 - i) });
    using out = device().empty([17], "float32");
    device().kernels.binary("max", out, a.x, b.x);
    expect(Array.from(await out.read())).toEqual(a.values.map((x, i) => Math.max(x, b.values[i]!)));
  });

  test.each(operations)("computes %s and its derivative", async (op) => {
    const random = createGenerator(3);
    const [value, slope] = unaryReferences[op];
    for (const layout of layouts) {
      for (const dtype of dtypes) {
        const drawInput = (): number =>
          positiveDomainOps.includes(op) ? Math.abs(random()) * 10 + 0.01 : random() * 6;
        const x = createSample(device(), [3, 101], { dtype, layout, value: drawInput });
        const dy = createSample(device(), [3, 101], { value: random });
        using out = allocateWithLayout(device(), [3, 101], dtype, layout);
        device().kernels.unary(op, out, x.x);
        const scale = x.values.map((each) => Math.abs(value(each)) + (op.startsWith("gelu") ? Math.abs(each) / 10 : 0));
        const errorLimits = { tolerance: 1e-6, dtype, magnitude: scale };
        expect(findMismatch(await out.read(), x.values.map(value), errorLimits)).toBeUndefined();
        using dx = allocateWithLayout(device(), [3, 101], "float32", layout);
        device().kernels.unaryBackward(op, dx, x.x, dy.x);
        const expected = x.values.map((each, i) => slope(each) * dy.values[i]!);
        const magnitude = dy.values.map((each, i) => Math.abs(each) * (Math.abs(slope(x.values[i]!)) + 0.1));
        expect(findMismatch(await dx.read(), expected, { tolerance: 2e-6, magnitude })).toBeUndefined();
      }
    }
  });

  test("computes gelu and its derivative with a small relative error in the left tail", async () => {
    const { x, values } = createSample(device(), [3001], { value: (i) => -3 - i / 1000 });
    using dy = full(device(), [3001], 1);
    using out = device().empty([3001], "float32");
    for (const of of [0, 1] as const) {
      if (of === 0) device().kernels.unary("gelu", out, x);
      else device().kernels.unaryBackward("gelu", out, x, dy);
      const expected = values.map(unaryReferences.gelu[of]);
      expect(findMismatch(await out.read(), expected, { tolerance: 2e-6 })).toBeUndefined();
    }
  });

  test("computes gelu and its derivative within a few units in the last place near 0", async () => {
    const { x, values } = createSample(device(), [4001], { value: (i) => i / 2000 - 1 });
    using dy = full(device(), [4001], 1);
    using out = device().empty([4001], "float32");
    device().kernels.unary("gelu", out, x);
    expect(findMismatch(await out.read(), values.map(unaryReferences.gelu[0]), { tolerance: 3e-7 })).toBeUndefined();
    device().kernels.unaryBackward("gelu", out, x, dy);
    const slopes = values.map(unaryReferences.gelu[1]);
    const magnitude = slopes.map((slope) => Math.abs(slope) + 0.1); // the derivative is 0 at −0.75
    expect(findMismatch(await out.read(), slopes, { tolerance: 6e-7, magnitude })).toBeUndefined();
  });

  test("computes derivatives at the limits of their ranges", async () => {
    const inputs = [0, -0, NaN, 88.5, -87, -100, -110, 1e-40, 3e38, -3e38, 20, -20];
    const { x, values } = createSample(device(), [inputs.length], { value: (i) => inputs[i]! });
    using dy = full(device(), [inputs.length], 1);
    using out = device().empty([inputs.length], "float32");
    for (const op of ["tanh", "sigmoid", "gelu", "geluTanh", "silu"] as const) {
      device().kernels.unaryBackward(op, out, x, dy);
      const isSaturated = (value: number): boolean => Math.abs(value) > 1e30;
      const limit = (value: number): number => (value > 0 && op !== "tanh" && op !== "sigmoid" ? 1 : 0);
      const expected = values.map((value) => (isSaturated(value) ? limit(value) : unaryReferences[op][1](value)));
      const magnitude = expected.map((value) => Math.max(Math.abs(value), 1e-35));
      expect(findMismatch(await out.read(), expected, { tolerance: 5e-6, magnitude }), op).toBeUndefined();
    }
  });

  test("computes functions at the limits of their ranges", async () => {
    const inputs = [0, Infinity, -Infinity, NaN, 88.5, 89.5, -87, -100, -110, 1e-40, 3e38, -1];
    for (const op of ["exp", "log", "sqrt", "tanh", "sigmoid", "relu", "gelu", "geluTanh", "silu"] as const) {
      const { x, values } = createSample(device(), [inputs.length], { value: (i) => inputs[i]! });
      using out = device().empty([inputs.length], "float32");
      device().kernels.unary(op, out, x);
      const expected = values.map((value) => Math.fround(unaryReferences[op][0](value)));
      if (["gelu", "geluTanh", "silu"].includes(op)) expected[2] = NaN; // −∞ · 0, as in PyTorch
      // silu(−100) is a hundred times a denormal, which has few significant digits.
      const magnitude = expected.map((value) => Math.max(Math.abs(value), op === "silu" ? 1e-35 : 0));
      expect(findMismatch(await out.read(), expected, { tolerance: 5e-7, magnitude }), op).toBeUndefined();
    }
  });

  test.each(["neg", "sqrt", "tanh", "gelu", "geluTanh", "silu"] as const)(
    "%s returns zeros with their sign",
    async (op) => {
      const { x } = createSample(device(), [2], { value: (i) => (i === 0 ? -0 : 0) });
      using out = device().empty([2], "float32");
      device().kernels.unary(op, out, x);
      expect(Array.from(await out.read())).toEqual(op === "neg" ? [0, -0] : [-0, 0]);
    },
  );
});

/** Repeats row-major values of one shape over a larger one. */
function broadcastValues(
  values: readonly number[],
  shape: readonly number[],
  targetShape: readonly number[],
): number[] {
  const size = targetShape.reduce((product, length) => product * length, 1);
  return Array.from({ length: size }, (_, index) => {
    let [remainingIndex, offset, stride] = [index, 0, 1];
    for (let axis = targetShape.length - 1; axis >= 0; axis--) {
      const sourceAxis = axis - targetShape.length + shape.length;
      if (sourceAxis >= 0) {
        if (shape[sourceAxis] !== 1) offset += (remainingIndex % targetShape[axis]!) * stride;
        stride *= shape[sourceAxis]!;
      }
      remainingIndex = Math.floor(remainingIndex / targetShape[axis]!);
    }
    return values[offset]!;
  });
}
