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

/**
 * Returns a − b for two tensors, or a tensor and a number. Shapes broadcast as in NumPy; dtypes must be equal.
 *
 * @example
 * ```ts
 * import { fromArray, sub } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using b = fromArray(device, [10, 20], [2]);
 * using result = sub(a, b);
 * Array.from(await result.read()); // => [-9, -18, -7, -16]
 * ```
 * @throws ShapeError if the shapes do not broadcast; DTypeError if the dtypes differ.
 */
export function sub(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === "number") return addScalar("sub", a, -b);
  checkOperands("sub", a, b);
  return subOp([a, b], undefined);
}

/**
 * Returns the elementwise product a · b of two tensors, or of a tensor and a number. Shapes broadcast as in NumPy;
 * dtypes must be equal.
 *
 * @example
 * ```ts
 * import { fromArray, mul } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using b = fromArray(device, [10, 20], [2]);
 * using result = mul(a, b);
 * Array.from(await result.read()); // => [10, 40, 30, 80]
 * ```
 * @throws ShapeError if the shapes do not broadcast; DTypeError if the dtypes differ.
 */
export function mul(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === "number") return applyScalarFactor(a, { op: "mul", factor: b });
  checkOperands("mul", a, b);
  return mulOp([a, b], undefined);
}

/**
 * Returns the elementwise quotient a / b of two tensors, or of a tensor and a number. Shapes broadcast as in NumPy;
 * dtypes must be equal.
 *
 * @example
 * ```ts
 * import { div, fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using b = fromArray(device, [10, 20], [2]);
 * using result = div(b, a);
 * Array.from(await result.read()); // => [10, 10, 3.3333333, 5]
 * ```
 * @throws ShapeError if the shapes do not broadcast; DTypeError if the dtypes differ.
 */
export function div(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b === "number") return applyScalarFactor(a, { op: "div", factor: b });
  checkOperands("div", a, b);
  return divOp([a, b], undefined);
}

/**
 * Returns x · factor, with the shape and dtype of x.
 *
 * @example
 * ```ts
 * import { fromArray, scale } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2], [2]);
 * using y = scale(x, 3);
 * Array.from(await y.read()); // => [3, 6]
 * ```
 * @throws OptionError unless `factor` is a number.
 */
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

/**
 * Returns −x for each element x, with the shape and dtype of the input.
 *
 * @example
 * ```ts
 * import { fromArray, neg } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, -2], [2]);
 * using y = neg(x);
 * Array.from(await y.read()); // => [-1, 2]
 * ```
 */
export const neg: (x: Tensor) => Tensor = defineUnary("neg");
/**
 * Returns eˣ for each element x, with the shape and dtype of the input.
 *
 * @example
 * ```ts
 * import { exp, fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [0, 1], [2]);
 * using y = exp(x);
 * Array.from(await y.read()); // => [1, 2.7182818]
 * ```
 */
export const exp: (x: Tensor) => Tensor = defineUnary("exp");
/**
 * Returns the natural logarithm of each element, with the shape and dtype of the input. −Infinity for 0, and NaN for
 * negative elements.
 *
 * @example
 * ```ts
 * import { fromArray, log } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 10], [2]);
 * using y = log(x);
 * Array.from(await y.read()); // => [0, 2.3025851]
 * ```
 */
export const log: (x: Tensor) => Tensor = defineUnary("log");
/**
 * Returns √x for each element x, with the shape and dtype of the input. NaN for negative elements.
 *
 * @example
 * ```ts
 * import { fromArray, sqrt } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [4, 9], [2]);
 * using y = sqrt(x);
 * Array.from(await y.read()); // => [2, 3]
 * ```
 */
export const sqrt: (x: Tensor) => Tensor = defineUnary("sqrt");
/**
 * Returns 1 / √x for each element x, with the shape and dtype of the input. Infinity for 0, and NaN for negative
 * elements.
 *
 * @example
 * ```ts
 * import { fromArray, rsqrt } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [4, 16], [2]);
 * using y = rsqrt(x);
 * Array.from(await y.read()); // => [0.5, 0.25]
 * ```
 */
export const rsqrt: (x: Tensor) => Tensor = defineUnary("rsqrt");
/**
 * Returns the hyperbolic tangent of each element, with the shape and dtype of the input.
 *
 * @example
 * ```ts
 * import { fromArray, tanh } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [0, 1], [2]);
 * using y = tanh(x);
 * Array.from(await y.read()); // => [0, 0.7615942]
 * ```
 */
export const tanh: (x: Tensor) => Tensor = defineUnary("tanh");
/**
 * Returns 1 / (1 + e⁻ˣ) for each element x, with the shape and dtype of the input.
 *
 * @example
 * ```ts
 * import { fromArray, sigmoid } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [0, 2], [2]);
 * using y = sigmoid(x);
 * Array.from(await y.read()); // => [0.5, 0.8807971]
 * ```
 */
export const sigmoid: (x: Tensor) => Tensor = defineUnary("sigmoid");
/**
 * Returns max(x, 0) for each element x, with the shape and dtype of the input. The derivative at 0 is 0.
 *
 * @example
 * ```ts
 * import { fromArray, relu } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [-1, 2], [2]);
 * using y = relu(x);
 * Array.from(await y.read()); // => [0, 2]
 * ```
 */
export const relu: (x: Tensor) => Tensor = defineUnary("relu");
/**
 * Returns x · sigmoid(x) for each element x, with the shape and dtype of the input. Also called swish (Elfwing et al.
 * 2017).
 *
 * @example
 * ```ts
 * import { fromArray, silu } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [0, 1], [2]);
 * using y = silu(x);
 * Array.from(await y.read()); // => [0, 0.7310586]
 * ```
 */
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
/**
 * Returns x² for each element x, with the shape and dtype of the input.
 *
 * @example
 * ```ts
 * import { fromArray, square } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [3, -4], [2]);
 * using y = square(x);
 * Array.from(await y.read()); // => [9, 16]
 * ```
 */
export const square: (x: Tensor) => Tensor = defineUnary("square");
