import { agreementSuite } from "@mosaic/conformance";
import { ring } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

register(agreementSuite({ makeWorld, backend: (axis) => ring({ axis }) }));
