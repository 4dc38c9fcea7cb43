import { runsOnGpu } from "./emulated.ts";
import { deviceSuite } from "@mosaic/conformance";
import { beforeAll, describe, expect, test } from "vitest";
import { cuda } from "../src/index.ts";

// Tests the shipped addon on the emulated driver, which runs the same kernels under emulation.
const suite = deviceSuite(() => cuda(), { clockError: 1e6 });

const isHopperCase = (name: string): boolean =>
  /^attention: .*float16/.test(name) && !/^attention: (softcap|slopes|dropout)/.test(name);

// A real GPU has a fixed capability, but a Hopper supports the kernels of both families.
describe.each([
  { gpu: "on Ampere", capability: 80, family: "portable" },
  { gpu: "on Hopper", capability: 90, family: "" },
])("$gpu", ({ capability, family }) => {
  // The variables are read when a device is opened.
  beforeAll(() => {
    process.env.MOSAIC_EMULATED_CAPABILITY = String(capability);
    process.env.MOSAIC_CUDA_FAMILY = family;
    using device = cuda();
    if (!runsOnGpu) expect(device.capability).toBe(capability);
  });

  // Both families run the same kernels, except for 16-bit attention without score modifiers (variants.test.ts).
  const familySuite = family === "portable" || runsOnGpu ? suite : suite.filter(({ name }) => isHopperCase(name));
  test.each(familySuite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
});
