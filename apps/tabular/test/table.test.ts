import { MosaicError } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import {
  countRows,
  createTable,
  loadDataset,
  type DatasetName,
  selectRows,
  standardize,
  type TableSchema,
} from "../src/datasets.ts";

const recipe: TableSchema = { name: "t", columns: ["a", "b"], label: ({ y }) => (y === null ? undefined : y === 1) };

describe("tableOf", () => {
  it("takes numbers, and text that is a number", () => {
    const table = createTable(
      [
        { a: 1, b: "2.5", y: 1 },
        { a: 3, b: 4, y: 0 },
      ],
      recipe,
    );
    expect([...table.features]).toEqual([1, 2.5, 3, 4]);
    expect([...table.labels]).toEqual([1, 0]);
  });

  it.each([
    ["a null", { a: null, b: 1, y: 1 }, /table t, row 1: .*null in a/s],
    ["text", { a: "NA", b: 1, y: 1 }, /"NA" in a/],
    ["an empty text", { a: " ", b: 1, y: 1 }, /" " in a/],
    ["a column that is not there", { a: 1, y: 1 }, /nothing in b/],
    ["no class", { a: 1, b: 1, y: null }, /no class/],
  ])("refuses %s, with its place and a way out", (_, record, message) => {
    const make = () => createTable([{ a: 1, b: 1, y: 0 }, record], recipe);
    expect(make).toThrow(MosaicError);
    expect(make).toThrow(message);
    expect(make).toThrow(/missing: "drop"/);
  });

  it("leaves such rows out if the option is set", () => {
    const table = createTable(
      [
        { a: null, b: 1, y: 0 },
        { a: 5, b: 6, y: 1 },
      ],
      { ...recipe, missing: "drop" },
    );
    expect([...table.features]).toEqual([5, 6]);
  });
});

describe("standardize", () => {
  it("uses the known rows alone", () => {
    const table = createTable(
      [
        { a: 1, b: 0, y: 0 },
        { a: 3, b: 0, y: 1 },
        { a: 100, b: 7, y: 1 },
      ],
      recipe,
    );
    const standard = standardize(table, 2, 10);
    expect([...standard]).toEqual([-1, 0, 1, 0, 10, 7]);
  });
});

describe("data sets", () => {
  it.each<[DatasetName, number, number]>([
    ["penguins", 333, 4],
    ["cars", 392, 6],
    ["weather", 1461, 3],
    ["flights", 231_083, 2],
  ])("%s has its rows, complete, of two classes", (name, rows, columns) => {
    const table = loadDataset(name);
    expect(countRows(table)).toBe(rows);
    expect(table.features).toHaveLength(rows * columns);
    expect(table.features.every(Number.isFinite)).toBe(true);
    expect(new Set(table.labels)).toEqual(new Set([0, 1]));
  });

  it("selects rows in order", () => {
    const picked = selectRows(loadDataset("penguins"), [3, 0]);
    expect(countRows(picked)).toBe(2);
    expect([...picked.features.subarray(4)]).toEqual([...loadDataset("penguins").features.subarray(0, 4)]);
  });
});
