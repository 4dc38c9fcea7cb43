import { type Context, cpu, ring, world } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import { assignRows } from "../src/batch.ts";
import { TabularModel, defaultOptions } from "../src/model.ts";
import { predict } from "../src/predict.ts";
import { sampleTable } from "../src/prior.ts";
import { Random } from "../src/random.ts";
import { selectRows, type Table } from "../src/datasets.ts";
import { Trainer, defaultTraining, type TrainingOptions } from "../src/training.ts";

const small = { ...defaultOptions, embedDim: 32, hiddenDim: 64, layers: 2 };
const table = sampleTable(new Random(3), { rows: 61, columns: 4, classes: 3 });
const knownRows = 37;

async function onRanks<T>(ranks: number, run: (ctx: Context) => Promise<T>, spSize = ranks): Promise<T[]> {
  const contexts = await world(ranks, { spSize, device: () => cpu({ threads: 1 }) });
  try {
    return await Promise.all(contexts.map(run));
  } finally {
    for (const ctx of contexts) await ctx.close();
  }
}

/** Probabilities of all target rows and classes, in the table's order. */
async function answers(given: Table, ranks = 1): Promise<number[]> {
  const parts = await onRanks(ranks, async (ctx) => {
    using model = new TabularModel(ctx, { ...small, rows: ring() });
    const plan = assignRows(given.labels.length, knownRows, { rank: ctx.rank, ranks });
    return await predict(ctx, model, { table: given, knownRows, plan }, { size: 3, seed: 0 });
  });
  return parts.flatMap((part) => [...part]);
}

describe("the model", () => {
  it("lets no row to be predicted influence another, to the bit", async () => {
    const before = await answers(table);
    const width = table.columns.length;
    const changed = table.features.slice();
    changed.fill(9, (knownRows + 5) * width, (knownRows + 6) * width);
    const after = await answers({ ...table, features: changed });
    const others = (all: number[]): number[] => [...all.slice(0, 5 * 3), ...all.slice(6 * 3)];
    expect(after.slice(5 * 3, 6 * 3)).not.toEqual(before.slice(5 * 3, 6 * 3));
    expect(others(after)).toEqual(others(before));
  });

  it("does not care what the classes are called, once each has had each number", async () => {
    const renamed = await answers({ ...table, labels: table.labels.map((label) => (label + 1) % 3) });
    for (const [i, p] of (await answers(table)).entries()) {
      expect(renamed[i - (i % 3) + ((i + 1) % 3)]!).toBeCloseTo(p, 6);
    }
  });

  it("does not read the target classes", async () => {
    const labels = table.labels.slice();
    labels.fill(1, knownRows);
    expect(await answers({ ...table, labels })).toEqual(await answers(table));
  });

  it("does not care in which order its known rows come", async () => {
    const order = new Random(1).permutation(knownRows);
    const all = [...order, ...Array.from({ length: table.labels.length - knownRows }, (_, i) => knownRows + i)];
    const [before, after] = [await answers(table), await answers(selectRows(table, all))];
    for (const [i, p] of after.entries()) expect(p).toBeCloseTo(before[i]!, 5);
  });

  it.each([2, 3, 4])("answers on %d ranks as on one", async (ranks) => {
    const [alone, together] = [await answers(table), await answers(table, ranks)];
    expect(together).toHaveLength(alone.length);
    for (const [i, p] of together.entries()) expect(p).toBeCloseTo(alone[i]!, 5);
  });
});

describe("assignRows", () => {
  it.each([
    [61, 37, 4],
    [6, 3, 4],
    [5, 1, 3],
    [231_083, 20_000, 4],
  ])("shares %d rows, %d of them known, over %d ranks: each once, evenly", (rows, known, ranks) => {
    const plans = Array.from({ length: ranks }, (_, rank) => assignRows(rows, known, { rank, ranks }));
    const covered = (share: "trainRows" | "testRows"): number[] =>
      plans.flatMap((plan) => [plan[share].first, plan[share].first + plan[share].count]);
    expect(covered("trainRows").filter((x, i, all) => i % 2 === 0 && i > 0 && x !== all[i - 1])).toEqual([]);
    expect([covered("trainRows")[0], covered("trainRows").at(-1)]).toEqual([0, known]);
    expect(covered("testRows").filter((x, i, all) => i % 2 === 0 && i > 0 && x !== all[i - 1])).toEqual([]);
    expect([covered("testRows")[0], covered("testRows").at(-1)]).toEqual([known, rows]);
    const sizes = plans.map((plan) => plan.trainRows.count + plan.testRows.count);
    expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1);
  });
});

describe("training", () => {
  const tiny = { maxClasses: 3, embedDim: 16, numHeads: 2, hiddenDim: 32, layers: 1 };
  const options: TrainingOptions = {
    ...{ ...defaultTraining, steps: 30, learningRate: 1e-2 },
    ...{ cells: 1600, rows: [40, 80], columns: [2, 4], maxClasses: 2 },
  };

  const curve = (ranks: number, steps: number): Promise<number[][]> =>
    onRanks(
      ranks,
      async (ctx) => {
        using model = new TabularModel(ctx, tiny);
        using trainer = new Trainer(ctx, model, options);
        const losses: number[] = [];
        for (let step = 1; step <= steps; step++) losses.push(await trainer.step(step));
        return losses;
      },
      1,
    );

  it.each([2, 4])("has the same loss curve on %d ranks that share the tables as on one", async (ranks) => {
    const [[alone], together] = [await curve(1, 12), await curve(ranks, 12)];
    for (const losses of together) {
      expect(losses).toEqual(together[0]);
      for (const [i, loss] of losses.entries()) expect(loss).toBeCloseTo(alone![i]!, 4);
    }
  });

  it("learns", async () => {
    const [losses] = await curve(1, 150);
    const mean = (from: number, to: number): number => losses!.slice(from, to).reduce((a, b) => a + b, 0) / (to - from);
    expect(mean(100, 150)).toBeLessThan(mean(0, 50) - 0.01);
  });
});
