import { type Arrangement, alongOneAxis } from "@mosaic/conformance";
import { ring } from "../src/index.ts";

/** Worlds of 1 to 8 ranks, in one ring. */
export const singleAxisArrangements: readonly Arrangement[] = alongOneAxis((axis) => ring({ axis }));

/** Nested rings, and several independent rings. */
export const nestedArrangements: readonly Arrangement[] = [
  { mesh: { dp: 2, sp: 3 }, axes: ["sp"], backend: ring() },
  ...[
    { node: 2, gpu: 2 },
    { node: 2, gpu: 3 },
    { node: 3, gpu: 2 },
  ].map((mesh) => ({ mesh, axes: ["node", "gpu"], backend: ring({ axis: "node", inner: ring({ axis: "gpu" }) }) })),
  // The inner axis need not be the one that varies fastest in the mesh.
  { mesh: { node: 2, gpu: 2 }, axes: ["gpu", "node"], backend: ring({ axis: "gpu", inner: ring({ axis: "node" }) }) },
  {
    mesh: { rack: 2, node: 2, gpu: 2 },
    axes: ["rack", "node", "gpu"],
    backend: ring({ axis: "rack", inner: ring({ axis: "node", inner: ring({ axis: "gpu" }) }) }),
  },
];
