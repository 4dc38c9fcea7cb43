import { backendSuite } from "@mosaic/conformance";
import { strategies } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(backendSuite({ makeWorld, arrangements: strategies, dtypes: ["float32"], coverage: "pairs" }));
