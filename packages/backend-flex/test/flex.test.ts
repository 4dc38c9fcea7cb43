import { backendSuite } from "@mosaic/conformance";
import { exchanges, nests, worlds } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const some = worlds.filter(({ mesh }) => mesh["sp"] === 5);
register(backendSuite({ makeWorld, arrangements: worlds, dtypes: ["float32"], coverage: "pairs" }));
register(backendSuite({ makeWorld, arrangements: some, dtypes: ["bfloat16"] }));
register(backendSuite({ makeWorld, arrangements: exchanges, dtypes: ["float32"], coverage: "pairs" }));
register(backendSuite({ makeWorld, arrangements: nests, dtypes: ["float32"], coverage: "pairs" }));
