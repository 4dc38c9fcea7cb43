import { type Arrangement, batchSuite, broadcastSteps, variantSuite } from "@mosaic/conformance";
import { mesh2d } from "../src/index.ts";
import type { GridShape } from "./shapes.ts";
import { ways } from "./ways.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

/** A grid of each number of ranks, each way of going about it on some. */
const grids: readonly GridShape[] = [
  [1, 1],
  [1, 2],
  [3, 1],
  [2, 2],
  [1, 5],
  [2, 3],
  [7, 1],
  [2, 4],
];
const arrangements = ways.flatMap((way, i): Arrangement[] => {
  const backend = (shape: GridShape) => mesh2d({ shape, ...way, computeToTransfer: 0.5 });
  const some = grids.filter((_, j) => j % ways.length === i);
  return [
    ...some.map((shape) => ({ mesh: { sp: shape[0] * shape[1] }, axes: ["sp"], backend: backend(shape) })),
    { mesh: { node: 2, sp: 2 }, axes: ["node", "sp"], backend: broadcastSteps("node", backend([1, 2])) },
  ];
});

register(batchSuite({ makeWorld, arrangements }));
register(variantSuite({ makeWorld, arrangements }));
