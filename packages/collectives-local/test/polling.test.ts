// Tests ranks that sleep in `poll`, as in combination with another transport, and reductions that a transport declines.
import { collectivesSuite, type MakeWorld } from "@mosaic/conformance";
import { fromArray } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import {
  connectRank,
  type ControlPlane,
  type InProcessCollectives,
  createInProcessControl,
  openWorld,
} from "@mosaic/runtime";
import { expect, test } from "vitest";
import { openPolling } from "./device.ts";

function pollingCollectives(size: number): InProcessCollectives {
  let control: ControlPlane | undefined;
  return {
    name: "polling",
    check() {},
    connect(connecting) {
      control ??= createInProcessControl(size, connecting.timeout);
      return connectRank({ ...connecting, openTransport: openPolling, control, drainSeconds: 5 });
    },
  };
}

const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
  openWorld(size, pollingCollectives(size), { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });

const suite = collectivesSuite(makeWorld, { sizes: [1, 2, 3] });
test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

// Retried, because a busy machine may delay the wake-up.
test("a message wakes a sleeping rank within 80 ms", { retry: 2 }, async () => {
  const contexts = await makeWorld(2, { wrapDevice: (device) => device });
  const [a, b] = contexts.map((ctx) => fromArray(ctx, [ctx.rank], [1]));
  const [firstGroup, secondGroup] = contexts.map((ctx) => ctx.world);
  let maxMilliseconds = 0;
  for (let round = 0; round < 100; round++) {
    secondGroup!.sendRecv([{ tensor: b!, from: 0 }]).wait();
    await new Promise((resolve) => setTimeout(resolve, 2)); // longer than any thread spins
    const startTime = performance.now();
    firstGroup!.sendRecv([{ tensor: a!, to: 1 }]).wait();
    await b!.read();
    maxMilliseconds = Math.max(maxMilliseconds, performance.now() - startTime);
  }
  // Without a wake-up, a sleep ends only after 100 ms.
  expect(maxMilliseconds).toBeLessThan(80);
  await Promise.all(contexts.map((ctx) => ctx.close()));
});
