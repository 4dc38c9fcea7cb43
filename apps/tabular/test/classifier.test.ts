import { type Context, cpu, MosaicError, world } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import { type Rows, TabularClassifier, type TabularClassifierOptions } from "../src/classifier.ts";
import { type ClassName, loadDataset, selectRows } from "../src/datasets.ts";
import { Random } from "../src/random.ts";

async function runOnRanks<T>(ranks: number, body: (ctx: Context) => Promise<T>): Promise<T[]> {
  const contexts = await world(ranks, { spSize: ranks, device: () => cpu({ threads: 1 }) });
  try {
    return await Promise.all(contexts.map(body));
  } finally {
    for (const ctx of contexts) await ctx.close();
  }
}

/** Loads penguins: the measurements x and the species y. */
function loadPenguins(): { x: number[][]; y: ClassName[] } {
  const fullTable = loadDataset("species");
  const { features, labels, columns, classes } = selectRows(fullTable, new Random(0).permutation(342).slice(0, 100));
  return {
    x: Array.from(labels, (_, row) => Array.from(features.subarray(row * columns.length, (row + 1) * columns.length))),
    y: Array.from(labels, (label) => classes[label]!),
  };
}

const { x, y } = loadPenguins();
const [knownX, unknownX] = [x.slice(0, 57), x.slice(57)];
const species = y.slice(0, 57);

/** Predicts probabilities and classes of the unknown rows, by rank. */
const predictOnRanks = (ranks: number, options?: TabularClassifierOptions, columns?: readonly number[]) => {
  const permuteColumns = (rows: Rows): Rows => (columns ? rows.map((row) => columns.map((i) => row[i]!)) : rows);
  return runOnRanks(ranks, async (ctx) => {
    using classifier = new TabularClassifier(ctx, options);
    await classifier.fit(permuteColumns(knownX), species);
    const { classes } = classifier;
    const permutedX = permuteColumns(unknownX);
    return { classes, rows: await classifier.predictProba(permutedX), names: await classifier.predict(permutedX) };
  });
};

function expectClose(actual: readonly number[][], expected: readonly number[][]): void {
  expect(actual).toHaveLength(expected.length);
  for (const [row, cells] of actual.entries()) {
    for (const [i, p] of cells.entries()) expect(p).toBeCloseTo(expected[row]![i]!, 4);
  }
}

