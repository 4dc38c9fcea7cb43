import { maskTrials, placements } from "@mosaic/conformance";
import { causal, layoutOf, positions } from "@mosaic/core";
import { expect, test } from "vitest";
import { keysAt, queriesAt } from "../src/grid.ts";
import { needOf, Needs, shardsAlong } from "../src/need.ts";
import { gridsUpTo } from "./shapes.ts";

const offsets = (length: number) => Array.from({ length }, (_, i) => i);

test.each(gridsUpTo(8))(
  "%d × %d: a chunk goes to those who see a pair of it in their tile, and to nobody else",
  (rows, columns) => {
    const grid = { rows, columns };
    const mesh = { sp: rows * columns };
    // Of spans without steps it is known exactly what they show: contiguous, zigzag, ragged and scattered.
    for (const placement of placements().filter(({ name }) => name !== "striped")) {
      for (const { mask, sees } of maskTrials(17, 17, 3)) {
        const layout = layoutOf({ mesh, axes: ["sp"], placement, length: 17 });
        const held = (sp: number) => [...positions(layout.spans({ sp }))];
        const shows = (q: number, k: number) => held(q).some((i) => held(k).some((j) => sees(i, j)));
        const known = offsets(mesh.sp).map((a) => offsets(mesh.sp).map((b) => shows(a, b)));
        const needs = offsets(mesh.sp).map((sp) => {
          const call = { at: { sp }, mask: mask.slices(17, 17), queries: layout, keys: layout };
          return needOf(grid, sp, shardsAlong("sp", mesh.sp, call, call.at));
        });
        for (const [rank, { queries, keys }] of needs.entries()) {
          const seen = (x: number, y: number) => known[queriesAt(grid, rank, x)]![keysAt(grid, rank, y)]!;
          const rowsSeen = offsets(columns).map((x) => offsets(rows).some((y) => seen(x, y)));
          const columnsSeen = offsets(rows).map((y) => offsets(columns).some((x) => seen(x, y)));
          expect(queries.sources.map((source) => source !== undefined)).toEqual(rowsSeen);
          expect(keys.sources.map((source) => source !== undefined)).toEqual(columnsSeen);
          // Whoever sends knows of whoever receives.
          for (const [side, other] of [
            [queries, (taker: number) => needs[taker]!.queries],
            [keys, (taker: number) => needs[taker]!.keys],
          ] as const) {
            for (const [offset, taker] of side.takers.entries()) {
              if (taker !== undefined) expect(other(taker).sources[offset]).toBe(rank);
            }
          }
        }
        const count = (chunks: "sources" | "takers") =>
          needs.flatMap(({ rank, queries, keys }) =>
            [...queries[chunks], ...keys[chunks]].filter((each) => each !== undefined && each !== rank),
          ).length;
        expect(count("takers")).toBe(count("sources"));
      }
    }
  },
);

test("needs that are kept are those of the grid that is asked for", () => {
  const layout = layoutOf({ mesh: { sp: 6 }, axes: ["sp"], length: 17 });
  const call = { at: { sp: 4 }, mask: causal().slices(17, 17), queries: layout, keys: layout };
  const shards = shardsAlong("sp", 6, call, call.at);
  const needs = new Needs(shards);
  for (const grid of [
    { rows: 2, columns: 3 },
    { rows: 3, columns: 2 },
    { rows: 6, columns: 1 },
    { rows: 2, columns: 3 },
  ]) {
    for (let rank = 0; rank < 6; rank++) {
      const { queries, keys } = needOf(grid, rank, shards);
      expect(needs.of(grid, rank).queries.sources).toEqual(queries.sources);
      expect(needs.of(grid, rank).keys.takers).toEqual(keys.takers);
    }
  }
});
