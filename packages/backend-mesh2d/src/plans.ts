import { dtypeBytes, type Tensor } from "@mosaic/core";
import type { Grid } from "./grid.ts";
import type { Pass } from "./pass.ts";
import { type Plan, planOf } from "./plan.ts";
import type { PlanOptions } from "./simulate.ts";

/** Makes the plan of a pass, once for passes of one kind. */
export class Plans {
  readonly #computeToTransfer: number;
  readonly #plans = new Map<string, Plan>();

  constructor(computeToTransfer: number) {
    this.#computeToTransfer = computeToTransfer;
  }

  /**
   * Costs are bytes per position, so that ranks with chunks of other lengths have the same plan; masks leave it as it is
   * too: what is empty is skipped when the plan is replayed.
   */
  planOf({ queries, keys, backward }: Pass, { rows, columns }: Grid): Plan {
    const q = bytesPerRow(queries.inputs);
    const kv = bytesPerRow(keys.inputs);
    const out = bytesPerRow(queries.sums);
    const dkv = bytesPerRow(keys.sums);
    const transfer = (columns - 1) * (q + out) + (rows - 1) * (kv + dkv);
    // A grid of one rank moves nothing: any cost will do.
    const block = ((transfer || 1) * this.#computeToTransfer) / (rows * columns);
    const options = { queries: columns, keys: rows, backward, costs: { q, kv, out, dkv, block } };
    return this.#remember(options);
  }

  #remember(options: PlanOptions): Plan {
    const name = JSON.stringify(options);
    const plan = this.#plans.get(name) ?? planOf(options);
    this.#plans.set(name, plan);
    return plan;
  }
}

/** B·H·D numbers, or B·H, for each of the tensors. */
function bytesPerRow(tensors: readonly Tensor[]): number {
  const width = ({ shape: [batch, heads, , ...rest] }: Tensor) => rest.reduce((a, b) => a * b, batch! * heads!);
  return tensors.reduce((sum, tensor) => sum + width(tensor) * dtypeBytes[tensor.dtype], 0);
}
