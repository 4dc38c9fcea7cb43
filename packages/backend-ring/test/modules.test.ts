import { moduleSuite } from "@mosaic/conformance";
import { nests, rings } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(moduleSuite({ makeWorld, arrangements: [...rings, ...nests] }));
