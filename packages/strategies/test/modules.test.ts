import { moduleSuite } from "@mosaic/conformance";
import { nests, strategies } from "./arrangements.ts";
import { makeWorld, register } from "./world.ts";

register(moduleSuite({ makeWorld, arrangements: [...strategies, ...nests] }));
