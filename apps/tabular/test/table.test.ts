import { MosaicError } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import {
  countRows,
  createTable,
  loadDataset,
  computeNormalScores,
  type DatasetName,
  selectRows,
  standardize,
  type TableSchema,
} from "../src/datasets.ts";

const schema: TableSchema = { name: "t", columns: ["a", "b"], label: ({ y }) => (y === null ? undefined : y === 1) };

describe("createTable", () => {
  it("accepts numbers and numeric text", () => {
    const table = createTable(
      [
        { a: 1, b: "2.5", y: 1 },
        { a: 3, b: 4, y: 0 },
      ],
      schema,
    );
    expect([...table.features]).toEqual([1, 2.5, 3, 4]);
    expect([...table.labels]).toEqual([1, 0]);
    expect(table.classes).toEqual([false, true]);
  });

  it("accepts classes by name", () => {
    const records = ["c", "a", "b", "a"].map((y) => ({ a: 1, b: 1, y }));
    const table = createTable(records, { ...schema, label: ({ y }) => y as string });
    expect(table.classes).toEqual(["a", "b", "c"]);
    expect([...table.labels]).toEqual([2, 0, 1, 0]);
  });

  it.each([
    ["a null", { a: null, b: 1, y: 1 }, /table t, row 1: .*null in a/s],
    ["text", { a: "NA", b: 1, y: 1 }, /"NA" in a/],
    ["blank text", { a: " ", b: 1, y: 1 }, /" " in a/],
    ["a missing column", { a: 1, y: 1 }, /nothing in b/],
    ["a missing class", { a: 1, b: 1, y: null }, /no class/],
  ])("rejects %s, and suggests missingValuePolicy", (_, record, message) => {
    const createInvalidTable = () => createTable([{ a: 1, b: 1, y: 0 }, record], schema);
    expect(createInvalidTable).toThrow(MosaicError);
    expect(createInvalidTable).toThrow(message);
    expect(createInvalidTable).toThrow(/missingValuePolicy: "drop"/);
  });

  it("drops rows with missing values if missingValuePolicy is drop", () => {
    const table = createTable(
      [
        { a: null, b: 1, y: 0 },
        { a: 5, b: 6, y: 1 },
      ],
      { ...schema, missingValuePolicy: "drop" },
    );
    expect([...table.features]).toEqual([5, 6]);
  });
});

describe("standardize", () => {
  it("uses the mean and deviation of the known rows only", () => {
    const table = createTable(
      [
        { a: 1, b: 0, y: 0 },
        { a: 3, b: 0, y: 1 },
        { a: 100, b: 7, y: 1 },
      ],
      schema,
    );
    const standardized = standardize(table, 2, 10);
    expect([...standardized]).toEqual([-1, 0, 1, 0, 10, 7]);
  });

  it.each([
    ["a large offset", (i: number) => 1.7e9 + i / 10],
    ["values that float32 has not", (i: number) => 1e300 * (i - 1)],
    ["the largest values", (i: number) => Number.MAX_VALUE * (i - 1)],
    ["values whose squares are 0", (i: number) => 1e-200 * i],
  ])("distinguishes values in columns of %s", (_, valueAt) => {
    const records = [0, 1, 2, 1].map((i) => ({ a: valueAt(i), b: 5, y: 0 }));
    const scores = [...standardize(createTable(records, schema), 3)].filter((_score, i) => i % 2 === 0);
    for (const [i, expected] of [-1.2247, 0, 1.2247, 0].entries()) expect(scores[i]).toBeCloseTo(expected, 4);
  });
});

describe("standardize, a column that is constant among the known rows", () => {
  it.each([
    [0.1, 7],
    [0.1, 10],
    [3.3, 50],
    [1_000_000.1, 333],
  ])("of %d in %d rows is 0, and other cells are differences from it", (value, knownRows) => {
    const records = Array.from({ length: knownRows + 2 }, (_, i) => ({
      a: i > knownRows ? value + 0.25 : value,
      y: 0,
    }));
    const table = createTable(records, { ...schema, columns: ["a"] });
    const scores = [...standardize(table, knownRows)];
    expect(scores.pop()).toBeCloseTo(0.25, 8);
    expect(new Set(scores)).toEqual(new Set([0]));
  });
});

describe("computeNormalScores", () => {
  it("computes normal scores from the known rows only", () => {
    const records = [5, 1, 1, 1000, 2, -7, 4000].map((a) => ({ a, b: 0, y: 0 }));
    const { features } = computeNormalScores(createTable(records, schema), 4);
    const readColumn = (i: number): number[] => [...features].filter((_, at) => at % 2 === i);
    // Mean ranks of the known cells are 2.5, 1, 1 and 3.5. Other cells are between two known ones (2), below and above
    // all.
    const scores = [0, -0.524, -0.524, 0.842, 0, -1.282, 1.282];
    const [firstScore, ...otherScores] = readColumn(0);
    expect(firstScore).toBeCloseTo(0.253, 2);
    for (const [i, score] of otherScores.entries()) expect(score).toBeCloseTo(scores[i + 1]!, 2);
    expect(readColumn(1).every((score) => Math.abs(score) < 1e-3)).toBe(true);
  });
});

describe("data sets", () => {
  it.each<[DatasetName, number, number]>([
    ["penguins", 333, 4],
    ["species", 342, 4],
    ["cars", 392, 6],
    ["weather", 1461, 3],
    ["flights", 231_083, 2],
  ])("%s has the expected rows, finite features and classes", (name, rows, columns) => {
    const table = loadDataset(name);
    expect(countRows(table)).toBe(rows);
    expect(table.features).toHaveLength(rows * columns);
    expect(table.features.every(Number.isFinite)).toBe(true);
    expect(table.classes).toEqual(name === "species" ? ["Adelie", "Chinstrap", "Gentoo"] : [false, true]);
    expect(new Set(table.labels).size).toBe(table.classes.length);
  });

  it("selects rows in order", () => {
    const selectedRows = selectRows(loadDataset("penguins"), [3, 0]);
    expect(countRows(selectedRows)).toBe(2);
    expect([...selectedRows.features.subarray(4)]).toEqual([...loadDataset("penguins").features.subarray(0, 4)]);
  });
});
