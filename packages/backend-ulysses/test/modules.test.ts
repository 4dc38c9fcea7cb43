import { moduleSuite } from "@mosaic/conformance";
import { nests, worlds } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(moduleSuite({ makeWorld, arrangements: [...worlds.slice(1, 6), ...nests] }));
