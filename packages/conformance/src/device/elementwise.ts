import type { BinaryOp, Device, DType, UnaryOp } from "@mosaic/core";
import { type Case, check, checkClose } from "../check.ts";
import { normals, roundAll } from "../oracle/numbers.ts";
import {
  type Tolerance,
  checkRounded,
  storageOrders,
  type MakeDevice,
  withDevice,
  tensorFrom,
  allocate,
} from "./tensors.ts";

interface UnaryReference {
  readonly f: (x: number) => number;
  readonly derivative: (x: number) => number;
  /** Whether the operation is tested on positive numbers only. */
  readonly requiresPositiveInput?: boolean;
  readonly tolerance?: Tolerance;
}

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
/** ½ (1 + tanh(√(2/π) (x + 0.044715 x³))). */
const tanhGate = (x: number) => sigmoid(2 * Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3));
const normalDensity = (x: number) => Math.exp(-(x * x) / 2) / Math.sqrt(2 * Math.PI);
const transcendentalTolerance: Tolerance = { roundings: 8, scale: 1 };

/** Definitions of the operations in float64. */
const unaryOps: Readonly<Record<UnaryOp, UnaryReference>> = {
  neg: { f: (x) => -x, derivative: () => -1 },
  exp: { f: Math.exp, derivative: Math.exp, tolerance: { roundings: 16 } },
  log: { f: Math.log, derivative: (x) => 1 / x, requiresPositiveInput: true, tolerance: transcendentalTolerance },
  sqrt: { f: Math.sqrt, derivative: (x) => 0.5 / Math.sqrt(x), requiresPositiveInput: true },
  rsqrt: { f: (x) => 1 / Math.sqrt(x), derivative: (x) => -0.5 / (x * Math.sqrt(x)), requiresPositiveInput: true },
  tanh: { f: Math.tanh, derivative: (x) => 1 - Math.tanh(x) ** 2, tolerance: transcendentalTolerance },
  sigmoid: { f: sigmoid, derivative: (x) => sigmoid(x) * (1 - sigmoid(x)), tolerance: transcendentalTolerance },
  relu: { f: (x) => Math.max(x, 0), derivative: (x) => (x > 0 ? 1 : 0) },
  gelu: {
    f: (x) => x * normalCdf(x),
    derivative: (x) => normalCdf(x) + x * normalDensity(x),
    tolerance: transcendentalTolerance,
  },
  geluTanh: {
    f: (x) => x * tanhGate(x),
    derivative: (x) =>
      tanhGate(x) + x * tanhGate(x) * tanhGate(-x) * 2 * Math.sqrt(2 / Math.PI) * (1 + 3 * 0.044715 * x ** 2),
    tolerance: transcendentalTolerance,
  },
  silu: {
    f: (x) => x * sigmoid(x),
    derivative: (x) => sigmoid(x) * (1 + x * sigmoid(-x)),
    tolerance: transcendentalTolerance,
  },
  square: { f: (x) => x * x, derivative: (x) => 2 * x },
};

/** Computes Φ(x) by its series (Marsaglia 2004), accurate to every digit of float64 for |x| < 8. */
function normalCdf(x: number): number {
  if (Math.abs(x) > 8) return x > 0 ? 1 : 0;
  let sum = x;
  for (let term = x, i = 3; Math.abs(term) > 1e-18 * Math.abs(sum); i += 2) {
    term *= (x * x) / i;
    sum += term;
  }
  return 0.5 + sum * normalDensity(x);
}

const binaryOps: Readonly<Record<BinaryOp, (a: number, b: number) => number>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  max: Math.max,
};

const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];
const shape = [3, 5, 7];
const NUM_ELEMENTS = 105;

/** Returns cases of the fill, copy, unary, binary and scalar kernels. */
export function elementwiseCases(make: MakeDevice): Case[] {
  const unaryNames = Object.keys(unaryOps) as UnaryOp[];
  const binaryNames = Object.keys(binaryOps) as BinaryOp[];
  return [
    ...dtypes.flatMap((dtype) => [
      { name: `fill, ${dtype}`, run: () => withDevice(make, (device) => checkFill(device, dtype)) },
      { name: `copy from ${dtype}`, run: () => withDevice(make, (device) => checkCopy(device, dtype)) },
      ...unaryNames.map((op) => ({
        name: `${op}, ${dtype}`,
        run: () => withDevice(make, (device) => checkUnary(device, op, dtype)),
      })),
      ...binaryNames.map((op) => ({
        name: `${op}, ${dtype}`,
        run: () => withDevice(make, (device) => checkBinary(device, op, dtype)),
      })),
    ]),
    { name: "activations are exact where they are close to 0", run: () => withDevice(make, checkSmallValues) },
    { name: "tanh's backward does not overflow", run: () => withDevice(make, checkTanhBackward) },
    { name: "relu's backward is a selection", run: () => withDevice(make, checkReluBackward) },
    { name: "in place", run: () => withDevice(make, checkInPlace) },
    { name: "empty tensors", run: () => withDevice(make, checkEmptyTensor) },
  ];
}

