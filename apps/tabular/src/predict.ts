import { type Context, noGrad } from "@mosaic/attention";
import { loadBatch, type RowPlan } from "./batch.ts";
import type { TabularModel } from "./model.ts";
import type { Table } from "./table.ts";

/**
 * How probably each row asked here is of class 1. Which class is called 1 is arbitrary: the table is read under both names,
 * and the log-odds are averaged (an ensemble of Hollmann et al. 2023), so that the answer does not depend on it.
 */
export async function predict(
  ctx: Context,
  model: TabularModel,
  task: { readonly table: Table; readonly knownRows: number; readonly plan: RowPlan },
): Promise<Float64Array> {
  const { table, knownRows, plan } = task;
  const renamed = { ...table, labels: table.labels.map((label) => 1 - label) };
  using batch = loadBatch(ctx, [table, renamed], knownRows, plan);
  using logits = noGrad(() => model.forward(batch));
  const pairs = await logits.read();
  const { count } = plan.asked;
  const oddsOf = (row: number): number => pairs[2 * row + 1]! - pairs[2 * row]!;
  return Float64Array.from({ length: count }, (_, row) => {
    return 1 / (1 + Math.exp((oddsOf(count + row) - oddsOf(row)) / 2));
  });
}
