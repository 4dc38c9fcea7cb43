import { type Arrangement, alongOneAxis, broadcastSteps } from "@mosaic/conformance";
import { local } from "@mosaic/core";
import { flex } from "../src/index.ts";

/** Stages as the cost model chooses them, none, and several; more than one in one pass only. */
const stageOptions = [{}, { stages: 0 }, { stages: 3 }, { stages: { forward: 2, backward: 1 } }] as const;

/** Worlds of 1 to 8 ranks, under one choice or another. */
export const singleAxisArrangements: readonly Arrangement[] = [1, 2, 3, 4, 5, 6, 7, 8].flatMap((size) =>
  alongOneAxis((axis) => flex({ axis, ...stageOptions[size % stageOptions.length] }), [size]),
);

/** Queries travel where that is less: of as many KV heads as query heads, where fewer rows of queries see a shard than it has. */
export const exchangeArrangements: readonly Arrangement[] = [3, 8].flatMap((size) =>
  alongOneAxis(
    (axis) => flex({ axis, queriesTravel: true, ...stageOptions[(size + 1) % stageOptions.length] }),
    [size],
  ),
);

/** One in the other, and side by side. */
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
  // The inner axis need not be the one that varies fastest in the mesh; the keys of an outer backend come part by part.
  { mesh: { node: 2, gpu: 2 }, axes: ["gpu", "node"], backend: flex({ axis: "gpu", inner: flex({ axis: "node" }) }) },
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: broadcastSteps("node", flex({ axis: "gpu", stages: 0 })),
  },
  // One that is no flex, within: it asks for the keys of each of its ranks.
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: flex({ axis: "node", stages: 2, inner: broadcastSteps("gpu", local()) }),
  },
];

/** Over hosts, one of which has a rank alone: within an outer backend too. */
export const hierarchicalArrangements: readonly Arrangement[] = [
  ...alongOneAxis((axis) => flex({ axis, hierarchical: true, stages: 2 }), [5]),
  ...alongOneAxis((axis) => flex({ axis, hierarchical: true, queriesTravel: true }), [6]),
  {
    mesh: { node: 2, gpu: 3 },
    axes: ["node", "gpu"],
    backend: broadcastSteps("node", flex({ axis: "gpu", hierarchical: true, stages: { forward: 1, backward: 3 } })),
  },
];
