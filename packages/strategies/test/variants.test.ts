import { variantSuite } from "@mosaic/conformance";
import { nestedArrangements, strategies } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(variantSuite({ makeWorld, arrangements: [...strategies, ...nestedArrangements] }));
