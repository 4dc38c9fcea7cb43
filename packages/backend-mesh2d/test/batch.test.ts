import { type Arrangement, batchSuite, broadcastSteps, variantSuite } from "@mosaic/conformance";
import { mesh2d } from "../src/index.ts";
import type { GridShape } from "./shapes.ts";
import { scheduleVariants } from "./ways.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

/** One grid for each number of ranks. Each schedule variant is tested on some of them. */
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
const arrangements = scheduleVariants.flatMap((variant, i): Arrangement[] => {
  const createBackend = (shape: GridShape) => mesh2d({ shape, ...variant, computeToTransfer: 0.5 });
  const variantGrids = grids.filter((_, j) => j % scheduleVariants.length === i);
  return [
    ...variantGrids.map((shape) => ({
      mesh: { sp: shape[0] * shape[1] },
      axes: ["sp"],
      backend: createBackend(shape),
    })),
    { mesh: { node: 2, sp: 2 }, axes: ["node", "sp"], backend: broadcastSteps("node", createBackend([1, 2])) },
  ];
});

register(batchSuite({ makeWorld, arrangements }));
register(variantSuite({ makeWorld, arrangements }));
