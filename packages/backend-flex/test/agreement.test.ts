import { agreementSuite } from "@mosaic/conformance";
import { flex } from "../src/index.ts";
import { makeWorld, register } from "./world.ts";

register(agreementSuite({ makeWorld, backend: (axis) => flex({ axis }) }));
