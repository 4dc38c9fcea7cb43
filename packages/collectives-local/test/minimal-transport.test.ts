import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { collectivesSuite, failureSuite, type MakeWorld } from "@mosaic/conformance";
import { cpu } from "@mosaic/kernels-cpu";
import {
  connectRank,
  type ControlPlane,
  type InProcessCollectives,
  createInProcessControl,
  openWorld,
} from "@mosaic/runtime";
import { describe, expect, test } from "vitest";

// Tests the transport of docs/transports.md, which has a socket between every two ranks, in under 150 lines.
const addon = `../prebuilds/${process.platform}-${process.arch}/mosaic_minimal_transport.node`;
const openTransport = createRequire(import.meta.url)(addon) as () => number;

function minimalCollectives(size: number): InProcessCollectives {
  let control: ControlPlane | undefined;
  return {
    name: "minimal",
    check() {},
    connect(connecting) {
      control ??= createInProcessControl(size, connecting.timeout);
      return connectRank({ ...connecting, openTransport, control, drainSeconds: 5 });
    },
  };
}

const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
  openWorld(size, minimalCollectives(size), { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });

describe("the transport of docs/transports.md", () => {
  // Code that depends on the number of ranks is not in the transport (conformance.test.ts tests it for every number),
  // so one rank, a pair and odd numbers are enough here.
  const suite = collectivesSuite(makeWorld, { sizes: [1, 2, 3, 5] });
  test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

  // Run concurrently, because the tests wait most of the time.
  const failures = failureSuite(makeWorld);
  test.concurrent.each(failures.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

  test("has fewer than 150 lines", () => {
    const source = readFileSync(new URL("../native/test/minimal_transport.cc", import.meta.url), "utf8");
    expect(source.split("\n").length).toBeLessThan(150);
  });
});
