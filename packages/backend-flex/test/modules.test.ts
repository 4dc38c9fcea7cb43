import { moduleSuite } from "@mosaic/conformance";
import { nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(moduleSuite({ makeWorld, arrangements: [...singleAxisArrangements.slice(1, 5), nestedArrangements[1]!] }));
