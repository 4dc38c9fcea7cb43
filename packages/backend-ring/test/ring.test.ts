import { backendSuite } from "@mosaic/conformance";
import { nests, rings } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(backendSuite({ makeWorld, arrangements: rings, coverage: "pairs" }));
register(backendSuite({ makeWorld, arrangements: nests, dtypes: ["float32"], coverage: "pairs" }));
