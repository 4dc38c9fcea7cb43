import { dtypeBytes, type Tensor } from "@mosaic/core";
import type { Pass, Tile } from "./pass.ts";
import { type Plan, planOf } from "./plan.ts";
import type { PlanOptions } from "./progress.ts";

/** What plans rest on beside the pass: equal on all ranks. */
export interface PlanSettings {
  readonly channels: 1 | 2;
  readonly computeToTransfer: number;
  readonly links: readonly [row: number, column: number];
}

/** Makes the plan of a pass, once for passes of one kind. */
export class Plans {
  readonly #settings: PlanSettings;
  readonly #plans = new Map<string, Plan>();

  constructor(settings: PlanSettings) {
    this.#settings = settings;
  }

  /**
   * Costs are bytes per position times what a byte takes, so that ranks with chunks of other lengths have the same plan; masks
   * leave it as it is too: what is empty is skipped when the plan is replayed. So is what does not travel with this tile, and
   * costs nothing.
   */
  planOf({ queries, backward, grid }: Pass, { keys, first, last }: Tile): Plan {
    const { rows, columns } = grid;
    const { channels, computeToTransfer, links } = this.#settings;
    const q = links[0] * bytesPerRow(queries.inputs);
    const kv = links[1] * bytesPerRow(keys.inputs);
    const out = links[0] * bytesPerRow(queries.sums);
    const dkv = links[1] * bytesPerRow(keys.sums);
    const transfer = (columns - 1) * (q + out) + (rows - 1) * (kv + dkv);
    // A grid of one rank moves nothing: any cost will do.
    const block = ((transfer || 1) * computeToTransfer) / (rows * columns);
    const costs = { q: first ? q : 0, kv, out: last ? out : 0, dkv, block };
    return this.#remember({ queries: columns, keys: rows, backward, channels, costs });
  }

  #remember(options: PlanOptions): Plan {
    const { queries, keys, backward, costs } = options;
    const name = `${queries},${keys},${backward},${Object.values(costs).join()}`;
    const plan = this.#plans.get(name) ?? planOf(options);
    this.#plans.set(name, plan);
    return plan;
  }
}

/** Of one sequence: H·D numbers, or H, for each of the tensors. */
function bytesPerRow(tensors: readonly Tensor[]): number {
  const width = ({ shape: [, heads, , ...rest] }: Tensor) => rest.reduce((a, b) => a * b, heads!);
  return tensors.reduce((sum, tensor) => sum + width(tensor) * dtypeBytes[tensor.dtype], 0);
}
