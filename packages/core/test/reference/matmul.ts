import type { Kernels } from "../../src/kernels/kernels.ts";
import { numel } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { applyUnary } from "./elementwise.ts";
import type { Memory } from "./memory.ts";

export function matmul(memory: Memory): Pick<Kernels, "matmul" | "linear"> {
  return {
    matmul(out, a, b, accumulate) {
      const result = accumulate ? memory.load(out) : new Array<number>(out.size).fill(0);
      addProduct(memory, result, [out, a, b]);
      memory.store(out, result);
    },
    linear(out, a, b, { bias, activation, gate, preActivation }) {
      const result = bias ? memory.load(bias, out.shape) : new Array<number>(out.size).fill(0);
      addProduct(memory, result, [out, a, b]);
      if (preActivation) memory.store(preActivation, result);
      const activate = (value: number) => (activation === null ? value : applyUnary(activation, value));
      const gateValues = gate ? memory.load(gate) : null;
      memory.store(
        out,
        result.map((value, i) => (gateValues ? activate(gateValues[i]!) * value : activate(value))),
      );
    },
  };
}

/** Adds a · b to result, which has the shape of out. */
function addProduct(memory: Memory, result: number[], [out, a, b]: readonly [Tensor, Tensor, Tensor]): void {
  const batch = out.shape.slice(0, -2);
  const [m, n] = out.shape.slice(-2) as [number, number];
  const k = a.shape.at(-1)!;
  const leftValues = memory.load(a, [...batch, m, k]);
  const rightValues = memory.load(b, [...batch, k, n]);
  for (let x = 0; x < numel(batch); x++) {
    for (let i = 0; i < m; i++) {
      for (let j = 0; j < n; j++) {
        for (let l = 0; l < k; l++) {
          result[(x * m + i) * n + j]! += leftValues[(x * m + i) * k + l]! * rightValues[(x * k + l) * n + j]!;
        }
      }
    }
  }
}
