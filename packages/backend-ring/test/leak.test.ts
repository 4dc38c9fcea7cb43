import { leakCase } from "@mosaic/conformance";
import { ring } from "../src/index.ts";
import { makeWorld, register } from "./world.ts";

const arrangement = { mesh: { sp: 2 }, axes: ["sp"], backend: ring() };
register([leakCase({ makeWorld, arrangement, steps: 10_000 })], 300_000);
