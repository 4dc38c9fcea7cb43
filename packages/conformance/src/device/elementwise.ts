import type { BinaryOp, Device, DType, UnaryOp } from "@mosaic/core";
import type { Case } from "../check.ts";
import { normals, roundedAll } from "../oracle/numbers.ts";
import { type Allowance, checkRounded, lies, type MakeDevice, onDevice, placed, room } from "./place.ts";

interface Unary {
  readonly f: (x: number) => number;
  readonly derivative: (x: number) => number;
  /** Only of positive numbers. */
  readonly positive?: boolean;
  readonly allowance?: Allowance;
}

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
const density = (x: number) => Math.exp(-(x * x) / 2) / Math.sqrt(2 * Math.PI);
const approximate: Allowance = { roundings: 8, scale: 1 };

/** What each operation means, in float64. */
export const unaryOps: Readonly<Record<UnaryOp, Unary>> = {
  neg: { f: (x) => -x, derivative: () => -1 },
  exp: { f: Math.exp, derivative: Math.exp, allowance: { roundings: 16 } },
  log: { f: Math.log, derivative: (x) => 1 / x, positive: true, allowance: approximate },
  sqrt: { f: Math.sqrt, derivative: (x) => 0.5 / Math.sqrt(x), positive: true },
  rsqrt: { f: (x) => 1 / Math.sqrt(x), derivative: (x) => -0.5 / (x * Math.sqrt(x)), positive: true },
  tanh: { f: Math.tanh, derivative: (x) => 1 - Math.tanh(x) ** 2, allowance: approximate },
  sigmoid: { f: sigmoid, derivative: (x) => sigmoid(x) * (1 - sigmoid(x)), allowance: approximate },
  relu: { f: (x) => Math.max(x, 0), derivative: (x) => (x > 0 ? 1 : 0) },
  gelu: { f: (x) => x * normalCdf(x), derivative: (x) => normalCdf(x) + x * density(x), allowance: approximate },
  square: { f: (x) => x * x, derivative: (x) => 2 * x },
};

