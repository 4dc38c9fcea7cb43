import type { BinaryOp, Kernels, UnaryOp } from "../../src/kernels/kernels.ts";
import type { Memory } from "./memory.ts";

const binaryFunctions: Readonly<Record<BinaryOp, (a: number, b: number) => number>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  max: Math.max,
};

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
/** ½ (1 + tanh(√(2/π) (x + 0.044715 x³))). */
const tanhGate = (x: number) => sigmoid(2 * Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3));
const normalDensity = (x: number) => Math.exp(-(x * x) / 2) / Math.sqrt(2 * Math.PI);

/** Returns the normal cumulative distribution function Φ by its Taylor series, exact to 1e-9 for |x| ≤ 5. */
function normalCdf(x: number): number {
  if (Math.abs(x) > 5.5) return x > 0 ? 1 : 0;
  let [term, sum] = [x, x];
  for (let n = 1; n < 200; n++) {
    term *= -(x * x) / (2 * n);
    sum += term / (2 * n + 1);
  }
  return 0.5 + sum / Math.sqrt(2 * Math.PI);
}

const unaryFunctions: Readonly<Record<UnaryOp, { value(x: number): number; slope(x: number): number }>> = {
  neg: { value: (x) => -x, slope: () => -1 },
  exp: { value: Math.exp, slope: Math.exp },
  log: { value: Math.log, slope: (x) => 1 / x },
  sqrt: { value: Math.sqrt, slope: (x) => 0.5 / Math.sqrt(x) },
  rsqrt: { value: (x) => 1 / Math.sqrt(x), slope: (x) => -0.5 / Math.sqrt(x) ** 3 },
  tanh: { value: Math.tanh, slope: (x) => 1 - Math.tanh(x) ** 2 },
  sigmoid: { value: sigmoid, slope: (x) => sigmoid(x) * (1 - sigmoid(x)) },
  relu: { value: (x) => Math.max(x, 0), slope: (x) => (x > 0 ? 1 : 0) },
  gelu: { value: (x) => x * normalCdf(x), slope: (x) => normalCdf(x) + x * normalDensity(x) },
  geluTanh: {
    value: (x) => x * tanhGate(x),
    slope: (x) => tanhGate(x) * (1 + x * tanhGate(-x) * 2 * Math.sqrt(2 / Math.PI) * (1 + 3 * 0.044715 * x ** 2)),
  },
  silu: { value: (x) => x * sigmoid(x), slope: (x) => sigmoid(x) * (1 + x * sigmoid(-x)) },
  square: { value: (x) => x * x, slope: (x) => 2 * x },
};

export function applyUnary(op: UnaryOp, x: number): number {
  return unaryFunctions[op].value(x);
}

type Elementwise = Pick<Kernels, "fill" | "copy" | "binary" | "scalar" | "unary" | "gate" | "unaryBackward">;

export function elementwise(memory: Memory): Elementwise {
  return {
    fill: (out, value) => memory.store(out, new Array<number>(out.size).fill(value)),
    copy: (out, x) => memory.store(out, memory.load(x, out.shape)),
    binary(op, out, a, b) {
      const operandB = memory.load(b, out.shape);
      memory.store(
        out,
        memory.load(a, out.shape).map((value, i) => binaryFunctions[op](value, operandB[i]!)),
      );
    },
    scalar(op, out, x, value) {
      memory.store(
        out,
        memory.load(x, out.shape).map((each) => binaryFunctions[op](each, value)),
      );
    },
    unary: (op, out, x) => memory.store(out, memory.load(x, out.shape).map(unaryFunctions[op].value)),
    gate(activation, out, gate, x) {
      const factors = memory.load(x, out.shape);
      const activate = activation === null ? (value: number) => value : unaryFunctions[activation].value;
      memory.store(
        out,
        memory.load(gate, out.shape).map((value, i) => activate(value) * factors[i]!),
      );
    },
    unaryBackward(op, dx, x, dy) {
      const gradient = memory.load(dy, dx.shape);
      memory.store(
        dx,
        memory
          .load(x, dx.shape)
          .map((value, i) =>
            op === "relu" ? (value <= 0 ? 0 : gradient[i]!) : gradient[i]! * unaryFunctions[op].slope(value),
          ),
      );
    },
  };
}
