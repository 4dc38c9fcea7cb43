import { backendSuite, type Case, broadcastSteps, placements, type Trial } from "@mosaic/conformance";
import type { Slice } from "@mosaic/core";
import { mesh2d } from "../src/index.ts";
import { formatTitle, type ScheduleVariant, scheduleVariants } from "./ways.ts";
import { makeWorld } from "../../../vitest.world.ts";

export type GridShape = readonly [rows: number, columns: number];

/** Returns all grids of up to `ranks` ranks. */
export function listGrids(ranks: number): GridShape[] {
  const lengths = Array.from({ length: ranks }, (_, i) => i + 1);
  return lengths.flatMap((rows) =>
    lengths.filter((columns) => rows * columns <= ranks).map((c): GridShape => [rows, c]),
  );
}

/**
 * Returns the suite's cases for some grids with one schedule variant. Each grid has all masks, groupings of heads and
 * lengths, alternating dtypes and arrivals, and some of the five placements (other variants have the others). Also
 * tests that results do not depend on when messages arrive.
 */
export function createSuite(variant: ScheduleVariant, grids: readonly GridShape[]): Case[] {
  return grids.flatMap((shape, i) => {
    // Compute takes half as long as transfers and so hides little. Schedules thus use batches of several transfers if
    // allowed.
    const backend = mesh2d({ shape, ...variant, computeToTransfer: 0.5 });
    const arrangement = { mesh: { sp: shape[0] * shape[1] }, axes: ["sp"], backend };
    const cases = backendSuite({ makeWorld, arrangements: [arrangement] });
    // Placements are rotated by the index of the grid. Of these, 0 and 1 are for the first variant, 2 and 3 for the
    // second, and 4 for the third. Each placement has two cases, one for each dtype. The cases after them do not depend
    // on placements.
    const selectedTrials = placements().flatMap((_, j) => {
      const rotation = (j + i) % 5;
      return Math.floor(rotation / 2) === scheduleVariants.indexOf(variant) ? [2 * j + ((rotation + i) % 2)] : [];
    });
    return cases
      .filter((_, j) => j >= 2 * placements().length || selectedTrials.includes(j))
      .map((each) => ({ ...each, name: `${shape.join(" × ")}, ${formatTitle(variant)}: ${each.name}` }));
  });
}

/** Returns the suite's cases for keys in two and in three parts, each for some placements and dtypes. */
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

/** Creates a trial with equal shards, by default with 4 rows, 4 KV heads and the full mask. */
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
