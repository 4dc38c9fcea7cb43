import { batchSuite } from "@mosaic/conformance";
import { nestedArrangements, strategies } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(batchSuite({ makeWorld, arrangements: [...strategies, ...nestedArrangements], dtypes: ["float32"] }));
