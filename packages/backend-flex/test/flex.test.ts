import { backendSuite } from "@mosaic/conformance";
import { exchangeArrangements, nestedArrangements, singleAxisArrangements } from "./arrangements.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

const fiveRankArrangements = singleAxisArrangements.filter(({ mesh }) => mesh["sp"] === 5);
register(backendSuite({ makeWorld, arrangements: singleAxisArrangements, dtypes: ["float32"], coverage: "pairs" }));
register(backendSuite({ makeWorld, arrangements: fiveRankArrangements, dtypes: ["bfloat16"] }));
register(backendSuite({ makeWorld, arrangements: exchangeArrangements, dtypes: ["float32"], coverage: "pairs" }));
register(backendSuite({ makeWorld, arrangements: nestedArrangements, dtypes: ["float32"], coverage: "pairs" }));
