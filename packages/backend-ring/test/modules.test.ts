import { moduleSuite } from "@mosaic/conformance";
import { ring } from "../src/index.ts";
import { nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const hybridArrangement = { mesh: { dp_replicate: 2, dp_shard: 2, sp: 2 }, axes: ["sp"], backend: ring() };
const arrangements = [...singleAxisArrangements, ...nestedArrangements, hybridArrangement];
register(moduleSuite({ makeWorld, arrangements }));
