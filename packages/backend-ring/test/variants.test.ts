import { variantSuite } from "@mosaic/conformance";
import { nests, rings } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(variantSuite({ makeWorld, arrangements: [...rings, ...nests] }));
