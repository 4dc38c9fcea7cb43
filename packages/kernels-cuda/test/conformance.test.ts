import "./emulated.ts";
import { deviceSuite } from "@mosaic/conformance";
import { test } from "vitest";
import { cuda } from "../src/index.ts";

// The addon that is shipped, on a stand-in for the driver that runs the same kernels under emulation.
test.each(deviceSuite(() => cuda()))("$name", ({ run }) => run());
