import { leakCase } from "@mosaic/conformance";
import { ulysses } from "../src/index.ts";
import { makeWorld, register } from "./world.ts";

const arrangement = { mesh: { sp: 2 }, axes: ["sp"], backend: ulysses() };
register([leakCase({ makeWorld, arrangement, steps: 4_000 })], 300_000);
