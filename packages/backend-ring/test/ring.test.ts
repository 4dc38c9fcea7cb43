import { backendSuite } from "@mosaic/conformance";
import { describe } from "vitest";
import { nests, rings } from "./arrangements.ts";
import { makeWorld, register } from "./world.ts";

describe("one ring", () => register(backendSuite({ makeWorld, arrangements: rings })));
describe("rings in rings", () => register(backendSuite({ makeWorld, arrangements: nests, dtypes: ["float32"] })));
