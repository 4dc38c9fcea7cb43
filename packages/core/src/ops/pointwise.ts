import { checkNumber, checkOperands, checkTensor } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import type { BinaryOp, UnaryOp } from "../kernels/kernels.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { elementwiseSharding } from "../placement/sharding.ts";
import { broadcastShapes, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { sumToSize } from "../views.ts";

// Binary operations: a op b with NumPy's broadcasting. Gradients are summed over broadcast axes.

function applyBinary(op: BinaryOp, a: Tensor, b: Tensor, shape: Shape = broadcastShapes(a.shape, b.shape, op)): Tensor {
  const out = a.device.empty(shape, a.dtype);
  a.device.kernels.binary(op, out, a, b);
  return out;
}

/** x + value, whose derivative is 1. */
const addScalarOp = defineOp({
  name: "add",
  sharding: elementwiseSharding,
  forward([x]: [Tensor], value: number) {
    const output = x.device.empty(x.shape, x.dtype);
    x.device.kernels.scalar("add", output, x, value);
    return { output, saved: {} };
  },
  backward: (_, dOut) => [dOut.detach()],
});

function addScalar(where: string, x: Tensor, value: number): Tensor {
  checkTensor(where, x);
  return addScalarOp([x], value);
}

/** Multiplies x by a value in place. For results of `applyBinary` that are not shared with a caller. */
function scaleInPlace(x: Tensor, value: number): Tensor {
  x.device.kernels.scalar("mul", x, x, value);
  return x;
}

/** Sums a broadcast gradient to an operand's shape. Takes ownership of the gradient. */
function reduceGradient(gradient: Tensor, shape: Shape): Tensor {
  using fullGradient = gradient;
  return sumToSize(fullGradient, shape);
}

const addOp = defineOp({
  name: "add",
  sharding: elementwiseSharding,
  forward([a, b]: [Tensor, Tensor]) {
    return { output: applyBinary("add", a, b), saved: { a: a.shape, b: b.shape } };
  },
  backward: ({ a, b }, dOut, [needsGradA, needsGradB]) => [
    needsGradA ? sumToSize(dOut, a) : null,
    needsGradB ? sumToSize(dOut, b) : null,
  ],
});

const subOp = defineOp({
  name: "sub",
  sharding: elementwiseSharding,
  forward([a, b]: [Tensor, Tensor]) {
    return { output: applyBinary("sub", a, b), saved: { a: a.shape, b: b.shape } };
  },
  backward: ({ a, b }, dOut, [needsGradA, needsGradB]) => [
    needsGradA ? sumToSize(dOut, a) : null,
    needsGradB ? negateAndReduce(dOut, b) : null,
  ],
});

function negateAndReduce(dOut: Tensor, shape: Shape): Tensor {
  using sum = sumToSize(dOut, shape);
  const out = sum.device.empty(shape, sum.dtype);
  sum.device.kernels.scalar("mul", out, sum, -1);
  return out;
}

const mulOp = defineOp({
  name: "mul",
  sharding: elementwiseSharding,
  forward([a, b]: [Tensor, Tensor]) {
    return { output: applyBinary("mul", a, b), saved: { a, b } };
  },
  backward: ({ a, b }, dOut, [needsGradA, needsGradB]) => [
    needsGradA ? reduceGradient(applyBinary("mul", dOut, b), a.shape) : null,
    needsGradB ? reduceGradient(applyBinary("mul", dOut, a), b.shape) : null,
  ],
});

const divOp = defineOp({
  name: "div",
  sharding: elementwiseSharding,
  forward([a, b]: [Tensor, Tensor]) {
    const output = applyBinary("div", a, b);
    return { output, saved: { a: a.shape, b, output } };
  },
  backward: ({ a, b, output }, dOut, [needsGradA, needsGradB]) => [
    needsGradA ? reduceGradient(applyBinary("div", dOut, b), a) : null,
    needsGradB ? computeDivisorGradient({ b, output }, dOut) : null,
  ],
});

/** −dOut · (a / b) / b. As in PyTorch, dOut / b is not computed, because it is infinite for very small b. */
function computeDivisorGradient({ b, output }: { b: Tensor; output: Tensor }, dOut: Tensor): Tensor {
  using quotient = applyBinary("div", output, b);
  return reduceGradient(scaleInPlace(applyBinary("mul", quotient, dOut), -1), b.shape);
}

const scaleOp = defineOp({
  name: "scale",
  sharding: elementwiseSharding,
  forward([x]: [Tensor], { op, factor }: { op: "mul" | "div"; factor: number }) {
    const output = x.device.empty(x.shape, x.dtype);
    x.device.kernels.scalar(op, output, x, factor);
    return { output, saved: { op, factor } };
  },
  backward({ op, factor }, dOut) {
    const dx = dOut.device.empty(dOut.shape, dOut.dtype);
    dOut.device.kernels.scalar(op, dx, dOut, factor);
    return [dx];
  },
});

/**
 * Returns a + b for two tensors, or a tensor and a number. Shapes broadcast as in NumPy; dtypes must be equal.
 *
 * @example
 * ```ts
 * import { add, fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using b = fromArray(device, [10, 20], [2]);
 * using sum = add(a, b);
 * Array.from(await sum.read()); // => [11, 22, 13, 24]
 * ```
 * @throws ShapeError if the shapes do not broadcast; DTypeError if the dtypes differ.
 */
export function add(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === "number") return addScalar("add", a, b);
  checkOperands("add", a, b);
  return addOp([a, b], undefined);
}