/**
 * Checks activations and their derivatives at points where a difference of two numbers close to 1 would lose all digits
 * of the result. Errors are relative to each value.
 */
async function checkSmallValues(device: Device): Promise<void> {
  const points = { sigmoid: [-20, 20], tanh: [-10, 10], gelu: [-6, -5], geluTanh: [-5, -4], silu: [-20, -10] } as const;
  const relativeTolerance = 2e-5;
  for (const [name, xs] of Object.entries(points)) {
    const op = name as UnaryOp;
    const { f, derivative } = unaryOps[op];
    using x = tensorFrom(device, xs, { shape: [2] });
    using ones = tensorFrom(device, [1, 1], { shape: [2] });
    using out = allocate(device, [2]);
    const checkRelative = async (of: string, g: (x: number) => number): Promise<void> => {
      const ratios = Array.from(await out.read(), (y, i) => y / g(xs[i]!));
      checkClose(ratios, [1, 1], relativeTolerance, `${of} at ${xs.join(" and ")}, relative to float64`);
    };
    device.kernels.unary(op, out, x);
    await checkRelative(op, f);
    device.kernels.unaryBackward(op, out, x, ones);
    await checkRelative(`${op}'`, derivative);
  }
}

/** Checks gradients of tanh that are close to the largest float32. */
async function checkTanhBackward(device: Device): Promise<void> {
  const xs = [0, 1, -2];
  const gradients = [3e38, -3e38, 2e38];
  using x = tensorFrom(device, xs, { shape: [3] });
  using dOut = tensorFrom(device, gradients, { shape: [3] });
  using dx = allocate(device, [3]);
  device.kernels.unaryBackward("tanh", dx, x, dOut);
  const ratios = Array.from(await dx.read(), (y, i) => y / (gradients[i]! * (1 - Math.tanh(xs[i]!) ** 2)));
  checkClose(ratios, [1, 1, 1], 2e-5, "tanh' · dOut, relative to float64");
}

async function checkFill(device: Device, dtype: DType): Promise<void> {
  for (const storageOrder of storageOrders) {
    using out = allocate(device, shape, { dtype, storageOrder });
    device.kernels.fill(out, 0.3);
    checkRounded(await out.read(), roundAll(new Float64Array(NUM_ELEMENTS).fill(0.3), dtype), {
      description: `fill ${storageOrder}`,
      roundings: 0,
    });
  }
}

async function checkCopy(device: Device, inputDType: DType): Promise<void> {
  const values = normals(NUM_ELEMENTS, 1, inputDType);
  for (const outDType of dtypes) {
    for (const storageOrder of storageOrders) {
      using x = tensorFrom(device, values, { shape, dtype: inputDType, storageOrder });
      using out = allocate(device, shape, {
        dtype: outDType,
        storageOrder: storageOrder === "gapped" ? "reversed" : "gapped",
      });
      device.kernels.copy(out, x);
      checkRounded(await out.read(), roundAll(values, outDType), {
        description: `copy ${storageOrder} to ${outDType}`,
        roundings: 0,
      });
    }
  }
  using row = tensorFrom(device, values.subarray(0, 7), { shape: [1, 7], dtype: inputDType });
  using out = allocate(device, [4, 7], { dtype: inputDType });
  device.kernels.copy(out, row);
  const expectedRows = Float64Array.from({ length: 28 }, (_, i) => values[i % 7]!);
  checkRounded(await out.read(), expectedRows, { description: "copy that broadcasts", roundings: 0 });
}

async function checkUnary(device: Device, op: UnaryOp, dtype: DType): Promise<void> {
  const { f, derivative, requiresPositiveInput, tolerance } = unaryOps[op];
  const values = normals(NUM_ELEMENTS, 2, dtype).map((x) => (requiresPositiveInput ? Math.abs(x) : x));
  const dyValues = normals(NUM_ELEMENTS, 3, dtype);
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, values, { shape, dtype, storageOrder });
    using y = allocate(device, shape, { dtype, storageOrder });
    device.kernels.unary(op, y, x);
    checkRounded(await y.read(), values.map(f), { dtype, ...tolerance, description: `${op} ${storageOrder}` });
    using dy = tensorFrom(device, dyValues, { shape, dtype, storageOrder });
    device.kernels.gate(op, y, x, dy);
    checkRounded(
      await y.read(),
      values.map((value, i) => f(value) * dyValues[i]!),
      { dtype, roundings: 16, scale: 4, description: `${op} as a gate, ${storageOrder}` },
    );
    using dx = allocate(device, shape, { dtype, storageOrder });
    device.kernels.unaryBackward(op, dx, x, dy);
    const expected = dyValues.map((d, i) => d * derivative(values[i]!));
    checkRounded(await dx.read(), expected, {
      dtype,
      roundings: 16,
      scale: 4,
      description: `${op} backward ${storageOrder}`,
    });
  }
}

