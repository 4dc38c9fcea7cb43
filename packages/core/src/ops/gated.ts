import { checkOperands } from "../arguments.ts";
import { defineOp } from "../autograd/define-op.ts";
import { expectValue, ShapeError } from "../errors.ts";
import type { UnaryOp } from "../kernels/kernels.ts";
import { kernelEnumerations } from "../kernels/schema.ts";
import { elementwiseSharding } from "../placement/sharding.ts";
import { formatShape, sameShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

/** A gate, and the activation that is applied to it, or null for none. */
export interface Gate {
  readonly gate: Tensor;
  readonly activation: UnaryOp | null;
}

/** Returns activation(gate) · x, rounded once, in new memory. */
export function applyGate({ gate, activation }: Gate, x: Tensor): Tensor {
  const out = x.device.empty(x.shape, x.dtype);
  if (out.size > 0) x.device.kernels.gate(activation, out, gate, x);
  return out;
}

/** Returns the gradient of the gate: activation′(gate) · x · dOut. */
export function computeGateGradient({ gate, activation }: Gate, x: Tensor, dOut: Tensor): Tensor {
  const { device } = gate;
  const dGate = device.empty(gate.shape, gate.dtype);
  if (dGate.size === 0) return dGate;
  if (activation === null) {
    device.kernels.binary("mul", dGate, dOut, x);
    return dGate;
  }
  // float32, so that the product is rounded once.
  using dActivation = device.empty(gate.shape, "float32");
  device.kernels.binary("mul", dActivation, dOut, x);
  device.kernels.unaryBackward(activation, dGate, gate, dActivation);
  return dGate;
}

/** Throws an OptionError unless the activation is null or a UnaryOp. */
export function checkActivation(where: string, activation: UnaryOp | null): void {
  if (activation === null || kernelEnumerations.UnaryOp.includes(activation)) return;
  expectValue(`${where}: activation`, false, `null or one of ${kernelEnumerations.UnaryOp.join(", ")}`, activation);
}

/** Saves only the two inputs. The backward recomputes the activation, which is cheaper than the memory to save it. */
const gatedOp = defineOp({
  name: "gated",
  sharding: elementwiseSharding,
  forward([x, gate]: [Tensor, Tensor], activation: UnaryOp | null) {
    return { output: applyGate({ gate, activation }, x), saved: { x, gate, activation } };
  },
  backward: ({ x, gate, activation }, dOut, [needsGradX, needsGradGate]) => [
    needsGradX ? applyGate({ gate, activation }, dOut) : null,
    needsGradGate ? computeGateGradient({ gate, activation }, x, dOut) : null,
  ],
});

/**
 * Returns activation(gate) · x for x and gate of the same shape, rounded once (Dauphin et al. 2017; Shazeer 2020). If x
 * is the result of a linear layer, pass the gate to `linear` instead, which multiplies the sums before they are stored.
 *
 * @example
 * ```ts
 * import { fromArray, gated } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2, 3], [3]);
 * using gate = fromArray(device, [-1, 1, 2], [3]);
 * using y = gated(x, gate, "relu");
 * Array.from(await y.read()); // => [0, 2, 6]
 * ```
 * @throws ShapeError if the shapes differ; DTypeError if the dtypes differ; OptionError for an unknown activation.
 */
export function gated(x: Tensor, gate: Tensor, activation: UnaryOp | null = null): Tensor {
  checkOperands("gated", x, gate);
  if (!sameShape(x.shape, gate.shape)) {
    throw new ShapeError({
      where: "gated",
      expected: "x and a gate of one shape",
      received: `${formatShape(x.shape)} and ${formatShape(gate.shape)}`,
    });
  }
  checkActivation("gated", activation);
  return gatedOp([x, gate], activation);
}
