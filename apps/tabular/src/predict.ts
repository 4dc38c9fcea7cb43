import { fileURLToPath } from "node:url";
import { type Context, noGrad } from "@mosaic/attention";
import { readSafetensors, writeSafetensors } from "@mosaic/attention/nn";
import { loadBatch, type RowAssignment } from "./batch.ts";
import type { Table } from "./datasets.ts";
import { defaultOptions, TabularModel, type TabularOptions } from "./model.ts";

/** The weights that this directory ships, made by `train.ts`, twice: from random weights, and to refine. */
export const defaultWeights: string = fileURLToPath(new URL("../weights.safetensors", import.meta.url));

/** A model with the weights of a file. */
export async function loadModel(
  ctx: Context,
  path: string = defaultWeights,
  options: TabularOptions = defaultOptions,
): Promise<TabularModel> {
  const model = new TabularModel(ctx, options);
  const { tensors } = await readSafetensors(path);
  model.loadStateDict(tensors);
  return model;
}

export async function saveModel(model: TabularModel, path: string): Promise<void> {
  await writeSafetensors(path, model.stateDict());
}

/**
 * The probability of class 1 for each target row of this rank. Which class is called 1 is arbitrary: the table is read under both names,
 * and the log-odds are averaged (an ensemble of Hollmann et al. 2023), so that the answer does not depend on it.
 */
export async function predict(
  ctx: Context,
  model: TabularModel,
  task: { readonly table: Table; readonly knownRows: number; readonly plan: RowAssignment },
): Promise<Float64Array> {
  const { table, knownRows, plan } = task;
  const renamed = { ...table, labels: table.labels.map((label) => 1 - label) };
  using batch = loadBatch(ctx, [table, renamed], knownRows, plan);
  using logits = noGrad(() => model.forward(batch));
  const pairs = await logits.read();
  const { count } = plan.testRows;
  const logitDifference = (row: number): number => pairs[2 * row + 1]! - pairs[2 * row]!;
  return Float64Array.from({ length: count }, (_, row) => {
    return 1 / (1 + Math.exp((logitDifference(count + row) - logitDifference(row)) / 2));
  });
}

/** An integer from `least` to `most` off the command line. Throws an Error that reports what was expected. */
export function parseInteger(name: string, text: string, [min, max]: readonly [number, number]): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= min && value <= max) return value;
  const range = max === Number.MAX_SAFE_INTEGER ? `from ${min}` : `from ${min} to ${max}`;
  throw new Error(`${name}: expected an integer ${range}, received "${text}"`);
}
