import {
  ClosedError,
  CollectiveMismatchError,
  CollectiveTimeoutError,
  DeviceError,
  type ProcessGroup,
  PeerLostError,
  type Tensor,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { openRanks } from "./ranks.ts";
import { readAll, tensor } from "./values.ts";

const failed = (outcome: Float32Array | Error, kind: new (...args: never[]) => Error): string => {
  expect(outcome).toBeInstanceOf(kind);
  return (outcome as Error).message;
};

test("different shapes: both sides are named, with their shapes, on every rank", async () => {
  await using ranks = await openRanks(3);
  const releases = ranks.devices.map((device) => device.hold());
  const xs = ranks.devices.map((device, rank) =>
    device.empty(rank === 2 ? [2, 8, 128, 64] : [2, 8, 100, 64], "float32"),
  );
  ranks.groups.forEach((group, rank) => {
    const [to, from] = [(rank + 1) % 3, (rank + 2) % 3];
    const out = ranks.devices[rank]!.empty([2, 8, 100, 64], "float32");
    group
      .sendRecv(
        [
          { tensor: xs[rank]!, to },
          { tensor: out, from },
        ],
        { label: "ring(sp)" },
      )
      .wait();
    group.barrier().wait();
  });
  for (const release of releases) release();
  for (const outcome of await readAll(xs)) {
    const message = failed(outcome, CollectiveMismatchError);
    expect(message).toContain(
      "ring(sp): rank 0 is at sendRecv #1 (world) float32 [2,8,100,64], rank 2 at sendRecv #1 (world) float32 [2,8,128,64]",
    );
  }
});

const oneRankOff: [string, (group: ProcessGroup, x: Tensor, y: Tensor, odd: boolean) => void, string][] = [
  ["another operation", (group, x, _, odd) => (odd ? group.allReduce(x) : group.barrier()).wait(), "barrier #1"],
  [
    "another reduction",
    (group, x, _, odd) => group.allReduce(x, odd ? "max" : "sum").wait(),
    "allReduce #1 (world) max",
  ],
  ["another root", (group, x, _, odd) => group.broadcast(x, odd ? 1 : 0).wait(), "broadcast #1 (world) from rank"],
  ["another dtype", (group, x, y, odd) => group.allReduce(odd ? y : x).wait(), "bfloat16 [6]"],
  ["another shape", (group, x, _, odd) => group.allReduce(odd ? x.reshape([2, 3]) : x).wait(), "float32 [2,3]"],
  [
    "another order",
    (group, x, y, odd) => {
      const calls = [() => group.allReduce(x), () => group.broadcast(y, 0)];
      for (const call of odd ? calls.reverse() : calls) call().wait();
    },
    "allReduce #1",
  ],
];

test.each(oneRankOff)("%s on one rank is a mismatch on all", async (_, call, mention) => {
  await using ranks = await openRanks(3);
  // Held up until all is posted: what is posted after a failure would throw already at the call.
  const releases = ranks.devices.map((device) => device.hold());
  const xs = ranks.devices.map((device) => tensor(device, [1, 2, 3, 4, 5, 6], [6]));
  ranks.groups.forEach((group, rank) => {
    call(group, xs[rank]!, tensor(ranks.devices[rank]!, [1, 2, 3, 4, 5, 6], [6], "bfloat16"), rank === 1);
    group.barrier().wait();
  });
  for (const release of releases) release();
  for (const outcome of await readAll(xs)) {
    const message = failed(outcome, CollectiveMismatchError);
    expect(message).toContain(mention);
    expect(message).toMatch(/rank 1/);
    expect(message).toMatch(/rank [02]/);
  }
});

test("a rank that is late: everybody's position is named", async () => {
  await using ranks = await openRanks(4, { timeout: 0.4 });
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  const release = ranks.devices[1]!.hold();
  ranks.groups.forEach((group, rank) => {
    group.barrier({ label: "step 7" });
    if (rank !== 2) group.allReduce(xs[rank]!).wait();
  });
  const outcomes = await readAll([xs[0]!, xs[3]!]);
  release();
  for (const outcome of outcomes) {
    const message = failed(outcome, CollectiveTimeoutError);
    expect(message).toMatch(/no end within 0.4 s: rank [0-3] waits in barrier #1 \(world\)/);
    expect(message).toContain("rank 1 is computing");
    expect(message).toMatch(/rank 0 waits in/);
  }
});

test("a rank that called nothing, and one that is elsewhere", async () => {
  await using ranks = await openRanks(3, { timeout: 0.3, mesh: { dp: 1, sp: 3 } });
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  ranks.groups[0]!.allReduce(xs[0]!).wait();
  ranks.groups[1]!.sendRecv([{ tensor: xs[1]!, from: 2 }]).wait();
  const [outcome] = await readAll([xs[0]!]);
  const message = failed(outcome!, CollectiveTimeoutError);
  // Whose limit passes first tells the other.
  expect(message).toMatch(
    /rank 0 waits in allReduce #2 \(world\); rank 1 is at sendRecv|rank 1 waits in sendRecv #2 \(world\); rank 0 is at allR/,
  );
  expect(message).toMatch(/rank 2 has called nothing/);
});

test("what was posted after a failure fails at the call, with the cause", async () => {
  await using ranks = await openRanks(2, { timeout: 0.2 });
  const x = tensor(ranks.devices[0]!, [1], [1]);
  const work = ranks.groups[0]!.allReduce(x);
  work.wait();
  failed((await readAll([x]))[0]!, CollectiveTimeoutError);
  expect(() => ranks.groups[0]!.allReduce(x)).toThrow(CollectiveTimeoutError);
  expect(() => ranks.groups[0]!.barrier()).toThrow(/rank 0 waits in allReduce #1/);
  await expect(ranks.groups[0]!.split(0)).rejects.toThrow(CollectiveTimeoutError);
});

test("a failed device fails its own rank with its own error, and its peers with PeerLostError that gives the cause", async () => {
  await using ranks = await openRanks(3);
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  ranks.devices[1]!.fail();
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  const [first, second, third] = await readAll(xs);
  failed(second!, DeviceError);
  for (const outcome of [first!, third!]) {
    expect(failed(outcome, PeerLostError)).toContain(
      "rank 1 failed before allReduce #1 (world): attend: the test wants it so",
    );
  }
});

test("a device that fails while others wait for this rank's next collective", async () => {
  await using ranks = await openRanks(2);
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  const release = ranks.devices[1]!.hold();
  ranks.devices[1]!.fail();
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  release();
  const [first] = await readAll(xs);
  failed(first!, PeerLostError);
});

test("a rank that leaves: what it sent arrives, what it owes is lost", async () => {
  await using ranks = await openRanks(3);
  const [a, b] = [tensor(ranks.devices[0]!, [1, 2], [2]), tensor(ranks.devices[1]!, [0, 0], [2])];
  ranks.groups[0]!.sendRecv([{ tensor: a, to: 1 }]);
  await ranks.groups[0]![Symbol.asyncDispose]();
  ranks.groups[1]!.sendRecv([{ tensor: b, from: 0 }]).wait();
  expect(Array.from(await b.read())).toEqual([1, 2]);
  ranks.groups[1]!.sendRecv([{ tensor: b, to: 0 }], { label: "ring(sp)" }).wait();
  expect(failed((await readAll([b]))[0]!, PeerLostError)).toBe(
    "ring(sp): rank 0 left after sendRecv #1 (world); rank 1 needed it in sendRecv #2 (world)",
  );
});

test("groups without the rank that left go on", async () => {
  await using ranks = await openRanks(4);
  const pairs = await Promise.all(ranks.groups.map((group) => group.split(group.rank % 2)));
  await ranks.groups[3]![Symbol.asyncDispose]();
  const xs = [0, 2].map((rank) => tensor(ranks.devices[rank]!, [rank + 1], [1]));
  for (const [i, rank] of [0, 2].entries()) pairs[rank]!.allReduce(xs[i]!).wait();
  for (const x of xs) expect(Array.from(await x.read())).toEqual([4]);
  pairs[1]!.barrier().wait();
  await expect(ranks.devices[1]!.stream.synchronize()).rejects.toThrow(/rank 3 left/);
});

test("closing finishes what was posted, even while compute holds it up", async () => {
  const ranks = await openRanks(2);
  const xs = ranks.devices.map((device, rank) => tensor(device, [rank + 1], [1]));
  const releases = ranks.devices.map((device) => device.hold());
  ranks.groups.forEach((group, rank) => group.allReduce(xs[rank]!).wait());
  const values = Promise.all(xs.map((x) => x.read()));
  const closing = ranks[Symbol.asyncDispose]();
  for (const release of releases) release();
  await closing;
  expect((await values).map((each) => each[0])).toEqual([3, 3]);
});

test("a closed group says so, and closing twice is fine", async () => {
  const ranks = await openRanks(2);
  const pair = await Promise.all(ranks.groups.map((group) => group.split(7, "pair")));
  const x = tensor(ranks.devices[0]!, [1], [1]);
  await pair[0]![Symbol.asyncDispose]();
  expect(() => pair[0]!.allReduce(x)).toThrow(ClosedError);
  await ranks[Symbol.asyncDispose]();
  await ranks[Symbol.asyncDispose]();
  for (const group of [ranks.groups[0]!, pair[1]!]) expect(() => group.barrier()).toThrow(/expected an open group/);
  await expect(pair[1]!.split(0)).rejects.toThrow(ClosedError);
});

test("a rank that gives up in the middle of a collective says where", async () => {
  const ranks = await openRanks(3);
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  for (const rank of [0, 1]) ranks.groups[rank]!.allReduce(xs[rank]!).wait();
  // Rank 2 never joins them: closing rank 0 waits a while, then gives up.
  await ranks.groups[0]![Symbol.asyncDispose]();
  const [first, second] = await readAll([xs[0]!, xs[1]!]);
  expect(failed(first!, ClosedError)).toBe("rank 0: closed during allReduce #1 (world)");
  expect(failed(second!, PeerLostError)).toBe("rank 0 left during allReduce #1 (world)");
  await ranks[Symbol.asyncDispose]();
});

test("ranks closed one after the other do not wait for one another for ever", async () => {
  const ranks = await openRanks(2);
  ranks.groups[0]!.barrier();
  const started = performance.now();
  for (const context of ranks.contexts) await context.close();
  expect(performance.now() - started).toBeLessThan(15_000);
});
