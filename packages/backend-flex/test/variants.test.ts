import { variantSuite } from "@mosaic/conformance";
import { exchanges, nests, worlds } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(variantSuite({ makeWorld, arrangements: [...worlds, ...exchanges, ...nests] }));
