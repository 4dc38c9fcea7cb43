import { batchSuite } from "@mosaic/conformance";
import { exchangeArrangements, nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(batchSuite({ makeWorld, arrangements: singleAxisArrangements }));
register(
  batchSuite({ makeWorld, arrangements: [...exchangeArrangements, ...nestedArrangements], dtypes: ["float32"] }),
);
