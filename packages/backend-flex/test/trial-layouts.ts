import type { MakeWorld, Trial } from "@mosaic/conformance";
import { layoutOf, positions } from "@mosaic/core";
import { makeWorld } from "../../../vitest.world.ts";

/**
 * Returns the host of each rank. Odd sizes have consecutive hosts of two ranks; even sizes have two alternating hosts.
 */
export function assignHosts(size: number): number[] {
  return Array.from({ length: size }, (_, rank) => (size % 2 === 1 ? Math.floor(rank / 2) : rank % 2));
}

/** As `makeWorld`, with ranks that appear to be on several hosts. */
export const makeWorldOverHosts: MakeWorld = async (size, options) => {
  const contexts = await makeWorld(size, options);
  const hosts = assignHosts(size);
  for (const { mesh } of contexts) {
    for (const group of mesh.axes.map((axis) => mesh.group(axis)))
      Object.defineProperty(group, "hosts", { value: group.ranks.map((rank) => hosts[rank]!) });
  }
  return contexts;
};

/** Creates the layouts of a trial. */
export function createLayouts({ mesh, axes, queries, keys }: Trial) {
  return { queries: layoutOf({ mesh, axes, ...queries }), keys: layoutOf({ mesh, axes, ...keys }) };
}

/**
 * Sums over all ranks the rows of other ranks to which any of their queries attends in any sample, counted pair by
 * pair.
 */
export function countRequiredRows(trial: Trial): number {
  const { queries, keys } = createLayouts(trial);
  let rows = 0;
  for (let rank = 0; rank < trial.mesh["sp"]!; rank++) {
    const ownQueries = [...positions(queries.spans({ sp: rank }))];
    const ownKeys = new Set(positions(keys.spans({ sp: rank })));
    const samples = Array.from({ length: trial.batch }, (_, sample) => sample);
    for (let k = 0; k < trial.keys.length; k++) {
      if (!ownKeys.has(k) && ownQueries.some((q) => samples.some((sample) => trial.maskMod(q, k, sample)))) rows++;
    }
  }
  return rows;
}
