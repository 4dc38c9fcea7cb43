import { moduleSuite } from "@mosaic/conformance";
import { mesh2d } from "../src/index.ts";
import { makeWorld, register } from "./world.ts";

const arrangements = (["fused", "scheduled"] as const).flatMap((form) => [
  { mesh: { sp: 6 }, axes: ["sp"], backend: mesh2d({ shape: [3, 2], form }) },
  // Grids side by side, each of the shape that sends least.
  { mesh: { dp: 2, sp: 4 }, axes: ["sp"], backend: mesh2d({ form }) },
]);
register(moduleSuite({ makeWorld, arrangements }));
