import { maskTrials, placements } from "@mosaic/conformance";
import { layoutOf, masks, positions } from "@mosaic/core";
import { dependencyTable } from "@mosaic/core/context-parallel";
import { expect, test } from "vitest";
import { bestGrid, type Grid, keyOwner, queryOwner, createTile, TileCache } from "../src/tile.ts";
import { listGrids } from "./shapes.ts";

const offsets = (length: number) => Array.from({ length }, (_, i) => i);

test.each(listGrids(12))(
  "%d × %d: every block is computed once, and each rank's own block is in its tile",
  (rows, columns) => {
    const grid: Grid = { rows, columns };
    const size = rows * columns;
    const computeCounts = new Array<number>(size * size).fill(0);
    for (const rank of offsets(size)) {
      expect(queryOwner(grid, rank, 0)).toBe(rank);
      expect(keyOwner(grid, rank, 0)).toBe(rank);
      for (const x of offsets(columns)) {
        expect(queryOwner(grid, queryOwner(grid, rank, x), -x)).toBe(rank);
        for (const y of offsets(rows)) computeCounts[queryOwner(grid, rank, x) * size + keyOwner(grid, rank, y)]!++;
      }
      for (const y of offsets(rows)) expect(keyOwner(grid, keyOwner(grid, rank, y), -y)).toBe(rank);
    }
    expect(computeCounts.every((count) => count === 1)).toBe(true);
  },
);

test("rank 4 of 15 has the tile of figure 5 of Mesh-Attention: three queries by five keys", () => {
  const grid = { rows: 5, columns: 3 };
  expect(offsets(3).map((x) => queryOwner(grid, 4, x))).toEqual([4, 5, 3]);
  expect(offsets(5).map((y) => keyOwner(grid, 4, y))).toEqual([4, 7, 10, 13, 1]);
});

test("bestGrid has more rows than columns if there are fewer KV heads than query heads", () => {
  expect(bestGrid(256, 1, 1)).toEqual({ rows: 16, columns: 16 });
  expect(bestGrid(256, 4, 1)).toEqual({ rows: 32, columns: 8 });
  expect(bestGrid(256, 8, 1)).toEqual({ rows: 32, columns: 8 });
  expect(bestGrid(7, 1, 1)).toEqual({ rows: 1, columns: 7 });
  expect(bestGrid(1, 1, 1)).toEqual({ rows: 1, columns: 1 });
});

test("bestGrid has more columns for more parts of keys, up to the grid nearest to a square", () => {
  expect(bestGrid(32, 8, 1)).toEqual({ rows: 16, columns: 2 });
  expect(bestGrid(32, 8, 3)).toEqual({ rows: 8, columns: 4 });
  expect(bestGrid(32, 8, 32)).toEqual({ rows: 4, columns: 8 });
  expect(bestGrid(36, 1, 1000)).toEqual({ rows: 6, columns: 6 });
});

test.each(listGrids(8))(
  "%d × %d: a chunk is sent exactly to the ranks that have a visible pair with it in their tile",
  (rows, columns) => {
    const grid = { rows, columns };
    const mesh = { sp: rows * columns };
    // Visibility is exact for spans of step 1, which contiguous, zigzag, ragged and scattered placements have.
    for (const placement of placements().filter(({ name }) => name !== "striped")) {
      for (const { mask, maskMod } of maskTrials(17, 17, 3)) {
        const layout = layoutOf({ mesh, axes: ["sp"], placement, length: 17 });
        const listHeldPositions = (sp: number) => [...positions(layout.spans({ sp }))];
        const isAnyPairVisible = (q: number, k: number) =>
          listHeldPositions(q).some((i) => listHeldPositions(k).some((j) => maskMod(i, j)));
        const visibility = offsets(mesh.sp).map((a) => offsets(mesh.sp).map((b) => isAnyPairVisible(a, b)));
        const tiles = offsets(mesh.sp).map((sp) => {
          const call = { at: { sp }, mask: mask.slices(17, 17), queries: layout, keys: layout };
          return createTile(grid, sp, dependencyTable({ axis: "sp", size: mesh.sp }, call, call.at));
        });
        for (const [rank, { queries, keys }] of tiles.entries()) {
          const isSeen = (x: number, y: number) => visibility[queryOwner(grid, rank, x)]![keyOwner(grid, rank, y)]!;
          const areRowsSeen = offsets(columns).map((x) => offsets(rows).some((y) => isSeen(x, y)));
          const areColumnsSeen = offsets(rows).map((y) => offsets(columns).some((x) => isSeen(x, y)));
          expect(queries.sources.map((source) => source !== undefined)).toEqual(areRowsSeen);
          expect(keys.sources.map((source) => source !== undefined)).toEqual(areColumnsSeen);
          // Every send has a matching receive.
          for (const [peers, getOtherPeers] of [
            [queries, (rank: number) => tiles[rank]!.queries],
            [keys, (rank: number) => tiles[rank]!.keys],
          ] as const) {
            for (const [offset, destination] of peers.destinations.entries()) {
              if (destination !== undefined) expect(getOtherPeers(destination).sources[offset]).toBe(rank);
            }
          }
        }
        const countRanks = (chunks: "sources" | "destinations") =>
          tiles.flatMap(({ rank, queries, keys }) =>
            [...queries[chunks], ...keys[chunks]].filter((each) => each !== undefined && each !== rank),
          ).length;
        expect(countRanks("destinations")).toBe(countRanks("sources"));
      }
    }
  },
);

test("TileCache returns tiles of the requested grid", () => {
  const layout = layoutOf({ mesh: { sp: 6 }, axes: ["sp"], length: 17 });
  const call = { at: { sp: 4 }, mask: masks.causal().slices(17, 17), queries: layout, keys: layout };
  const dependencies = dependencyTable({ axis: "sp", size: 6 }, call, call.at);
  const tiles = new TileCache(dependencies);
  for (const grid of [
    { rows: 2, columns: 3 },
    { rows: 3, columns: 2 },
    { rows: 6, columns: 1 },
    { rows: 2, columns: 3 },
  ]) {
    for (let rank = 0; rank < 6; rank++) {
      const { queries, keys } = createTile(grid, rank, dependencies);
      expect(tiles.get(grid, rank).queries.sources).toEqual(queries.sources);
      expect(tiles.get(grid, rank).keys.destinations).toEqual(keys.destinations);
    }
  }
});
