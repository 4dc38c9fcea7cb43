import { failureSuite } from "@mosaic/conformance";
import { PeerLostError, singleRankGroup } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { type InProcessCollectives, openWorld } from "@mosaic/runtime";
import { expect, test } from "vitest";
import { world } from "../src/index.ts";
import { TestDevice } from "./device.ts";
import { openRanks } from "./ranks.ts";
import { readAll, tensor } from "./values.ts";

const suite = failureSuite((size, { wrapDevice, ...options }) =>
  world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) }),
);

// Run concurrently, because the tests wait most of the time.
test.concurrent.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

test("a message of a rank that has left arrives even if no rank was receiving it yet", async () => {
  await using ranks = await openRanks(3);
  const [a, b] = [tensor(ranks.devices[0]!, [1, 2], [2]), tensor(ranks.devices[1]!, [0, 0], [2])];
  ranks.groups[0]!.sendRecv([{ tensor: a, to: 1 }]);
  await ranks.groups[0]![Symbol.asyncDispose]();
  ranks.groups[1]!.sendRecv([{ tensor: b, from: 0 }]).wait();
  expect(Array.from(await b.read())).toEqual([1, 2]);
  ranks.groups[1]!.sendRecv([{ tensor: b, to: 0 }], { label: "ring(sp)" }).wait();
  const [outcome] = await readAll([b]);
  expect(outcome).toBeInstanceOf(PeerLostError);
  expect((outcome as Error).message).toBe(
    "ring(sp): rank 0 exited after sendRecv #1 (world); rank 1 needed it in sendRecv #2 (world)",
  );
});

test("a stream that fails before a collective is reported to the ranks that wait in it", async () => {
  await using ranks = await openRanks(2);
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  const releaseStream = ranks.devices[1]!.hold();
  ranks.devices[1]!.fail();
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  releaseStream();
  const [firstResult] = await readAll(xs);
  expect(firstResult).toBeInstanceOf(PeerLostError);
  expect((firstResult as Error).message).toBe("rank 1 failed before allReduce #1 (world): attend: injected failure");
});

test("a world that fails to open closes its open ranks and reports the reason, even if closing fails", async () => {
  const closedRanks: number[] = [];
  const collectives: InProcessCollectives = {
    name: "broken",
    check() {},
    connect: ({ device, rank }) =>
      rank === 1
        ? Promise.reject(new Error("no link to rank 1"))
        : singleRankGroup().connect({ device, rank: 0, size: 1 }),
  };
  const opened = openWorld(3, collectives, {
    device: () => new TestDevice(),
    mesh: { sp: 1 },
    beforeClose() {
      closedRanks.push(closedRanks.length);
      throw new Error("disk full");
    },
  });
  await expect(opened).rejects.toThrow("no link to rank 1");
  expect(closedRanks).toEqual([0, 1]);
});
