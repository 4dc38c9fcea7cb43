import { describe, expect, it } from "vitest";
import { sampleTable } from "../src/prior.ts";
import { Random } from "../src/random.ts";
import { sampleTables, defaultTrainingOptions } from "../src/training.ts";

describe("the prior", () => {
  it("draws complete tables of any size with 2 to 10 classes, the same for the same seed", () => {
    for (let seed = 0; seed < 90; seed++) {
      const size = { rows: 20 + seed, columns: 1 + (seed % 8), classes: 2 + (seed % 9) };
      const table = sampleTable(new Random(seed), size);
      expect(table.features).toHaveLength(size.rows * size.columns);
      expect(table.features.every(Number.isFinite)).toBe(true);
      const occurringLabels = new Set(table.labels);
      expect(occurringLabels.size).toBeGreaterThan(1);
      expect(Math.max(...occurringLabels)).toBeLessThan(size.classes);
      expect(table.classes).toHaveLength(size.classes);
      expect(sampleTable(new Random(seed), size)).toEqual(table);
    }
  });

  it("draws tables of two rows with two classes", () => {
    for (let seed = 0; seed < 200; seed++) {
      const { labels } = sampleTable(new Random(seed), { rows: 2, columns: 1, classes: 3 });
      expect(new Set(labels).size, `seed ${seed}`).toBe(2);
    }
  });

  it("gives all tables of a step the same size, and draws enough for the step's cells and for every rank", () => {
    for (let step = 1; step <= 8; step++) {
      const { allTables, knownRows } = sampleTables(step, defaultTrainingOptions);
      const sizes = allTables.map(({ labels, columns, classes }) => [labels.length, columns.length, classes.length]);
      expect(new Set(sizes.map(String)).size).toBe(1);
      const [rows, columns] = sizes[0] as [number, number];
      expect(Math.abs(allTables.length * rows * (columns + 1) - defaultTrainingOptions.cells)).toBeLessThanOrEqual(
        (rows * (columns + 1)) / 2,
      );
      expect(knownRows).toBeLessThan(rows);
    }
    expect(sampleTables(7, { ...defaultTrainingOptions, cells: 1 }, 3).allTables).toHaveLength(3);
  });

  it("draws rows of all three classes in more than 15 of 50 tables", () => {
    const random = new Random(5);
    const threeClassTables = Array.from({ length: 50 }, () =>
      sampleTable(random, { rows: 300, columns: 4, classes: 3 }),
    ).filter(({ labels }) => new Set(labels).size === 3);
    expect(threeClassTables.length).toBeGreaterThan(15);
  });
});
