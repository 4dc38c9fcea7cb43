import { type Context, reduceGradients, scope } from "@mosaic/attention";
import { dataParallelRank, dataParallelSize } from "@mosaic/attention/core";
import { clipGradNorm, crossEntropy, loadCheckpoint, saveCheckpoint, ScheduleFreeAdamW } from "@mosaic/attention/nn";
import { loadBatch, assignRows } from "./batch.ts";
import type { TabularModel } from "./model.ts";
import { sampleTable } from "./prior.ts";
import { Random } from "./random.ts";
import type { Table } from "./datasets.ts";

/** Options of a training. */
export interface TrainingOptions {
  readonly steps: number;
  /** Number of cells in a step, including classes, over all ranks: many small tables or a few large ones. */
  readonly cells: number;
  readonly seed: number;
  readonly learningRate: number;
  /** Minimum and maximum number of rows of a table. */
  readonly rowCountRange: readonly [least: number, most: number];
  /** Minimum and maximum number of feature columns. */
  readonly columnCountRange: readonly [least: number, most: number];
  /** Maximum number of classes of a table. */
  readonly maxClasses: number;
}

/** Options of a training from random weights, with nanoTabPFN's optimizer. */
export const defaultTrainingOptions: TrainingOptions = {
  steps: 6000,
  cells: 8192,
  seed: 0,
  learningRate: 4e-3,
  rowCountRange: [40, 400],
  columnCountRange: [2, 8],
  maxClasses: 10,
};

/** Options of a training from trained weights: larger tables, more cells, and a lower learning rate. */
export const fineTuningOptions: TrainingOptions = {
  ...defaultTrainingOptions,
  steps: 1000,
  cells: 16_384,
  seed: 3,
  learningRate: 3e-4,
  rowCountRange: [64, 800],
};

/** Tables of one size with the same number of known rows. */
interface StepTables {
  readonly allTables: readonly Table[];
  readonly knownRows: number;
}

/** Returns at least `ranks` tables of one size for a step. They depend on the seed and step only, not on the rank. */
export function sampleTables(step: number, options: TrainingOptions, ranks = 1): StepTables {
  const random = new Random(options.seed * 1_000_003 + step);
  const [minRows, maxRows] = options.rowCountRange;
  const size = {
    rows: Math.round(minRows * (maxRows / minRows) ** random.uniform()),
    columns: random.integer(...options.columnCountRange),
    classes: random.uniform() < 0.6 ? 2 : random.integer(2, random.integer(2, options.maxClasses)),
  };
  const numTables = Math.max(ranks, Math.round(options.cells / (size.rows * (size.columns + 1))));
  const knownRows = Math.floor(size.rows * (0.3 + 0.5 * random.uniform()));
  return { allTables: Array.from({ length: numTables }, () => sampleTable(random, size)), knownRows };
}

/** Number of warm-up steps of the learning rate. */
const WARMUP_STEPS = 20;

/**
 * Trains on tables of the prior. Data-parallel ranks share the tables of a step. The result is independent of
 * their number.
 */
export class Trainer implements Disposable {
  readonly #optimizer: ScheduleFreeAdamW;
  readonly #ctx: Context;
  readonly #model: TabularModel;
  readonly #options: TrainingOptions;

  constructor(ctx: Context, model: TabularModel, options: TrainingOptions) {
    this.#ctx = ctx;
    this.#model = model;
    this.#options = options;
    this.#optimizer = new ScheduleFreeAdamW(model, { lr: options.learningRate, warmupSteps: WARMUP_STEPS });
  }

  /** Runs one step. Resolves to the mean cross-entropy over all ranks' rows. */
  async step(step: number): Promise<number> {
    const ctx = this.#ctx;
    const [rank, ranks] = [dataParallelRank(ctx.mesh), dataParallelSize(ctx.mesh)];
    const { allTables, knownRows } = sampleTables(step, this.#options, ranks);
    const rankTables = allTables.slice(
      Math.floor((rank * allTables.length) / ranks),
      Math.floor(((rank + 1) * allTables.length) / ranks),
    );
    const assignment = assignRows(allTables[0]!.labels.length, knownRows, { rank: 0, ranks: 1 });
    using batch = loadBatch(ctx, rankTables, { knownRows, assignment, maxClasses: this.#model.options.maxClasses });
    using loss = scope(() => {
      const loss = crossEntropy(ctx, this.#model.forward(batch), batch.targets);
      this.#model.zeroGrad();
      loss.backward();
      reduceGradients(ctx, this.#model);
      clipGradNorm(this.#model, 1).dispose();
      this.#optimizer.step();
      return loss;
    });
    return loss.item();
  }

  /** Number of completed steps, including those before a checkpoint. */
  get steps(): number {
    return this.#optimizer.steps;
  }

  /** Runs `body` while the model has the averaged weights of the training's steps. */
  async withAveragedWeights(body: () => Promise<void>): Promise<void> {
    this.#optimizer.eval();
    await body();
    this.#optimizer.train();
  }

  /** Writes a checkpoint. Collective. */
  async save(path: string): Promise<void> {
    await saveCheckpoint(this.#ctx, path, { model: this.#model, optimizer: this.#optimizer });
  }

  /** Loads a checkpoint that `save` wrote. Collective. */
  async load(path: string): Promise<void> {
    await loadCheckpoint(this.#ctx, path, { model: this.#model, optimizer: this.#optimizer });
  }

  [Symbol.dispose](): void {
    this.#optimizer[Symbol.dispose]();
  }
}
