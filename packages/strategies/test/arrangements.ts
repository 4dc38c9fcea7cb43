import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import type { Arrangement } from "@mosaic/conformance";
import { composed, hierarchical, type Strategy } from "../src/index.ts";

function createArrangement(strategy: Strategy, ranks: number): Arrangement {
  return { mesh: strategy.meshFor(ranks), axes: strategy.axes, backend: strategy };
}

/** The strategies by name, on meshes of 4 to 8 ranks. */
export const strategies: readonly Arrangement[] = [
  createArrangement(composed({ meshShape: { head: 2, seq: 2 } }), 4),
  createArrangement(composed({ meshShape: { head: 2, seq: 3 } }), 6),
  createArrangement(composed({ meshShape: { head: 3, seq: 2 } }), 6),
  createArrangement(composed({ meshShape: { head: 2, seq: 4 }, seqParallel: "mesh2d" }), 8),
  createArrangement(composed({ meshShape: { head: 2, seq: 2 }, seqParallel: "ulysses" }), 4),
  createArrangement(hierarchical({ intraNodeSize: 2 }), 4),
  createArrangement(hierarchical({ intraNodeSize: 3 }), 6),
  createArrangement(hierarchical({ intraNodeSize: 2, intraNodeStrategy: "ulysses" }), 6),
  createArrangement(hierarchical({ intraNodeSize: 2, intraNodeStrategy: "local" }), 4),
  createArrangement(hierarchical({ intraNodeSize: 2, interNodeStrategy: "ulysses" }), 4),
  createArrangement(hierarchical({ intraNodeSize: 4, intraNodeStrategy: "mesh2d" }), 8),
  createArrangement(hierarchical({ intraNodeSize: 2, interNodeStrategy: "mesh2d", intraNodeStrategy: "ulysses" }), 6),
  {
    ...createArrangement(composed({ meshShape: { head: 2, seq: 2 }, axes: { seq: "s", head: "h" } }), 4),
    mesh: { dp: 2, s: 2, h: 2 },
  },
];

const createOuterRing = (axis: string): Arrangement["backend"] => ring({ axis });

/** Custom nestings, as a third party might write them. */
export const nestedArrangements: readonly Arrangement[] = [
  // Rows are exchanged for heads again at every step of the ring.
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: ring({ axis: "node", inner: ulysses({ axis: "gpu" }) }),
  },
  {
    mesh: { node: 3, gpu: 2 },
    axes: ["node", "gpu"],
    backend: ring({ axis: "node", inner: ulysses({ axis: "gpu" }) }),
  },
  {
    mesh: { rack: 2, node: 2, gpu: 2 },
    axes: ["rack", "node", "gpu"],
    backend: ulysses({ axis: "gpu", inner: ring({ axis: "rack", inner: createOuterRing("node") }) }),
  },
  {
    mesh: { rack: 2, node: 2, gpu: 2 },
    axes: ["rack", "node", "gpu"],
    backend: ring({ axis: "rack", inner: ulysses({ axis: "gpu", inner: createOuterRing("node") }) }),
  },
  {
    mesh: { rack: 2, node: 2, gpu: 2 },
    axes: ["rack", "node", "gpu"],
    backend: ring({ axis: "rack", inner: ulysses({ axis: "gpu", inner: mesh2d({ axis: "node", shape: [1, 2] }) }) }),
  },
  // Of the keys of another node, a rank receives those visible to any query of its node, and the ring passes them on.
  {
    mesh: { node: 2, gpu: 3 },
    axes: ["node", "gpu"],
    backend: flex({ axis: "node", stages: 2, inner: createOuterRing("gpu") }),
  },
  {
    mesh: { node: 3, gpu: 2 },
    axes: ["node", "gpu"],
    backend: ring({ axis: "node", inner: flex({ axis: "gpu", stages: { forward: 0, backward: 2 } }) }),
  },
  {
    mesh: { node: 2, gpu: 2 },
    axes: ["node", "gpu"],
    backend: flex({ axis: "node", inner: ulysses({ axis: "gpu" }) }),
  },
];
