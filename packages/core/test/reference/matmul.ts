import type { Kernels } from "../../src/kernels/kernels.ts";
import { numel } from "../../src/shape.ts";
import type { Memory } from "./memory.ts";

export function matmul(memory: Memory): Pick<Kernels, "matmul"> {
  return {
    matmul(out, a, b, accumulate) {
      const batch = out.shape.slice(0, -2);
      const [m, n] = out.shape.slice(-2) as [number, number];
      const k = a.shape.at(-1)!;
      const left = memory.load(a, [...batch, m, k]);
      const right = memory.load(b, [...batch, k, n]);
      const result = accumulate ? memory.load(out) : new Array<number>(out.size).fill(0);
      for (let x = 0; x < numel(batch); x++) {
        for (let i = 0; i < m; i++) {
          for (let j = 0; j < n; j++) {
            for (let l = 0; l < k; l++) {
              result[(x * m + i) * n + j]! += left[(x * m + i) * k + l]! * right[(x * k + l) * n + j]!;
            }
          }
        }
      }
      memory.store(out, result);
    },
  };
}