/** Returns a − b, with broadcasting; b may be a number. */
export function sub(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === "number") return addScalar("sub", a, -b);
  checkOperands("sub", a, b);
  return subOp([a, b], undefined);
}

/** Returns the elementwise product a · b, with broadcasting; b may be a number. */
export function mul(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === "number") return applyScalarFactor(a, { op: "mul", factor: b });
  checkOperands("mul", a, b);
  return mulOp([a, b], undefined);
}

/** Returns the elementwise quotient a / b, with broadcasting; b may be a number. */
export function div(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === "number") return applyScalarFactor(a, { op: "div", factor: b });
  checkOperands("div", a, b);
  return divOp([a, b], undefined);
}

/** x · factor. */
export function scale(x: Tensor, factor: number): Tensor {
  checkTensor("scale", x);
  checkNumber("scale: factor", factor);
  return scaleOp([x], { op: "mul", factor });
}

function applyScalarFactor(x: Tensor, { op, factor }: { op: "mul" | "div"; factor: number }): Tensor {
  checkTensor(op, x);
  return scaleOp([x], { op, factor });
}

// Unary operations.

/** Defines an elementwise function by its kernels for the function and its derivative. */
function defineUnary(op: UnaryOp): (x: Tensor) => Tensor {
  const unaryOp = defineOp({
    name: op,
    sharding: elementwiseSharding,
    forward([x]: [Tensor]) {
      const output = x.device.empty(x.shape, x.dtype);
      x.device.kernels.unary(op, output, x);
      return { output, saved: { x } };
    },
    backward({ x }, dOut) {
      const dx = x.device.empty(x.shape, x.dtype);
      x.device.kernels.unaryBackward(op, dx, x, dOut);
      return [dx];
    },
  });
  return (x) => {
    checkTensor(op, x);
    return unaryOp([x], undefined);
  };
}

/** −x. */
export const neg: (x: Tensor) => Tensor = defineUnary("neg");
/** eˣ. */
export const exp: (x: Tensor) => Tensor = defineUnary("exp");
/** Natural logarithm. */
export const log: (x: Tensor) => Tensor = defineUnary("log");
/** √x. */
export const sqrt: (x: Tensor) => Tensor = defineUnary("sqrt");
/** 1 / √x. */
export const rsqrt: (x: Tensor) => Tensor = defineUnary("rsqrt");
/** Hyperbolic tangent. */
export const tanh: (x: Tensor) => Tensor = defineUnary("tanh");
/** 1 / (1 + e⁻ˣ). */
export const sigmoid: (x: Tensor) => Tensor = defineUnary("sigmoid");
/** max(x, 0); the derivative at 0 is 0. */
export const relu: (x: Tensor) => Tensor = defineUnary("relu");
/** x · sigmoid(x), also called swish: Elfwing et al. 2017. */
export const silu: (x: Tensor) => Tensor = defineUnary("silu");

/** Declares the options of `gelu`. */
export const geluOptions = defineOptions("gelu", {
  /**
   * "none": the exact normal cumulative distribution function Φ. "tanh": Φ(x) ≈ ½ (1 + tanh(√(2/π) (x + 0.044715 x³))),
   * as in GPT-2 and Gemma. Default "none".
   */
  approximate: option.oneOf(["none", "tanh"], { default: "none" }),
});
/** Options of `gelu`. */
export type GeluOptions = OptionsOf<typeof geluOptions>;

const geluExact = defineUnary("gelu");
const geluTanh = defineUnary("geluTanh");

/**
 * Returns x · Φ(x), where Φ is the normal cumulative distribution function: Hendrycks and Gimpel 2016. Same option as
 * PyTorch.
 *
 * @example
 * ```ts
 * import { fromArray, gelu } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [2], []);
 * using exact = gelu(x);
 * using approximate = gelu(x, { approximate: "tanh" });
 * (await exact.item()).toFixed(4); // => "1.9545"
 * (await approximate.item()).toFixed(4); // => "1.9546"
 * ```
 */
export function gelu(x: Tensor, options?: GeluOptions): Tensor {
  const { approximate } = geluOptions.parse(options);
  return approximate === "tanh" ? geluTanh(x) : geluExact(x);
}
/** x². */
export const square: (x: Tensor) => Tensor = defineUnary("square");
