import { type Arrangement, alongOneAxis } from "@mosaic/conformance";
import { ulysses } from "../src/index.ts";

/**
 * Worlds of 1 to 8 ranks. The suite has 2, 3 and 4 heads, which are rarely divisible by the ranks, and some ranks have
 * none.
 */
export const singleAxisArrangements: readonly Arrangement[] = alongOneAxis((axis) => ulysses({ axis }));

/** Independent groups, and nested exchanges, in which heads are distributed twice. */
export const nestedArrangements: readonly Arrangement[] = [
  { mesh: { dp: 2, sp: 3 }, axes: ["sp"], backend: ulysses() },
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: ulysses({ axis: "gpu", inner: ulysses({ axis: "node" }) }),
  },
  // The axis that is concatenated last need not be the slowest-varying axis of the mesh.
  {
    mesh: { gpu: 2, node: 3 },
    axes: ["node", "gpu"],
    backend: ulysses({ axis: "gpu", inner: ulysses({ axis: "node" }) }),
  },
];
