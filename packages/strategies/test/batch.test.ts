import { batchSuite } from "@mosaic/conformance";
import { nests, strategies } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(batchSuite({ makeWorld, arrangements: [...strategies, ...nests], dtypes: ["float32"] }));
