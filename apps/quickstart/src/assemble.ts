import { positions } from "@mosaic/attention/core";
import { type RankReport, readTensor, type Results } from "./job.ts";
import type { Settings } from "./settings.ts";

/** What the ranks left in the folder, in the order of the sequence: each tensor [H,n,D]; NaN where nobody wrote. */
export function assemble(folder: string, reports: readonly RankReport[], settings: Settings): Results {
  const { numHeads, tokens, dim, backward } = settings;
  const names = backward ? ["out", "dq", "dk", "dv"] : ["out"];
  const whole = names.map((name) => [name, new Float32Array(numHeads * tokens * dim).fill(Number.NaN)] as const);
  for (const { rank, spans } of reports) {
    const rows = positions(spans);
    for (const [name, tensor] of whole) {
      const part = readTensor(folder, name, rank);
      for (let head = 0; head < numHeads; head++) {
        rows.forEach((position, row) => {
          const from = (head * rows.length + row) * dim;
          tensor.set(part.subarray(from, from + dim), (head * tokens + position) * dim);
        });
      }
    }
  }
  return Object.fromEntries(whole);
}
