import { variantSuite } from "@mosaic/conformance";
import { nests, strategies } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(variantSuite({ makeWorld, arrangements: [...strategies, ...nests] }));
