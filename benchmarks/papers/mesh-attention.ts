import type { Cluster } from "./clusters.ts";
import { meshTimes, meshTimeSizes, wirings } from "./mesh-times.ts";
import { meshVolumes, meshVolumeSizes } from "./mesh-volumes.ts";
import { type Comparison, compare } from "./plans.ts";
import type { Table } from "./table.ts";
import { tile } from "./ways.ts";

/** Multi-head and grouped attention of a usual size, and eight heads, as tensor parallelism within nodes leaves of 64. */
const sizes = [
  { numHeads: 32, numKvHeads: 32, headDim: 128 },
  { numHeads: 32, numKvHeads: 8, headDim: 128 },
  { numHeads: 8, numKvHeads: 8, headDim: 128 },
] as const;

/** All of Mesh-Attention. */
export function meshAttentionTables(): readonly Table[] {
  const { tables, bandwidthOf } = meshTimes(meshTimeSizes);
  const { tokens } = meshTimeSizes.fitted;
  // One port a GPU is what such clusters have today; four for eight is what comes closest to the paper's times.
  const clusters = wirings
    .filter(({ ports, ranksPerNode }) => ranksPerNode === 8 && ports >= 4)
    .map((wiring): Cluster => ({ gpu: "h100", wiring, bandwidth: bandwidthOf.get(wiring.name)! }));
  const comparisons = clusters.flatMap((cluster) =>
    sizes.map((size): Comparison => {
      const on = { cluster, ranks: meshTimeSizes.ranks, theirs: [tile([8, 32])] };
      return { id: "mesh.plans", title: "256 ranks", problem: { ...size, tokens }, ...on };
    }),
  );
  return [...meshVolumes(meshVolumeSizes), ...tables, ...comparisons.map(compare)];
}
