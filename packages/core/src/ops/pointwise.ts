import { checkTensor } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import type { UnaryOp } from "../kernels/kernels.ts";
import type { Tensor } from "../tensor.ts";
import { mul } from "./arithmetic.ts";

/** f(x) element by element: the kernel that computes it also has its derivative at x. */
function pointwise(op: UnaryOp): (x: Tensor) => Tensor {
  const run = defineOp({
    name: op,
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
    return run([x], undefined);
  };
}

/** −x. */
export const neg: (x: Tensor) => Tensor = pointwise("neg");
/** eˣ. */
export const exp: (x: Tensor) => Tensor = pointwise("exp");
/** Natural logarithm. */
export const log: (x: Tensor) => Tensor = pointwise("log");
/** √x. */
export const sqrt: (x: Tensor) => Tensor = pointwise("sqrt");
/** 1 / √x. */
export const rsqrt: (x: Tensor) => Tensor = pointwise("rsqrt");
/** Hyperbolic tangent. */
export const tanh: (x: Tensor) => Tensor = pointwise("tanh");
/** 1 / (1 + e⁻ˣ). */
export const sigmoid: (x: Tensor) => Tensor = pointwise("sigmoid");
/** max(x, 0); the derivative at 0 is 0. */
export const relu: (x: Tensor) => Tensor = pointwise("relu");
/** x · Φ(x), with the normal distribution's exact Φ: Hendrycks and Gimpel 2016, PyTorch's default. */
export const gelu: (x: Tensor) => Tensor = pointwise("gelu");
/** x · sigmoid(x), also called swish (Elfwing et al. 2017), in two roundings. */
export function silu(x: Tensor): Tensor {
  checkTensor("silu", x);
  using gate = sigmoid(x);
  return mul(x, gate);
}
/** x². */
export const square: (x: Tensor) => Tensor = pointwise("square");
