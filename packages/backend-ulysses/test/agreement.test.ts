import { agreementSuite } from "@mosaic/conformance";
import { ulysses } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(agreementSuite({ makeWorld, backend: (axis) => ulysses({ axis }) }));
