import { runsOnGpu } from "./emulated.ts";
import { deviceSuite } from "@mosaic/conformance";
import { beforeAll, describe, expect, test } from "vitest";
import { cuda } from "../src/index.ts";

// The addon that is shipped, on a stand-in for the driver that runs the same kernels under emulation.
const suite = deviceSuite(() => cuda(), { clockError: 1e6 });

const isHopperCase = (name: string): boolean =>
  /^attention: .*float16/.test(name) && !/^attention: (softcap|slopes|dropout)/.test(name);

// A real GPU is what it is, but a Hopper has the kernels of both families.
describe.each([
  { gpu: "on Ampere", capability: 80, family: "portable" },
  { gpu: "on Hopper", capability: 90, family: "" },
])("$gpu", ({ capability, family }) => {
  // Read when a device is opened.
  beforeAll(() => {
    process.env.MOSAIC_EMULATED_CAPABILITY = String(capability);
    process.env.MOSAIC_CUDA_FAMILY = family;
    using device = cuda();
    if (!runsOnGpu) expect(device.capability).toBe(capability);
  });

  // Besides attention in 16 bits whose scores nothing modifies, both run the same kernels (variants.test.ts).
  const familySuite = family === "portable" || runsOnGpu ? suite : suite.filter(({ name }) => isHopperCase(name));
  test.each(familySuite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
});
