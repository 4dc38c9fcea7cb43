import { type Context, noGrad } from "@mosaic/attention";
import { loadBatch, type RowPlan } from "./batch.ts";
import type { TabularModel } from "./model.ts";
import type { Table } from "./table.ts";

/** How probably each row asked here is of class 1. */
export async function predict(
  ctx: Context,
  model: TabularModel,
  task: { readonly table: Table; readonly knownRows: number; readonly plan: RowPlan },
): Promise<Float64Array> {
  using batch = loadBatch(ctx, [task.table], task.knownRows, task.plan);
  using logits = noGrad(() => model.forward(batch));
  const pairs = await logits.read();
  return Float64Array.from({ length: task.plan.asked.count }, (_, row) => {
    return 1 / (1 + Math.exp(pairs[2 * row]! - pairs[2 * row + 1]!));
  });
}
