import "./hopper.ts";
import { deviceSuite } from "@mosaic/conformance";
import { test } from "vitest";
import { cuda } from "../src/index.ts";

// As conformance.test.ts, on a GPU that takes Hopper's kernels.
const suite = deviceSuite(() => cuda(), { clockError: 1e6 });

test.each(suite.map(({ name, run }) => [name, run] as const))("on Hopper: %s", (_, run) => run());
