import { moduleSuite } from "@mosaic/conformance";
import { mesh2d } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const arrangements = [
  { mesh: { sp: 6 }, axes: ["sp"], backend: mesh2d({ shape: [3, 2], schedule: "fused" }) },
  { mesh: { sp: 6 }, axes: ["sp"], backend: mesh2d({ shape: [2, 3], schedule: "overlapped", channels: 2 }) },
  // Independent grids, each with the shape that sends least, with the overlapped and with the automatic schedule.
  { mesh: { dp: 2, sp: 4 }, axes: ["sp"], backend: mesh2d({ schedule: "overlapped" }) },
  { mesh: { dp: 2, sp: 4 }, axes: ["sp"], backend: mesh2d() },
];
register(moduleSuite({ makeWorld, arrangements }));
