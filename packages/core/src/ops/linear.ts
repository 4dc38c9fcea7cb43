import { checkOperands } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { ShapeError } from "../errors.ts";
import type { UnaryOp } from "../kernels/kernels.ts";
import { rowSharding } from "../placement/sharding.ts";
import { formatShape, numel, sameShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { applyGate, checkActivation, computeGateGradient } from "./gated.ts";

// Shapes: N rows, in and out features; x [..,in] flattened to [N,in], weight [out,in], bias [out], gate and result
// [..,out].

type LinearInputs = [x: Tensor, weight: Tensor, bias: Tensor | null, gate: Tensor | null];

const linearOp = defineOp({
  name: "linear",
  sharding: rowSharding,
  forward([x, weight, bias, gate]: LinearInputs, activation: UnaryOp | null, isRecorded) {
    const { device } = x;
    using transposedWeight = weight.transpose(0, 1);
    const output = device.empty(x.shape.with(-1, weight.shape[0]!), x.dtype);
    // The kernel treats leading axes of a contiguous x as additional rows.
    const isFlattenable = x.rank === 2 || (x.rank > 2 && x.isContiguous);
    using flatRows = isFlattenable ? null : flattenRows(x);
    using flatOutput = isFlattenable ? null : flattenRows(output);
    using flatGate = isFlattenable || gate === null ? null : flattenRows(gate);
    const [rows, out] = [flatRows ?? x, flatOutput ?? output];
    // The derivative of relu can be computed from its result.
    const isOutputSaved = activation === "relu" && gate === null;
    const savesPreActivation = isRecorded && !isOutputSaved && (activation !== null || gate !== null);
    const preActivation = savesPreActivation ? device.empty(out.shape, out.dtype) : null;
    if (bias === null && activation === null && gate === null) {
      device.kernels.matmul(out, rows, transposedWeight, false);
    } else {
      device.kernels.linear(out, rows, transposedWeight, { bias, activation, gate: flatGate ?? gate, preActivation });
    }
    return { output, saved: { x, weight, activation, gate, preActivation: isOutputSaved ? output : preActivation } };
  },
  backward({ x, weight, activation, gate, preActivation }, dOutput, needsInputGrad) {
    const [needsGradX, needsGradWeight, needsGradBias, needsGradGate] = needsInputGrad;
    using sums = preActivation && preActivation.reshape(dOutput.shape);
    using dOut = computeSumsGradient({ activation, gate, sums }, dOutput);
    return [
      needsGradX ? computeInputGradient(dOut, weight, x) : null,
      needsGradWeight ? computeWeightGradient(dOut, x, weight) : null,
      needsGradBias ? computeBiasGradient(dOut) : null,
      needsGradGate ? computeGateGradient({ gate: gate!, activation }, sums!, dOutput) : null,
    ];
  },
});

/** Returns x [..,F] as [N,F]. */
function flattenRows(x: Tensor): Tensor {
  return x.reshape([numel(x.shape.slice(0, -1)), x.shape.at(-1)!]);
}

/** Epilogue applied to the sums x · Wᵀ + b. For relu without a gate, `sums` is the result of relu. */
interface Epilogue {
  readonly activation: UnaryOp | null;
  readonly gate: Tensor | null;
  readonly sums: Tensor | null;
}

/**
 * Returns the gradient of x · Wᵀ + b, as [N,out]. Without a gate, sums that only this operation holds are overwritten:
 * nothing reads them after the backward, and memory that was just read is written faster than new memory.
 */
function computeSumsGradient({ activation, gate, sums }: Epilogue, dOut: Tensor): Tensor {
  if (activation === null && gate === null) return flattenRows(dOut);
  if (gate !== null) {
    using dSums = applyGate({ gate, activation }, dOut);
    return flattenRows(dSums);
  }
  using dSums = activation === "relu" ? dOut.device.empty(dOut.shape, dOut.dtype) : sums!.detach();
  dOut.device.kernels.unaryBackward(activation!, dSums, sums!, dOut);
  return flattenRows(dSums);
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
 * Returns activation(x · Wᵀ + b): x [..,in], weight [out,in], bias [out] or null → [..,out]. The weight layout is that
 * of PyTorch. With a gate [..,out], returns activation(gate) · (x · Wᵀ + b). The epilogue is applied to sums before
 * they are rounded and stored, if the device supports it.
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
 * @throws ShapeError if the features do not match; DTypeError if the dtypes differ; OptionError for an unknown
 * activation.
 */
export function linear(
  x: Tensor,
  weight: Tensor,
  bias: Tensor | null = null,
  activation: UnaryOp | null = null,
  gate: Tensor | null = null,
): Tensor {
  const optionalOperands = [bias, gate].filter((each) => each !== null);
  checkOperands("linear", x, weight, ...optionalOperands);
  const [out, features] = weight.shape;
  const isCompatible = weight.rank === 2 && x.rank >= 1 && x.shape.at(-1) === features;
  const isBiasCompatible = bias === null || (bias.rank === 1 && bias.shape[0] === out);
  if (!isCompatible || !isBiasCompatible || (gate && !sameShape(gate.shape, x.shape.with(-1, out!)))) {
    throw new ShapeError({
      where: "linear",
      expected: `x [..,in], weight [out,in]${bias ? ", bias [out]" : ""}${gate ? ", gate [..,out]" : ""}`,
      received: [x, weight, ...optionalOperands].map((each) => formatShape(each.shape)).join(", "),
    });
  }
  checkActivation("linear", activation);
  return linearOp([x, weight, bias, gate], activation);
}
