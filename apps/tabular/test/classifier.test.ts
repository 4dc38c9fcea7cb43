import { type Context, cpu, MosaicError, world } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import { type Rows, TabularClassifier, type TabularClassifierOptions } from "../src/classifier.ts";
import { type ClassName, loadDataset, selectRows } from "../src/datasets.ts";
import { Random } from "../src/random.ts";

async function onRanks<T>(ranks: number, run: (ctx: Context) => Promise<T>): Promise<T[]> {
  const contexts = await world(ranks, { spSize: ranks, device: () => cpu({ threads: 1 }) });
  try {
    return await Promise.all(contexts.map(run));
  } finally {
    for (const ctx of contexts) await ctx.close();
  }
}

/** Penguins by measures: [rows, species]. */
function penguins(): { x: number[][]; y: ClassName[] } {
  const whole = loadDataset("species");
  const { features, labels, columns, classes } = selectRows(whole, new Random(0).permutation(342).slice(0, 100));
  return {
    x: Array.from(labels, (_, row) => Array.from(features.subarray(row * columns.length, (row + 1) * columns.length))),
    y: Array.from(labels, (label) => classes[label]!),
  };
}

const { x, y } = penguins();
const [known, others] = [x.slice(0, 57), x.slice(57)];
const species = y.slice(0, 57);

/** Probabilities and classes of the other rows, by rank. */
const answers = (ranks: number, options?: TabularClassifierOptions, columns?: readonly number[]) => {
  const ordered = (rows: Rows): Rows => (columns ? rows.map((row) => columns.map((i) => row[i]!)) : rows);
  return onRanks(ranks, async (ctx) => {
    using classifier = new TabularClassifier(ctx, options);
    await classifier.fit(ordered(known), species);
    const { classes } = classifier;
    const unknown = ordered(others);
    return { classes, rows: await classifier.predictProba(unknown), names: await classifier.predict(unknown) };
  });
};

function expectClose(found: readonly number[][], expected: readonly number[][]): void {
  expect(found).toHaveLength(expected.length);
  for (const [row, cells] of found.entries()) {
    for (const [i, p] of cells.entries()) expect(p).toBeCloseTo(expected[row]![i]!, 4);
  }
}

describe("TabularClassifier", () => {
  it("predicts one of several classes by name", async () => {
    const [found] = await answers(1);
    expect(found!.classes).toEqual(["Adelie", "Chinstrap", "Gentoo"]);
    for (const row of found!.rows) expect(row.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 6);
    const right = found!.names.filter((name, row) => name === y[57 + row]).length;
    expect(right / others.length).toBeGreaterThan(0.9);
  });

  it("answers on three ranks, on each of them all rows, as on one", async () => {
    const [[alone], together] = [await answers(1, { ensembleSize: 2 }), await answers(3, { ensembleSize: 2 })];
    for (const each of together) expectClose(each.rows, alone!.rows);
    expect(together[2]!.rows).toEqual(together[0]!.rows);
  });

  it("answers a single row on more ranks than there are rows to answer", async () => {
    const parts = await onRanks(3, async (ctx) => {
      using classifier = new TabularClassifier(ctx, { ensembleSize: 1 });
      await classifier.fit(known, species);
      return await classifier.predictProba(others.slice(0, 1));
    });
    for (const part of parts) {
      expect(part).toEqual(parts[0]);
      expect(part).toHaveLength(1);
    }
  });

  it("does not care in which order the columns come, nor, in a whole turn of names, what classes are called", async () => {
    const [before] = await answers(1, { ensembleSize: 1 });
    const [after] = await answers(1, { ensembleSize: 1 }, [2, 0, 3, 1]);
    expectClose(after!.rows, before!.rows);
    const renamed: Readonly<Record<string, string>> = { Adelie: "b", Chinstrap: "c", Gentoo: "a" };
    const [[turn], [other]] = await Promise.all([
      answers(1, { ensembleSize: 3 }),
      onRanks(1, async (ctx) => {
        using classifier = new TabularClassifier(ctx, { ensembleSize: 3 });
        await classifier.fit(
          known,
          species.map((name) => renamed[String(name)]!),
        );
        return await classifier.predictProba(others);
      }),
    ]);
    expectClose(
      other!.map(([gentoo, adelie, chinstrap]) => [adelie!, chinstrap!, gentoo!]),
      turn!.rows,
    );
  });

  it.each<[string, (classifier: TabularClassifier) => Promise<unknown>, RegExp]>([
    ["rows before fit", (c) => c.predictProba(others), /predictProba: expected a fitted classifier.*fit\(x, y\) first/],
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
      (c) => c.fit(known, ["a"]),
      /y: expected an array of 57 classes, one per row, received 1/,
    ],
    ["a row without a class", (c) => c.fit([[1], [2]], ["a", null as never]), /y, row 1: expected .* received null/],
    [
      "numbers among strings",
      (c) => c.fit([[1], [2]], ["a", 1]),
      /y, row 1: .* of the same type .* received 1 after "a"/,
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
          known.slice(0, 11),
          known.slice(0, 11).map((_, i) => i),
        ),
      /2 to 10 classes, received 11/,
    ],
    [
      "other columns than before",
      async (c) => (await c.fit(known, species)).predictProba([[1, 2]]),
      /row 0: expected 4 columns, as in fit/,
    ],
  ])("refuses %s, with its place", async (_, use, message) => {
    await onRanks(1, async (ctx) => {
      using classifier = new TabularClassifier(ctx);
      await expect(use(classifier)).rejects.toThrow(MosaicError);
      await expect(use(classifier)).rejects.toThrow(message);
    });
  });
});
