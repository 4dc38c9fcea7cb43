import { type Context, cpu, ring, world } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import { assignRows } from "../src/batch.ts";
import { TabularModel, defaultOptions } from "../src/model.ts";
import { predict } from "../src/predict.ts";
import { sampleTable } from "../src/prior.ts";
import { Random } from "../src/random.ts";
import { selectRows, type Table } from "../src/datasets.ts";
import { Trainer, defaultTrainingOptions, type TrainingOptions } from "../src/training.ts";

const smallOptions = { ...defaultOptions, embedDim: 32, hiddenDim: 64, layers: 2 };
const table = sampleTable(new Random(3), { rows: 61, columns: 4, classes: 3 });
const knownRows = 37;

async function runOnRanks<T>(ranks: number, body: (ctx: Context) => Promise<T>, spSize = ranks): Promise<T[]> {
  const contexts = await world(ranks, { spSize, device: () => cpu({ threads: 1 }) });
  try {
    return await Promise.all(contexts.map(body));
  } finally {
    for (const ctx of contexts) await ctx.close();
  }
}

/** Returns the probabilities of all target rows and classes, in the order of the table. */
async function computeLogits(inputTable: Table, ranks = 1): Promise<number[]> {
  const rankLogits = await runOnRanks(ranks, async (ctx) => {
    using model = new TabularModel(ctx, { ...smallOptions, rowBackend: ring() });
    const assignment = assignRows(inputTable.labels.length, knownRows, { rank: ctx.rank, ranks });
    return await predict(ctx, model, { table: inputTable, knownRows, assignment }, { size: 3, seed: 0 });
  });
  return rankLogits.flatMap((localLogits) => [...localLogits]);
}

describe("the model", () => {
  it("predicts each row independently of other rows to be predicted, bit for bit", async () => {
    const originalLogits = await computeLogits(table);
    const width = table.columns.length;
    const changedFeatures = table.features.slice();
    changedFeatures.fill(9, (knownRows + 5) * width, (knownRows + 6) * width);
    const changedLogits = await computeLogits({ ...table, features: changedFeatures });
    const omitSixthRow = (logits: number[]): number[] => [...logits.slice(0, 5 * 3), ...logits.slice(6 * 3)];
    expect(changedLogits.slice(5 * 3, 6 * 3)).not.toEqual(originalLogits.slice(5 * 3, 6 * 3));
    expect(omitSixthRow(changedLogits)).toEqual(omitSixthRow(originalLogits));
  });

  it("does not depend on the numbering of classes if the ensemble rotates all numbers", async () => {
    const renamedLogits = await computeLogits({ ...table, labels: table.labels.map((label) => (label + 1) % 3) });
    for (const [i, p] of (await computeLogits(table)).entries()) {
      expect(renamedLogits[i - (i % 3) + ((i + 1) % 3)]!).toBeCloseTo(p, 6);
    }
  });

  it("averages the log-odds of the members of an ensemble", async () => {
    const binaryTable = sampleTable(new Random(4), { rows: 50, columns: 3, classes: 2 });
    const seeds = [0, 1].map((firstClass) => {
      const isSeed = (seed: number): boolean => new Random(seed).permutation(2)[0] === firstClass;
      return Array.from({ length: 50 }, (_, seed) => seed).find(isSeed)!;
    });
    const [logOdds] = await runOnRanks(1, async (ctx) => {
      using model = new TabularModel(ctx, smallOptions);
      const assignment = assignRows(50, 30, { rank: 0, ranks: 1 });
      const task = { table: binaryTable, knownRows: 30, assignment };
      const predictions: (readonly number[])[] = [];
      for (const ensemble of [...seeds.map((seed) => ({ size: 1, seed })), { size: 2, seed: 0 }]) {
        const p = await predict(ctx, model, task, ensemble);
        predictions.push(Array.from({ length: p.length / 2 }, (_, row) => Math.log(p[2 * row + 1]! / p[2 * row]!)));
      }
      return predictions;
    });
    const [first, second, both] = logOdds as [readonly number[], readonly number[], readonly number[]];
    expect(first).not.toEqual(second);
    for (const [row, value] of both.entries()) expect(value).toBeCloseTo((first[row]! + second[row]!) / 2, 6);
  });

  it("does not read the target classes", async () => {
    const labels = table.labels.slice();
    labels.fill(1, knownRows);
    expect(await computeLogits({ ...table, labels })).toEqual(await computeLogits(table));
  });

  it("does not depend on the order of the known rows", async () => {
    const order = new Random(1).permutation(knownRows);
    const rowOrder = [...order, ...Array.from({ length: table.labels.length - knownRows }, (_, i) => knownRows + i)];
    const [originalLogits, permutedLogits] = [
      await computeLogits(table),
      await computeLogits(selectRows(table, rowOrder)),
    ];
    for (const [i, p] of permutedLogits.entries()) expect(p).toBeCloseTo(originalLogits[i]!, 5);
  });

  it.each([2, 3, 4])("predicts the same on %d ranks as on one", async (ranks) => {
    const [singleRankLogits, shardedLogits] = [await computeLogits(table), await computeLogits(table, ranks)];
    expect(shardedLogits).toHaveLength(singleRankLogits.length);
    for (const [i, p] of shardedLogits.entries()) expect(p).toBeCloseTo(singleRankLogits[i]!, 5);
  });
});

