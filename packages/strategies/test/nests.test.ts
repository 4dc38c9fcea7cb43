import { backendSuite } from "@mosaic/conformance";
import { nestedArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(backendSuite({ makeWorld, arrangements: nestedArrangements, dtypes: ["float32"], coverage: "pairs" }));
