import { fileURLToPath } from "node:url";
import { deviceSuite } from "@mosaic/conformance";
import { test } from "vitest";

// The addon that is shipped, on a stand-in for the driver that runs the same kernels under emulation.
process.env.MOSAIC_CUDA_LIBRARY ??= fileURLToPath(new URL("../build-emulated/libcuda_emulated.so", import.meta.url));
const { cuda } = await import("../src/index.ts");

test.each(deviceSuite(() => cuda()).filter(({ name }) => !name.startsWith("attend")))("$name", ({ run }) => run());