describe("assignRows", () => {
  it.each([
    [61, 37, 4],
    [6, 3, 4],
    [5, 1, 3],
    [231_083, 20_000, 4],
  ])("assigns %d rows, %d of them known, to %d ranks, each once and evenly", (rows, known, ranks) => {
    const plans = Array.from({ length: ranks }, (_, rank) => assignRows(rows, known, { rank, ranks }));
    const listCoveredRows = (rowKind: "trainRows" | "testRows"): number[] =>
      plans.flatMap((plan) => [plan[rowKind].first, plan[rowKind].first + plan[rowKind].count]);
    expect(listCoveredRows("trainRows").filter((x, i, all) => i % 2 === 0 && i > 0 && x !== all[i - 1])).toEqual([]);
    expect([listCoveredRows("trainRows")[0], listCoveredRows("trainRows").at(-1)]).toEqual([0, known]);
    expect(listCoveredRows("testRows").filter((x, i, all) => i % 2 === 0 && i > 0 && x !== all[i - 1])).toEqual([]);
    expect([listCoveredRows("testRows")[0], listCoveredRows("testRows").at(-1)]).toEqual([known, rows]);
    const sizes = plans.map((plan) => plan.trainRows.count + plan.testRows.count);
    expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1);
  });
});

describe("training", () => {
  const tinyOptions = { maxClasses: 3, embedDim: 16, numHeads: 2, hiddenDim: 32, layers: 1 };
  const options: TrainingOptions = {
    ...{ ...defaultTrainingOptions, steps: 30, learningRate: 1e-2 },
    ...{ cells: 1600, rowCountRange: [40, 80], columnCountRange: [2, 4], maxClasses: 2 },
  };

  const trainLosses = (ranks: number, steps: number): Promise<number[][]> =>
    runOnRanks(
      ranks,
      async (ctx) => {
        using model = new TabularModel(ctx, tinyOptions);
        using trainer = new Trainer(ctx, model, options);
        const losses: number[] = [];
        for (let step = 1; step <= steps; step++) losses.push(await trainer.step(step));
        return losses;
      },
      1,
    );

  it.each([2, 4])("has the same loss curve on %d ranks that share the tables as on one", async (ranks) => {
    const [[singleRankLosses], rankLosses] = [await trainLosses(1, 12), await trainLosses(ranks, 12)];
    for (const losses of rankLosses) {
      expect(losses).toEqual(rankLosses[0]);
      for (const [i, loss] of losses.entries()) expect(loss).toBeCloseTo(singleRankLosses![i]!, 4);
    }
  });

  it("reduces the loss", async () => {
    const [losses] = await trainLosses(1, 150);
    const meanLoss = (firstStep: number, endStep: number): number =>
      losses!.slice(firstStep, endStep).reduce((a, b) => a + b, 0) / (endStep - firstStep);
    expect(meanLoss(100, 150)).toBeLessThan(meanLoss(0, 50) - 0.01);
  });
});
