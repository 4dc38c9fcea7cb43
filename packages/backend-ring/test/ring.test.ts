import { backendSuite } from "@mosaic/conformance";
import { nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(backendSuite({ makeWorld, arrangements: singleAxisArrangements, coverage: "pairs" }));
register(backendSuite({ makeWorld, arrangements: nestedArrangements, dtypes: ["float32"], coverage: "pairs" }));
