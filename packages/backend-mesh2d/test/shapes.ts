import { backendSuite, type Case, placements } from "@mosaic/conformance";
import { mesh2d } from "../src/index.ts";
import { makeWorld } from "./world.ts";

export type GridShape = readonly [rows: number, columns: number];

/** Every grid of up to so many ranks. */
export function gridsUpTo(ranks: number): GridShape[] {
  const lengths = Array.from({ length: ranks }, (_, i) => i + 1);
  return lengths.flatMap((rows) =>
    lengths.filter((columns) => rows * columns <= ranks).map((c): GridShape => [rows, c]),
  );
}

/**
 * The suite's cases for some grids, in one form: on each grid all masks, groupings of heads and lengths, three of the five
 * placements (the other form meets the other two as well), dtypes and arrivals in turn, and that bits do not depend on
 * when messages come.
 */
export function suiteOf(form: "fused" | "scheduled", grids: readonly GridShape[]): Case[] {
  return grids.flatMap((shape, i) => {
    const arrangement = { mesh: { sp: shape[0] * shape[1] }, axes: ["sp"], backend: mesh2d({ shape, form }) };
    const cases = backendSuite({ makeWorld, arrangements: [arrangement] });
    // Two cases per placement, one for each dtype; what comes after them is no such case.
    const chosen = placements().flatMap((_, j) => {
      const turn = (j + i + (form === "fused" ? 0 : 3)) % 5;
      return turn < 3 ? [2 * j + ((turn >> 1) ^ (i % 2))] : [];
    });
    return cases
      .filter((_, j) => j >= 2 * placements().length || chosen.includes(j))
      .map((each) => ({ ...each, name: `${shape.join(" × ")}, ${form}: ${each.name}` }));
  });
}
