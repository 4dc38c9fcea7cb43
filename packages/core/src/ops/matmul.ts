import { checkOperands } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { expectValue, ShapeError } from "../errors.ts";
import type { UnaryOp } from "../kernels/kernels.ts";
import { kernelEnumerations } from "../kernels/schema.ts";
import { broadcastShapes, formatShape, numel } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { sumToSize } from "../views.ts";

/** [..,M,K] · [..,K,N] with leading axes broadcast, in memory of its own. */
function batchedMatmul(a: Tensor, b: Tensor): Tensor {
  const batch = broadcastShapes(a.shape.slice(0, -2), b.shape.slice(0, -2), "matmul");
  const out = a.device.empty([...batch, a.shape.at(-2)!, b.shape.at(-1)!], a.dtype);
  a.device.kernels.matmul(out, a, b, false);
  return out;
}

const matmulOp = defineOp({
  name: "matmul",
  forward([a, b]: [Tensor, Tensor]) {
    return { output: batchedMatmul(a, b), saved: { a, b } };
  },
  backward({ a, b }, dOut, [needsGradA, needsGradB]) {
    return [needsGradA ? computeLeftGradient(dOut, b, a) : null, needsGradB ? computeRightGradient(a, dOut, b) : null];
  },
});

/** da = dOut · bᵀ. */
function computeLeftGradient(dOut: Tensor, b: Tensor, a: Tensor): Tensor {
  using transposedB = b.transpose(-2, -1);
  using broadcastGradient = batchedMatmul(dOut, transposedB);
  return sumToSize(broadcastGradient, a.shape);
}

/** db = aᵀ · dOut. */
function computeRightGradient(a: Tensor, dOut: Tensor, b: Tensor): Tensor {
  using transposedA = a.transpose(-2, -1);
  using broadcastGradient = batchedMatmul(transposedA, dOut);
  return sumToSize(broadcastGradient, b.shape);
}

/**
 * Matrix product a [..,M,K] · b [..,K,N] → [..,M,N]; leading axes broadcast. For a weight matrix use `linear`.
 *
 * @example
 * ```ts
 * import { fromArray, matmul } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using a = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using b = fromArray(device, [1, 1], [2, 1]);
 * using product = matmul(a, b);
 * Array.from(await product.read()); // => [3, 7]
 * ```
 * @throws ShapeError if the inner lengths differ or an operand has fewer than two axes.
 */
export function matmul(a: Tensor, b: Tensor): Tensor {
  checkOperands("matmul", a, b);
  if (a.rank < 2 || b.rank < 2 || a.shape.at(-1) !== b.shape.at(-2)) {
    throw new ShapeError({
      where: "matmul",
      expected: "[..,M,K] and [..,K,N]",
      received: `${formatShape(a.shape)} and ${formatShape(b.shape)}`,
    });
  }
  if (b.rank > 2 || a.rank === 2) return matmulOp([a, b], undefined);
  // One matrix for the whole batch: its gradient is one product too, not a sum of many.
  using rows = a.reshape([numel(a.shape.slice(0, -1)), a.shape.at(-1)!]);
  using out = matmulOp([rows, b], undefined);
  return out.reshape([...a.shape.slice(0, -1), b.shape[1]!]);
}

// N rows, in and out features: x [..,in] seen as [N,in], weight [out,in], bias [out].

const linearOp = defineOp({
  name: "linear",
  forward([x, weight, bias]: [Tensor, Tensor, Tensor | null], activation: UnaryOp | null, isRecorded) {
    const { device } = x;
    using transposedWeight = weight.transpose(0, 1);
    const output = device.empty(x.shape.with(-1, weight.shape[0]!), x.dtype);
    // The kernel takes leading axes of dense rows for more rows.
    const isFlattenable = x.rank === 2 || (x.rank > 2 && x.isContiguous);
    using flatRows = isFlattenable ? null : x.reshape([countRows(x), x.shape.at(-1)!]);
    using flatOutput = isFlattenable ? null : output.reshape([countRows(x), weight.shape[0]!]);
    const [rows, out] = [flatRows ?? x, flatOutput ?? output];
    // relu's derivative at what it is applied to is that at its result.
    const savesPreActivation = isRecorded && activation !== null && activation !== "relu";
    const preActivation = savesPreActivation ? device.empty(out.shape, out.dtype) : null;
    if (bias === null && activation === null) device.kernels.matmul(out, rows, transposedWeight, false);
    else device.kernels.linear(out, rows, transposedWeight, { bias, activation, preActivation });
    return {
      output,
      saved: { x, weight, activation, activationArgument: activation === "relu" ? output : preActivation },
    };
  },
  backward({ x, weight, activation, activationArgument }, dOutput, [needsGradX, needsGradWeight, needsGradBias]) {
    const rows = dOutput.reshape([countRows(dOutput), dOutput.shape.at(-1)!]);
    using dOut = activationArgument === null ? rows : computeActivationGradient(activation!, activationArgument, rows);
    return [
      needsGradX ? computeInputGradient(dOut, weight, x) : null,
      needsGradWeight ? computeWeightGradient(dOut, x, weight) : null,
      needsGradBias ? computeBiasGradient(dOut) : null,
    ];
  },
});

