import "./hopper.ts";
import { deviceSuite } from "@mosaic/conformance";
import { test } from "vitest";
import { cuda } from "../src/index.ts";

// As conformance.test.ts, on a GPU that takes Hopper's kernels.
test.each(deviceSuite(() => cuda()))("on Hopper: $name", ({ run }) => run());
