import { deviceSuite } from "@mosaic/conformance";
import { describe, test } from "vitest";
import { type CpuDevice, cpu, features } from "../src/index.ts";

// Every instruction set that this machine supports passes the suite that any device must pass.
describe.each(features().supported)("the conformance suite on %s", (isa) => {
  const createDevice = (): CpuDevice => {
    process.env.MOSAIC_ISA = isa;
    try {
      return cpu({ threads: 2 });
    } finally {
      delete process.env.MOSAIC_ISA;
    }
  };
  test.each(deviceSuite(createDevice).map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());
});