function countRows(x: Tensor): number {
  return numel(x.shape.slice(0, -1));
}

/** The gradient of what the activation is applied to, which `activated` is, of any shape; takes the gradient. */
function computeActivationGradient(activation: UnaryOp, activationArgument: Tensor, gradient: Tensor): Tensor {
  using dOut = gradient;
  using x = activationArgument.reshape(dOut.shape);
  const dx = dOut.device.empty(dOut.shape, dOut.dtype);
  dOut.device.kernels.unaryBackward(activation, dx, x, dOut);
  return dx;
}

/** dx = dOut · W. */
function computeInputGradient(dOut: Tensor, weight: Tensor, x: Tensor): Tensor {
  using dx = x.device.empty([dOut.shape[0]!, weight.shape[1]!], x.dtype);
  x.device.kernels.matmul(dx, dOut, weight, false);
  return dx.reshape(x.shape);
}

/** dW = dOutᵀ · x. */
function computeWeightGradient(dOut: Tensor, x: Tensor, weight: Tensor): Tensor {
  using rows = x.reshape([dOut.shape[0]!, x.shape.at(-1)!]);
  using transposedGradient = dOut.transpose(0, 1);
  const dWeight = weight.device.empty(weight.shape, weight.dtype);
  weight.device.kernels.matmul(dWeight, transposedGradient, rows, false);
  return dWeight;
}

/** db = Σ of the rows of dOut. */
function computeBiasGradient(dOut: Tensor): Tensor {
  using sum = dOut.device.empty([1, dOut.shape[1]!], dOut.dtype);
  if (dOut.size === 0) dOut.device.kernels.fill(sum, 0);
  else dOut.device.kernels.reduce("sum", sum, dOut);
  return sum.reshape([-1]);
}

/**
 * activation(x · Wᵀ + b): x [..,in], weight [out,in], bias [out] or null → [..,out]. The layout is PyTorch's. Bias and activation
 * are applied to sums before they are rounded and stored, where the device can.
 *
 * @example
 * ```ts
 * import { fromArray, linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2], [1, 2]);
 * using weight = fromArray(device, [1, 1, 1, -1], [2, 2]);
 * using bias = fromArray(device, [10, 0], [2]);
 * using y = linear(x, weight, bias, "relu");
 * Array.from(await y.read()); // => [13, 0]
 * ```
 * @throws ShapeError if the features do not fit; DTypeError if the dtypes differ; OptionError for another activation.
 */
export function linear(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null = null,
  activation: UnaryOp | null = null,
): Tensor {
  checkOperands("linear", x, weight, ...(bias === null ? [] : [bias]));
  const [out, features] = weight.shape;
  const isCompatible = weight.rank === 2 && x.rank >= 1 && x.shape.at(-1) === features;
  if (!isCompatible || (bias && (bias.rank !== 1 || bias.shape[0] !== out))) {
    throw new ShapeError({
      where: "linear",
      expected: "x [..,in], weight [out,in], bias [out]",
      received: [x, weight, ...(bias ? [bias] : [])].map((each) => formatShape(each.shape)).join(", "),
    });
  }
  if (activation !== null && !kernelEnumerations.UnaryOp.includes(activation)) {
    expectValue("linear: activation", false, `null or one of ${kernelEnumerations.UnaryOp.join(", ")}`, activation);
  }
  return linearOp([x, weight, bias], activation);
}
