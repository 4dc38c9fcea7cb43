import { describe, expect, it } from "vitest";
import { sampleTable } from "../src/prior.ts";
import { Random } from "../src/random.ts";
import { sampleTables, defaultTraining } from "../src/training.ts";

describe("the prior", () => {
  it("draws complete tables of two classes, of any size, the same for the same seed", () => {
    for (let seed = 0; seed < 200; seed++) {
      const size = { rows: 20 + seed, columns: 1 + (seed % 8) };
      const table = sampleTable(new Random(seed), size);
      expect(table.features).toHaveLength(size.rows * size.columns);
      expect(table.features.every(Number.isFinite)).toBe(true);
      expect(new Set(table.labels)).toEqual(new Set([0, 1]));
      expect(sampleTable(new Random(seed), size)).toEqual(table);
    }
  });

  it("gives all tables of a step one size", () => {
    const { all, knownRows } = sampleTables(7, defaultTraining);
    expect(all).toHaveLength(defaultTraining.tables);
    expect(new Set(all.map(({ labels }) => labels.length)).size).toBe(1);
    expect(knownRows).toBeLessThan(all[0]!.labels.length);
  });
});
