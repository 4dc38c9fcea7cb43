import "./emulated.ts";
import { deviceSuite } from "@mosaic/conformance";
import { test } from "vitest";
import { cuda } from "../src/index.ts";

// The addon that is shipped, on a stand-in for the driver that runs the same kernels under emulation.
const suite = deviceSuite(() => cuda(), { clockError: 1e6 });

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
