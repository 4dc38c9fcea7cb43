import { type Arrangement, alongOneAxis, broadcastSteps } from "@mosaic/conformance";
import { local } from "@mosaic/core";
import { flex } from "../src/index.ts";

/** Stages chosen by the cost model, none, several, and different numbers in the two passes. */
const stageOptions = [{}, { stages: 0 }, { stages: 3 }, { stages: { forward: 2, backward: 1 } }] as const;

/** Worlds of 1 to 8 ranks, with alternating stage options. */
export const singleAxisArrangements: readonly Arrangement[] = [1, 2, 3, 4, 5, 6, 7, 8].flatMap((size) =>
  alongOneAxis((axis) => flex({ axis, ...stageOptions[size % stageOptions.length] }), [size]),
);

/**
 * Queries are sent if that moves fewer bytes: with as many KV heads as query heads, if fewer queries attend to a shard
 * than it has keys.
 */
export const exchangeArrangements: readonly Arrangement[] = [3, 8].flatMap((size) =>
  alongOneAxis(
    (axis) => flex({ axis, queriesTravel: true, ...stageOptions[(size + 1) % stageOptions.length] }),
    [size],
  ),
);

/** Nested backends, and independent groups. */
export const nestedArrangements: readonly Arrangement[] = [
  { mesh: { dp: 2, sp: 3 }, axes: ["sp"], backend: flex({ stages: 2 }) },
  ...[
    { node: 2, gpu: 3 },
    { node: 3, gpu: 2 },
  ].map((mesh, i) => ({
    mesh,
    axes: ["node", "gpu"],
    backend: flex({ axis: "node", stages: i + 1, inner: flex({ axis: "gpu", stages: 2 - i }) }),
  })),
  // The inner axis need not be the fastest-varying axis of the mesh. An outer backend may provide keys in parts.
  { mesh: { node: 2, gpu: 2 }, axes: ["gpu", "node"], backend: flex({ axis: "gpu", inner: flex({ axis: "node" }) }) },
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: broadcastSteps("node", flex({ axis: "gpu", stages: 0 })),
  },
  // An inner backend other than flex, which requests the keys of each of its ranks.
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: flex({ axis: "node", stages: 2, inner: broadcastSteps("gpu", local()) }),
  },
];

/** Ranks on several hosts, one of which has a single rank. Also as the inner backend of another. */
export const hierarchicalArrangements: readonly Arrangement[] = [
  ...alongOneAxis((axis) => flex({ axis, hierarchical: true, stages: 2 }), [5]),
  ...alongOneAxis((axis) => flex({ axis, hierarchical: true, queriesTravel: true }), [6]),
  {
    mesh: { node: 2, gpu: 3 },
    axes: ["node", "gpu"],
    backend: broadcastSteps("node", flex({ axis: "gpu", hierarchical: true, stages: { forward: 1, backward: 3 } })),
  },
];
