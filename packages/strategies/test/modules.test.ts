import { moduleSuite } from "@mosaic/conformance";
import { nestedArrangements, strategies } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(moduleSuite({ makeWorld, arrangements: [...strategies, ...nestedArrangements] }));
