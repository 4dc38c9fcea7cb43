import type { Context } from "@mosaic/attention";
import { logisticRegression, multiclassAuc, nearestNeighbors, type ClassificationTask } from "./baselines.ts";
import { assignRows } from "./batch.ts";
import { countRows, loadDataset, type DatasetName, selectRows, standardize } from "./datasets.ts";
import type { TabularModel } from "./model.ts";
import { defaultEnsemble, type EnsembleOptions, predict } from "./predict.ts";
import { Random } from "./random.ts";

/** Comparison of the model with the baselines by areas under the ROC curve, one for each seed. */
export interface Comparison {
  readonly name: DatasetName;
  readonly rows: number;
  readonly knownRows: number;
  readonly model: readonly number[];
  readonly logistic: readonly number[];
  readonly neighbors: readonly number[];
}

export const mean = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / values.length;

/** Returns the difference of the model's mean and the better baseline's mean. Negative if the baseline is better. */
export function meanGain({ model, logistic, neighbors }: Comparison): number {
  return mean(model) - Math.max(mean(logistic), mean(neighbors));
}

/** Options of a comparison: the table, the seeds, and the model's ensemble. */
export interface ComparisonOptions {
  readonly name: DatasetName;
  readonly seeds: readonly number[];
  readonly ensemble?: EnsembleOptions;
}

/**
 * Compares methods with half of a table's rows, at most 500, known and the others predicted. Each seed has its own
 * split.
 */
export async function compareMethods(
  ctx: Context,
  model: TabularModel,
  options: ComparisonOptions,
): Promise<Comparison> {
  const { name, seeds, ensemble = defaultEnsemble } = options;
  const fullTable = loadDataset(name);
  const rows = countRows(fullTable);
  const knownRows = Math.min(500, Math.floor(rows / 2));
  const aucs = { model: [] as number[], logistic: [] as number[], neighbors: [] as number[] };
  for (const seed of seeds) {
    const table = selectRows(fullTable, new Random(seed).permutation(rows));
    const classCount = table.classes.length;
    const computeAuc = (probabilities: Float64Array): number =>
      multiclassAuc(table.labels.subarray(knownRows), probabilities, classCount);
    const assignment = assignRows(rows, knownRows, { rank: 0, ranks: 1 });
    aucs.model.push(computeAuc(await predict(ctx, model, { table, knownRows, assignment }, ensemble)));
    const features = standardize(table, knownRows);
    const width = table.columns.length;
    const task: ClassificationTask = {
      width,
      classCount,
      trainFeatures: features.subarray(0, knownRows * width),
      labels: table.labels.subarray(0, knownRows),
      testFeatures: features.subarray(knownRows * width),
    };
    aucs.logistic.push(computeAuc(logisticRegression(task)));
    aucs.neighbors.push(computeAuc(nearestNeighbors(task)));
  }
  return { name, rows, knownRows, ...aucs };
}
