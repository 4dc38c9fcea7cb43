import { backendSuite, batchSuite } from "@mosaic/conformance";
import { hierarchicalArrangements } from "./arrangements.ts";
import { register } from "../../../vitest.world.ts";
import { makeWorldOverHosts } from "./trial-layouts.ts";

const extents = [
  { queries: 41, keys: 41 },
  { queries: 23, keys: 38, masks: ["causal", "bidirectionalCausal"] },
  { queries: 5, keys: 0, masks: ["full"] },
];
register(
  backendSuite({ makeWorld: makeWorldOverHosts, arrangements: hierarchicalArrangements, dtypes: ["float32"], extents }),
);
register(
  batchSuite({
    makeWorld: makeWorldOverHosts,
    arrangements: hierarchicalArrangements.slice(0, 1),
    dtypes: ["float32"],
  }),
);
