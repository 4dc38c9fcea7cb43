import { type Context, noGrad } from "@mosaic/attention";
import { loadBatch, type RowAssignment } from "./batch.ts";
import { computeNormalScores, type Table } from "./datasets.ts";
import type { TabularModel } from "./model.ts";
import { Random } from "./random.ts";

/** A table, the number of its known rows, and the rows of this rank. */
export interface Task {
  readonly table: Table;
  readonly knownRows: number;
  readonly assignment: RowAssignment;
}

/** Number of ensemble members, and their random seed. */
export interface EnsembleOptions {
  readonly size: number;
  readonly seed: number;
}

export const defaultEnsemble: EnsembleOptions = { size: 8, seed: 0 };

/** One representation of a table. */
interface EnsembleMember {
  /** The number by which the model represents each class. */
  readonly classNumbers: readonly number[];
  /** Whether columns are replaced by their normal scores. */
  readonly usesNormalScores: boolean;
}

/**
 * Predicts probabilities [target rows of this rank × classes], row-major. The numbering of classes and the scale of
 * columns are arbitrary, so the log-odds of several representations of the table are averaged (an ensemble as in
 * Hollmann et al. 2023). Columns are not permuted, because this model does not depend on their order.
 */
export async function predict(
  ctx: Context,
  model: TabularModel,
  task: Task,
  ensemble: EnsembleOptions = defaultEnsemble,
): Promise<Float64Array> {
  const { table, knownRows, assignment } = task;
  const classCount = table.classes.length;
  const meanScores = new Float64Array(assignment.testRows.count * classCount);
  for (const { classNumbers, usesNormalScores } of createEnsemble(classCount, ensemble)) {
    const permutedTable = {
      ...(usesNormalScores ? computeNormalScores(table, knownRows) : table),
      labels: table.labels.map((label) => classNumbers[label]!),
    };
    using batch = loadBatch(ctx, [permutedTable], { knownRows, assignment, maxClasses: model.options.maxClasses });
    using logits = noGrad(() => model.forward(batch));
    const scores = await logits.read();
    for (let i = 0; i < meanScores.length; i++) {
      const [row, label] = [Math.floor(i / classCount), i % classCount];
      meanScores[i]! += scores[row * classCount + classNumbers[label]!]! / ensemble.size;
    }
  }
  return softmaxRows(meanScores, classCount);
}

/**
 * Returns the members of the ensemble. Classes are shifted through all numbers after a random permutation, alternately
 * with the original columns and with normal scores.
 */
function createEnsemble(classCount: number, { size, seed }: EnsembleOptions): readonly EnsembleMember[] {
  const random = new Random(seed);
  let order: number[] = [];
  return Array.from({ length: size }, (_, i) => {
    const shift = i % classCount;
    if (shift === 0) order = random.permutation(classCount);
    const classNumbers = order.map((classIndex) => (classIndex + shift) % classCount);
    return { classNumbers, usesNormalScores: Math.floor(i / classCount) % 2 === 1 };
  });
}

function softmaxRows(scores: Float64Array, width: number): Float64Array {
  const out = new Float64Array(scores.length);
  for (let rowStart = 0; rowStart < scores.length; rowStart += width) {
    const row = scores.subarray(rowStart, rowStart + width);
    const maxScore = Math.max(...row);
    const exponentials = row.map((x) => Math.exp(x - maxScore));
    const total = exponentials.reduce((a, b) => a + b, 0);
    out.set(
      exponentials.map((x) => x / total),
      rowStart,
    );
  }
  return out;
}
