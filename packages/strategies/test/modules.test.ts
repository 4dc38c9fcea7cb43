import { moduleSuite } from "@mosaic/conformance";
import { nests, strategies } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(moduleSuite({ makeWorld, arrangements: [...strategies, ...nests] }));
