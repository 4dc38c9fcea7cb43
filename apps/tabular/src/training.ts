import { type Context, reduceGradients, scope } from "@mosaic/attention";
import { AdamW, clipGradNorm, cosine, crossEntropy, linearWarmup, ScheduleFreeAdamW } from "@mosaic/attention/nn";
import { loadBatch, assignRows } from "./batch.ts";
import type { TabularModel } from "./model.ts";
import { sampleTable } from "./prior.ts";
import { Random } from "./random.ts";
import type { Table } from "./datasets.ts";

/** What a training needs to know. */
export interface TrainingOptions {
  readonly steps: number;
  /** Tables a step, over all ranks. */
  readonly tables: number;
  readonly seed: number;
  readonly learningRate: number;
  /** Least and most rows of a table. */
  readonly rows: readonly [least: number, most: number];
  /** "free": schedule-free, on the way for as long as one likes. "cosine": a learning rate that falls to 0 in `steps`. */
  readonly schedule: "free" | "cosine";
}

/** From random weights. */
export const defaultTraining: TrainingOptions = {
  steps: 2500,
  tables: 16,
  seed: 0,
  learningRate: 4e-3,
  rows: [48, 128],
  schedule: "free",
};

/** From trained ones: larger tables, and ever smaller steps. */
export const fineTuningOptions: TrainingOptions = {
  ...defaultTraining,
  steps: 800,
  seed: 1,
  learningRate: 1e-3,
  rows: [64, 288],
  schedule: "cosine",
};

/** The tables of one step: all of one size, which the step's seed decides on every rank alike. */
export function sampleTables(
  step: number,
  { seed, tables, rows }: TrainingOptions,
): { all: Table[]; knownRows: number } {
  const random = new Random(seed * 1_000_003 + step);
  const size = { rows: random.integer(...rows), columns: random.integer(2, 7) };
  const knownRows = Math.floor(size.rows * (0.3 + 0.5 * random.uniform()));
  return { all: Array.from({ length: tables }, () => sampleTable(random, size)), knownRows };
}

/** Steps in which a learning rate that falls in the end rises at first. */
const WARMUP_STEPS = 20;

/** Trains on tables of the prior. Ranks along "dp" share the tables of a step; the result does not depend on how many. */
export class Trainer implements Disposable {
  readonly #optimizer: AdamW | ScheduleFreeAdamW;
  readonly #ctx: Context;
  readonly #model: TabularModel;
  readonly #options: TrainingOptions;

  constructor(ctx: Context, model: TabularModel, options: TrainingOptions) {
    this.#ctx = ctx;
    this.#model = model;
    this.#options = options;
    const { learningRate: lr, schedule, steps } = options;
    this.#optimizer =
      schedule === "free"
        ? new ScheduleFreeAdamW(model, { lr, warmupSteps: 100 })
        : new AdamW(model, {
            lr,
            weightDecay: 0,
            schedule: linearWarmup(WARMUP_STEPS, cosine(Math.max(1, steps - WARMUP_STEPS))),
          });
  }

  /** One step; resolves to the mean cross-entropy over all ranks' rows. */
  async step(step: number): Promise<number> {
    const ctx = this.#ctx;
    const { all, knownRows } = sampleTables(step, this.#options);
    const [rank, ranks] = [ctx.mesh.coordinate.dp ?? 0, ctx.mesh.shape.dp ?? 1];
    const mine = all.slice(Math.floor((rank * all.length) / ranks), Math.floor(((rank + 1) * all.length) / ranks));
    const plan = assignRows(all[0]!.labels.length, knownRows, { rank: 0, ranks: 1 });
    using batch = loadBatch(ctx, mine, knownRows, plan);
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

  /** Puts into the model what the training has come to. */
  loadAverages(): void {
    if (this.#optimizer instanceof ScheduleFreeAdamW) this.#optimizer.eval();
  }

  [Symbol.dispose](): void {
    this.#optimizer[Symbol.dispose]();
  }
}
