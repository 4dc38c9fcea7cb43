import { backendSuite } from "@mosaic/conformance";
import { nests, worlds } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const some = worlds.filter(({ mesh }) => [2, 5].includes(mesh["sp"]!));
register(backendSuite({ makeWorld, arrangements: [...worlds, ...nests], dtypes: ["float32"], coverage: "pairs" }));
register(backendSuite({ makeWorld, arrangements: some, dtypes: ["bfloat16"] }));
