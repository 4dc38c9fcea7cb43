import { backendSuite } from "@mosaic/conformance";
import { nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const selectedArrangements = singleAxisArrangements.filter(({ mesh }) => [2, 5].includes(mesh["sp"]!));
register(
  backendSuite({
    makeWorld,
    arrangements: [...singleAxisArrangements, ...nestedArrangements],
    dtypes: ["float32"],
    coverage: "pairs",
  }),
);
register(backendSuite({ makeWorld, arrangements: selectedArrangements, dtypes: ["bfloat16"] }));
