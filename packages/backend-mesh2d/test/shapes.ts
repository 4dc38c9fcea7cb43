import { backendSuite, type Case, broadcastSteps, placements, type Trial } from "@mosaic/conformance";
import type { Slice } from "@mosaic/core";
import { mesh2d } from "../src/index.ts";
import { formatTitle, type ScheduleVariant, scheduleVariants } from "./ways.ts";
import { makeWorld } from "../../../vitest.world.ts";

export type GridShape = readonly [rows: number, columns: number];

/** Every grid of up to so many ranks. */
export function listGrids(ranks: number): GridShape[] {
  const lengths = Array.from({ length: ranks }, (_, i) => i + 1);
  return lengths.flatMap((rows) =>
    lengths.filter((columns) => rows * columns <= ranks).map((c): GridShape => [rows, c]),
  );
}

/**
 * The suite's cases for some grids, in one way: on each grid all masks, groupings of heads and lengths, some of the five
 * placements (the other ways meet the others), dtypes and arrivals in turn, and that bits do not depend on when messages
 * come.
 */
export function createSuite(variant: ScheduleVariant, grids: readonly GridShape[]): Case[] {
  return grids.flatMap((shape, i) => {
    // Half as long as transfers, compute hides little: a schedule has more than one move in a batch where it may.
    const backend = mesh2d({ shape, ...variant, computeToTransfer: 0.5 });
    const arrangement = { mesh: { sp: shape[0] * shape[1] }, axes: ["sp"], backend };
    const cases = backendSuite({ makeWorld, arrangements: [arrangement] });
    // Placements 0 and 1 counted from the grid's own for the first way, 2 and 3 for the second, 4 for the third; then the
    // next. Two cases per placement, one for each dtype; what comes after them is no such case.
    const selectedTrials = placements().flatMap((_, j) => {
      const rotation = (j + i) % 5;
      return Math.floor(rotation / 2) === scheduleVariants.indexOf(variant) ? [2 * j + ((rotation + i) % 2)] : [];
    });
    return cases
      .filter((_, j) => j >= 2 * placements().length || selectedTrials.includes(j))
      .map((each) => ({ ...each, name: `${shape.join(" × ")}, ${formatTitle(variant)}: ${each.name}` }));
  });
}

/** The suite's cases for keys that come in two and in three parts, each on some placements and dtypes. */
export function createPartsSuite(): Case[] {
  return scheduleVariants.flatMap((variant, i) => {
    const [node, shape] = i === 1 ? ([3, [1, 2]] as const) : ([2, [2, 2]] as const);
    const backend = broadcastSteps("node", mesh2d({ shape, ...variant, computeToTransfer: 0.5 }));
    const arrangement = { mesh: { node, sp: shape[0] * shape[1] }, axes: ["node", "sp"], backend };
    return backendSuite({ makeWorld, arrangements: [arrangement] })
      .filter((_, j) => (i + j) % 3 === 0)
      .map((each) => ({ ...each, name: `${formatTitle(variant)}: ${each.name}` }));
  });
}

/** A trial with equal shards, of 4 rows and 4 heads by default, and the full mask. */
export function createEvenTrial(
  size: number,
  { rows = 4, numKvHeads = 4, mask }: { rows?: number; numKvHeads?: number; mask?: readonly Slice[] } = {},
): Trial {
  const length = rows * size;
  const sequence = { length, placement: placements()[0]! };
  const sizes = { batch: 1, numHeads: 4, numKvHeads, headDim: 8, scale: 0.5, dtype: "float32", seed: 1 } as const;
  const fullSlice: Slice = { q0: 0, q1: length, k0: 0, k1: length, type: "full" };
  const trialFields = { mask: mask ?? [fullSlice], maskMod: () => true, queries: sequence, keys: sequence };
  return { name: "even", mesh: { sp: size }, axes: ["sp"], ...sizes, ...trialFields };
}
