import { agreementSuite } from "@mosaic/conformance";
import { flex } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(agreementSuite({ makeWorld, backend: (axis) => flex({ axis }) }));
