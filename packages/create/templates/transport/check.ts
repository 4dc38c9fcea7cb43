// Tests collectives and failures over the transport of transport.cc with the suites that every transport must pass.
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

const openTransport = createRequire(import.meta.url)("./build/transport.node") as () => number;

function createTransportCollectives(size: number): InProcessCollectives {
  let control: ControlPlane | undefined;
  return {
    name: "transport",
    check() {},
    connect(connectOptions) {
      control ??= createInProcessControl(size, connectOptions.timeout);
      return connectRank({ ...connectOptions, openTransport, control, drainSeconds: 5 });
    },
  };
}

const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
  openWorld(size, createTransportCollectives(size), { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
const cases = [...collectivesSuite(makeWorld), ...failureSuite(makeWorld)];
for (const { run } of cases) await run(); // rejects if the transport is wrong
console.log(`${cases.length} cases passed`);
