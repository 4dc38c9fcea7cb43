import { variantSuite } from "@mosaic/conformance";
import { nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(variantSuite({ makeWorld, arrangements: [...singleAxisArrangements, ...nestedArrangements] }));
