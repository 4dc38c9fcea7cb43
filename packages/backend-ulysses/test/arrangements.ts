import { type Arrangement, alongOneAxis } from "@mosaic/conformance";
import { ulysses } from "../src/index.ts";

/** Worlds of 1 to 8 ranks; the suite's heads are 2, 3 and 4, so that they divide rarely and some ranks have none. */
export const singleAxisArrangements: readonly Arrangement[] = alongOneAxis((axis) => ulysses({ axis }));

/** Side by side, and one in the other: heads are shared out twice. */
export const nestedArrangements: readonly Arrangement[] = [
  { mesh: { dp: 2, sp: 3 }, axes: ["sp"], backend: ulysses() },
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: ulysses({ axis: "gpu", inner: ulysses({ axis: "node" }) }),
  },
  // The axis that is concatenated last need not be the one that varies slowest in the mesh.
  {
    mesh: { gpu: 2, node: 3 },
    axes: ["node", "gpu"],
    backend: ulysses({ axis: "gpu", inner: ulysses({ axis: "node" }) }),
  },
];
