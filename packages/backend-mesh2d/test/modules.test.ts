import { moduleSuite } from "@mosaic/conformance";
import { mesh2d } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const arrangements = [
  { mesh: { sp: 6 }, axes: ["sp"], backend: mesh2d({ shape: [3, 2], schedule: "fused" }) },
  { mesh: { sp: 6 }, axes: ["sp"], backend: mesh2d({ shape: [2, 3], schedule: "overlapped", channels: 2 }) },
  // Grids side by side, each of the shape that sends least, by the schedule that takes less time.
  { mesh: { dp: 2, sp: 4 }, axes: ["sp"], backend: mesh2d({ schedule: "overlapped" }) },
  { mesh: { dp: 2, sp: 4 }, axes: ["sp"], backend: mesh2d() },
];
register(moduleSuite({ makeWorld, arrangements }));
