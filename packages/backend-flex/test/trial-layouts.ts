import type { MakeWorld, Trial } from "@mosaic/conformance";
import { layoutOf, positions } from "@mosaic/core";
import { makeWorld } from "../../../vitest.world.ts";

/** The host of each of so many ranks: in order, of two ranks each, or every other rank on one of two. */
export function assignHosts(size: number): number[] {
  return Array.from({ length: size }, (_, rank) => (size % 2 === 1 ? Math.floor(rank / 2) : rank % 2));
}

/** As `makeWorld`, as if ranks were on several hosts. */
export const makeWorldOverHosts: MakeWorld = async (size, options) => {
  const contexts = await makeWorld(size, options);
  const hosts = assignHosts(size);
  for (const { mesh } of contexts) {
    for (const group of mesh.axes.map((axis) => mesh.group(axis)))
      Object.defineProperty(group, "hosts", { value: group.ranks.map((rank) => hosts[rank]!) });
  }
  return contexts;
};

/** The layouts of a trial. */
export function createLayouts({ mesh, axes, queries, keys }: Trial) {
  return { queries: layoutOf({ mesh, axes, ...queries }), keys: layoutOf({ mesh, axes, ...keys }) };
}

/** Σ over ranks of the rows of others that some query of theirs sees in some sample, pair by pair. */
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
