import { expect, test } from "vitest";
import { bestGrid, type Grid, keysAt, queriesAt } from "../src/grid.ts";
import { gridsUpTo } from "./shapes.ts";

const offsets = (length: number) => Array.from({ length }, (_, i) => i);

test.each(gridsUpTo(12))(
  "%d × %d: every block is computed once, and each rank's own is in its tile",
  (rows, columns) => {
    const grid: Grid = { rows, columns };
    const size = rows * columns;
    const times = new Array<number>(size * size).fill(0);
    for (const rank of offsets(size)) {
      expect(queriesAt(grid, rank, 0)).toBe(rank);
      expect(keysAt(grid, rank, 0)).toBe(rank);
      for (const x of offsets(columns)) {
        expect(queriesAt(grid, queriesAt(grid, rank, x), -x)).toBe(rank);
        for (const y of offsets(rows)) times[queriesAt(grid, rank, x) * size + keysAt(grid, rank, y)]!++;
      }
      for (const y of offsets(rows)) expect(keysAt(grid, keysAt(grid, rank, y), -y)).toBe(rank);
    }
    expect(times.every((count) => count === 1)).toBe(true);
  },
);

test("the grid and tile of Mesh-Attention, figure 5: rank 4 of 15, three queries by five keys", () => {
  const grid = { rows: 5, columns: 3 };
  expect(offsets(3).map((x) => queriesAt(grid, 4, x))).toEqual([4, 5, 3]);
  expect(offsets(5).map((y) => keysAt(grid, 4, y))).toEqual([4, 7, 10, 13, 1]);
});

test("the grid that sends least grows tall as key heads grow few", () => {
  expect(bestGrid(256, 1, 1)).toEqual({ rows: 16, columns: 16 });
  expect(bestGrid(256, 4, 1)).toEqual({ rows: 32, columns: 8 });
  expect(bestGrid(256, 8, 1)).toEqual({ rows: 32, columns: 8 });
  expect(bestGrid(7, 1, 1)).toEqual({ rows: 1, columns: 7 });
  expect(bestGrid(1, 1, 1)).toEqual({ rows: 1, columns: 1 });
});

test("the more parts keys come in, the wider the grid, but never wider than the one nearest to a square", () => {
  expect(bestGrid(32, 8, 1)).toEqual({ rows: 16, columns: 2 });
  expect(bestGrid(32, 8, 3)).toEqual({ rows: 8, columns: 4 });
  expect(bestGrid(32, 8, 32)).toEqual({ rows: 4, columns: 8 });
  expect(bestGrid(36, 1, 1000)).toEqual({ rows: 6, columns: 6 });
});
