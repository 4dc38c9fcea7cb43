import { batchSuite } from "@mosaic/conformance";
import { nests, rings } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(batchSuite({ makeWorld, arrangements: rings }));
register(batchSuite({ makeWorld, arrangements: nests, dtypes: ["float32"] }));
