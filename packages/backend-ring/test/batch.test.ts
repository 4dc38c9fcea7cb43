import { batchSuite } from "@mosaic/conformance";
import { nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(batchSuite({ makeWorld, arrangements: singleAxisArrangements }));
register(batchSuite({ makeWorld, arrangements: nestedArrangements, dtypes: ["float32"] }));
