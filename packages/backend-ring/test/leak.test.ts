import { leakCase } from "@mosaic/conformance";
import { ring } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const arrangement = { mesh: { sp: 2 }, axes: ["sp"], backend: ring() };
/** `npm run test:leaks` uses 10 000. */
const steps = Number(process.env.MOSAIC_TEST_STEPS ?? 3000);
register([leakCase({ makeWorld, arrangement, steps })], 300_000);