/** Checks that NaN and infinite gradients pass where x is positive or NaN, and nowhere else. */
async function checkReluBackward(device: Device): Promise<void> {
  const { NaN: nan, POSITIVE_INFINITY: infinity } = Number;
  const [inputs, gradients] = [
    [-1, 0, 1, nan, -infinity, infinity],
    [nan, infinity, nan, 2, nan, -infinity],
  ];
  using x = tensorFrom(device, inputs, { shape: [6], dtype: "float32" });
  using dx = tensorFrom(device, gradients, { shape: [6], dtype: "float32" });
  device.kernels.unaryBackward("relu", dx, x, dx);
  const expected = [0, 0, nan, 2, 0, -infinity];
  const received = Array.from(await dx.read());
  check(
    received.every((value, i) => Object.is(value + 0, expected[i])),
    `relu backward: expected ${expected.join()}, received ${received.join()}`,
  );
}

async function checkBinary(device: Device, op: BinaryOp, dtype: DType): Promise<void> {
  const f = binaryOps[op];
  const a = normals(NUM_ELEMENTS, 4, dtype);
  const b = normals(NUM_ELEMENTS, 5, dtype).map((x) => (op === "div" && Math.abs(x) < 0.1 ? 1 : x));
  for (const storageOrder of storageOrders) {
    using x = tensorFrom(device, a, { shape, dtype, storageOrder });
    using y = tensorFrom(device, b, { shape, dtype, storageOrder });
    using out = allocate(device, shape, { dtype, storageOrder });
    device.kernels.binary(op, out, x, y);
    checkRounded(
      await out.read(),
      a.map((value, i) => f(value, b[i]!)),
      { dtype, description: `${op} ${storageOrder}` },
    );
    if (op === "mul") {
      device.kernels.gate(null, out, x, y);
      const products = a.map((value, i) => value * b[i]!);
      checkRounded(await out.read(), products, { dtype, description: `gate without activation, ${storageOrder}` });
    }
    // [3,1,7] and [5,1]: both sides broadcast.
    using column = x.slice(1, 0, 1);
    using slicedY = y.slice(0, 1, 2);
    using matrixY = slicedY.reshape([5, 7]);
    using columnY = matrixY.slice(1, 2, 3);
    device.kernels.binary(op, out, column, columnY);
    const expected = a.map((_, i) =>
      f(a[Math.floor(i / 35) * 35 + (i % 7)]!, b[35 + (Math.floor(i / 7) % 5) * 7 + 2]!),
    );
    checkRounded(await out.read(), expected, { dtype, description: `${op} ${storageOrder} with broadcasting` });
    device.kernels.scalar(op, out, x, 0.75);
    checkRounded(
      await out.read(),
      a.map((value) => f(value, 0.75)),
      { dtype, description: `scalar ${op} ${storageOrder}` },
    );
  }
}

async function checkInPlace(device: Device): Promise<void> {
  const a = normals(NUM_ELEMENTS, 6);
  const b = normals(NUM_ELEMENTS, 7);
  using x = tensorFrom(device, a, { shape });
  using y = tensorFrom(device, b, { shape });
  device.kernels.binary("add", x, x, y);
  device.kernels.binary("mul", x, y, x);
  device.kernels.scalar("sub", x, x, 1);
  checkRounded(
    await x.read(),
    a.map((value, i) => b[i]! * (value + b[i]!) - 1),
    { scale: 2, description: "in place" },
  );
}

async function checkEmptyTensor(device: Device): Promise<void> {
  using emptyTensor = device.empty([2, 0, 3], "float32");
  device.kernels.fill(emptyTensor, 1);
  device.kernels.copy(emptyTensor, emptyTensor);
  device.kernels.unary("exp", emptyTensor, emptyTensor);
  device.kernels.binary("add", emptyTensor, emptyTensor, emptyTensor);
  checkRounded(await emptyTensor.read(), new Float64Array(0), { description: "an empty tensor" });
}