describe("TabularClassifier", () => {
  it("predicts one of several classes by name", async () => {
    const [result] = await predictOnRanks(1);
    expect(result!.classes).toEqual(["Adelie", "Chinstrap", "Gentoo"]);
    for (const row of result!.rows) expect(row.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 6);
    const numCorrect = result!.names.filter((name, row) => name === y[57 + row]).length;
    expect(numCorrect / unknownX.length).toBeGreaterThan(0.9);
  });

  it("predicts all rows on each of three ranks, as on one rank", async () => {
    const [[singleRankResult], rankResults] = [
      await predictOnRanks(1, { ensembleSize: 2 }),
      await predictOnRanks(3, { ensembleSize: 2 }),
    ];
    for (const rankResult of rankResults) expectClose(rankResult.rows, singleRankResult!.rows);
    expect(rankResults[2]!.rows).toEqual(rankResults[0]!.rows);
  });

  it("predicts a single row on three ranks", async () => {
    const rankProbabilities = await runOnRanks(3, async (ctx) => {
      using classifier = new TabularClassifier(ctx, { ensembleSize: 1 });
      await classifier.fit(knownX, species);
      return await classifier.predictProba(unknownX.slice(0, 1));
    });
    for (const probabilities of rankProbabilities) {
      expect(probabilities).toEqual(rankProbabilities[0]);
      expect(probabilities).toHaveLength(1);
    }
  });

  it("does not depend on the column order, nor on class names if the ensemble rotates all of them", async () => {
    const [result] = await predictOnRanks(1, { ensembleSize: 1 });
    const [permutedResult] = await predictOnRanks(1, { ensembleSize: 1 }, [2, 0, 3, 1]);
    expectClose(permutedResult!.rows, result!.rows);
    const renamedSpecies: Readonly<Record<string, string>> = { Adelie: "b", Chinstrap: "c", Gentoo: "a" };
    const [[originalResult], [renamedRows]] = await Promise.all([
      predictOnRanks(1, { ensembleSize: 3 }),
      runOnRanks(1, async (ctx) => {
        using classifier = new TabularClassifier(ctx, { ensembleSize: 3 });
        await classifier.fit(
          knownX,
          species.map((name) => renamedSpecies[String(name)]!),
        );
        return await classifier.predictProba(unknownX);
      }),
    ]);
    expectClose(
      renamedRows!.map(([gentoo, adelie, chinstrap]) => [adelie!, chinstrap!, gentoo!]),
      originalResult!.rows,
    );
  });

  it.each([
    ["with a large offset", (cell: number) => 1.7e9 + cell / 1024],
    ["beyond float32", (cell: number) => cell * 2 ** 900],
  ])("predicts the same for columns %s", async (_, moveCell) => {
    const moveRows = (rows: Rows): Rows => rows.map((row) => Array.from(row, moveCell));
    const [[result], [movedRows]] = await Promise.all([
      predictOnRanks(1, { ensembleSize: 6 }),
      runOnRanks(1, async (ctx) => {
        using classifier = new TabularClassifier(ctx, { ensembleSize: 6 });
        await classifier.fit(moveRows(knownX), species);
        return {
          rows: await classifier.predictProba(moveRows(unknownX)),
          names: await classifier.predict(moveRows(unknownX)),
        };
      }),
    ]);
    for (const [row, cells] of movedRows!.rows.entries()) {
      for (const [i, p] of cells.entries()) expect(p).toBeCloseTo(result!.rows[row]![i]!, 2);
    }
    expect(movedRows!.names).toEqual(result!.names);
  });

  it.each<[string, (classifier: TabularClassifier) => Promise<unknown>, RegExp]>([
    [
      "rows before fit",
      (c) => c.predictProba(unknownX),
      /predictProba: expected a fitted classifier.*fit\(x, y\) first/,
    ],
    ["no rows", (c) => c.fit([], []), /fit: expected x, an array of at least one row/],
    [
      "a missing cell",
      (c) => c.fit([[1, Number.NaN]], ["a"]),
      /x, row 0, column 1: expected a finite number, received NaN; fill missing/,
    ],
    [
      "rows of two lengths",
      (c) => c.fit([[1, 2], [3]], ["a", "b"]),
      /x, row 1: expected 2 columns, as in the first row, received 1/,
    ],
    [
      "too few classes for the rows",
      (c) => c.fit(knownX, ["a"]),
      /y: expected an array of 57 classes, one per row, received 1/,
    ],
    ["a row without a class", (c) => c.fit([[1], [2]], ["a", null as never]), /y, row 1: expected .* received null/],
    [
      "numbers among strings",
      (c) => c.fit([[1], [2]], ["a", 1]),
      /y, row 1: .* of the same type .* received 1, and "a" in row 0/,
    ],
    [
      "one class",
      (c) => c.fit([[1], [2]], [7, 7]),
      /y: expected 2 to 10 classes, received 1; pass rows of at least two classes/,
    ],
    [
      "11 classes",
      (c) =>
        c.fit(
          knownX.slice(0, 11),
          knownX.slice(0, 11).map((_, i) => i),
        ),
      /2 to 10 classes, received 11/,
    ],
    [
      "other columns than before",
      async (c) => (await c.fit(knownX, species)).predictProba([[1, 2]]),
      /row 0: expected 4 columns, as in fit/,
    ],
  ])("rejects %s", async (_, callClassifier, message) => {
    await runOnRanks(1, async (ctx) => {
      using classifier = new TabularClassifier(ctx);
      await expect(callClassifier(classifier)).rejects.toThrow(MosaicError);
      await expect(callClassifier(classifier)).rejects.toThrow(message);
    });
  });
});