/** Φ(x) by its series (Marsaglia 2004): every digit of float64 for |x| < 8. */
export function normalCdf(x: number): number {
  if (Math.abs(x) > 8) return x > 0 ? 1 : 0;
  let sum = x;
  for (let term = x, i = 3; Math.abs(term) > 1e-18 * Math.abs(sum); i += 2) {
    term *= (x * x) / i;
    sum += term;
  }
  return 0.5 + sum * density(x);
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
const size = 105;

/** fill, copy, unary, binary and scalar kernels. */
export function elementwiseCases(make: MakeDevice): Case[] {
  const unary = Object.keys(unaryOps) as UnaryOp[];
  const binary = Object.keys(binaryOps) as BinaryOp[];
  return [
    ...dtypes.flatMap((dtype) => [
      { name: `fill, ${dtype}`, run: () => onDevice(make, (device) => fill(device, dtype)) },
      { name: `copy from ${dtype}`, run: () => onDevice(make, (device) => copy(device, dtype)) },
      ...unary.map((op) => ({
        name: `${op}, ${dtype}`,
        run: () => onDevice(make, (device) => one(device, op, dtype)),
      })),
      ...binary.map((op) => ({
        name: `${op}, ${dtype}`,
        run: () => onDevice(make, (device) => two(device, op, dtype)),
      })),
    ]),
    { name: "in place", run: () => onDevice(make, inPlace) },
    { name: "nothing to do on empty tensors", run: () => onDevice(make, empty) },
  ];
}

async function fill(device: Device, dtype: DType): Promise<void> {
  for (const lie of lies) {
    using out = room(device, shape, { dtype, lie });
    device.kernels.fill(out, 0.3);
    checkRounded(await out.read(), roundedAll(new Float64Array(size).fill(0.3), dtype), {
      what: `fill ${lie}`,
      roundings: 0,
    });
  }
}

async function copy(device: Device, from: DType): Promise<void> {
  const values = normals(size, 1, from);
  for (const to of dtypes) {
    for (const lie of lies) {
      using x = placed(device, values, { shape, dtype: from, lie });
      using out = room(device, shape, { dtype: to, lie: lie === "gapped" ? "reversed" : "gapped" });
      device.kernels.copy(out, x);
      checkRounded(await out.read(), roundedAll(values, to), { what: `copy ${lie} to ${to}`, roundings: 0 });
    }
  }
  using row = placed(device, values.subarray(0, 7), { shape: [1, 7], dtype: from });
  using out = room(device, [4, 7], { dtype: from });
  device.kernels.copy(out, row);
  const repeated = Float64Array.from({ length: 28 }, (_, i) => values[i % 7]!);
  checkRounded(await out.read(), repeated, { what: "copy that broadcasts", roundings: 0 });
}

async function one(device: Device, op: UnaryOp, dtype: DType): Promise<void> {
  const { f, derivative, positive, allowance } = unaryOps[op];
  const values = normals(size, 2, dtype).map((x) => (positive ? Math.abs(x) : x));
  const dys = normals(size, 3, dtype);
  for (const lie of lies) {
    using x = placed(device, values, { shape, dtype, lie });
    using y = room(device, shape, { dtype, lie });
    device.kernels.unary(op, y, x);
    checkRounded(await y.read(), values.map(f), { dtype, ...allowance, what: `${op} ${lie}` });
    using dy = placed(device, dys, { shape, dtype, lie });
    using dx = room(device, shape, { dtype, lie });
    device.kernels.unaryBackward(op, dx, x, dy);
    const expected = dys.map((d, i) => d * derivative(values[i]!));
    checkRounded(await dx.read(), expected, { dtype, roundings: 16, scale: 4, what: `${op} backward ${lie}` });
  }
}

async function two(device: Device, op: BinaryOp, dtype: DType): Promise<void> {
  const f = binaryOps[op];
  const a = normals(size, 4, dtype);
  const b = normals(size, 5, dtype).map((x) => (op === "div" && Math.abs(x) < 0.1 ? 1 : x));
  for (const lie of lies) {
    using x = placed(device, a, { shape, dtype, lie });
    using y = placed(device, b, { shape, dtype, lie });
    using out = room(device, shape, { dtype, lie });
    device.kernels.binary(op, out, x, y);
    checkRounded(
      await out.read(),
      a.map((value, i) => f(value, b[i]!)),
      { dtype, what: `${op} ${lie}` },
    );
    // [3,1,7] and [5,1]: both sides broadcast.
    using column = x.slice(1, 0, 1);
    using side = y.slice(0, 1, 2);
    using sides = side.reshape([5, 7]);
    using thin = sides.slice(1, 2, 3);
    device.kernels.binary(op, out, column, thin);
    const expected = a.map((_, i) =>
      f(a[Math.floor(i / 35) * 35 + (i % 7)]!, b[35 + (Math.floor(i / 7) % 5) * 7 + 2]!),
    );
    checkRounded(await out.read(), expected, { dtype, what: `${op} ${lie} that broadcasts` });
    device.kernels.scalar(op, out, x, 0.75);
    checkRounded(
      await out.read(),
      a.map((value) => f(value, 0.75)),
      { dtype, what: `scalar ${op} ${lie}` },
    );
  }
}

async function inPlace(device: Device): Promise<void> {
  const a = normals(size, 6);
  const b = normals(size, 7);
  using x = placed(device, a, { shape });
  using y = placed(device, b, { shape });
  device.kernels.binary("add", x, x, y);
  device.kernels.binary("mul", x, y, x);
  device.kernels.scalar("sub", x, x, 1);
  checkRounded(
    await x.read(),
    a.map((value, i) => b[i]! * (value + b[i]!) - 1),
    { scale: 2, what: "in place" },
  );
}

async function empty(device: Device): Promise<void> {
  using nothing = device.empty([2, 0, 3], "float32");
  device.kernels.fill(nothing, 1);
  device.kernels.copy(nothing, nothing);
  device.kernels.unary("exp", nothing, nothing);
  device.kernels.binary("add", nothing, nothing, nothing);
  checkRounded(await nothing.read(), new Float64Array(0), { what: "an empty tensor" });
}
