import { moduleSuite } from "@mosaic/conformance";
import { exchangeArrangements, nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(
  moduleSuite({
    makeWorld,
    arrangements: [...singleAxisArrangements.slice(1, 5), exchangeArrangements[0]!, nestedArrangements[1]!],
  }),
);
