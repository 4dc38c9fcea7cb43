import { backendSuite } from "@mosaic/conformance";
import { nests } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(backendSuite({ makeWorld, arrangements: nests, dtypes: ["float32"], coverage: "pairs" }));
