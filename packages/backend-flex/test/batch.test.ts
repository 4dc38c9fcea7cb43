import { batchSuite } from "@mosaic/conformance";
import { exchanges, nests, worlds } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(batchSuite({ makeWorld, arrangements: worlds }));
register(batchSuite({ makeWorld, arrangements: [...exchanges, ...nests], dtypes: ["float32"] }));
