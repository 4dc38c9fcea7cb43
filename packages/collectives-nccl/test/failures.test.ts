import {
  ClosedError,
  CollectiveMismatchError,
  CollectiveTimeoutError,
  PeerLostError,
  type ProcessGroup,
  type Tensor,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { openRanks, outcomes, tensor } from "./ranks.ts";

const failed = (outcome: readonly number[] | Error, kind: new (...args: never[]) => Error): string => {
  expect(outcome).toBeInstanceOf(kind);
  return (outcome as Error).message;
};

test("different shapes: both sides are named, with their shapes, on every rank", async () => {
  await using ranks = await openRanks(3);
  const shapeOf = (rank: number) => (rank === 2 ? [2, 8, 13, 4] : [2, 8, 10, 4]);
  const xs = ranks.devices.map((device, rank) => device.empty(shapeOf(rank), "float32"));
  const outs = ranks.devices.map((device) => device.empty([2, 8, 10, 4], "float32"));
  const post = (rank: number) => {
    const [to, from] = [(rank + 1) % 3, (rank + 2) % 3];
    const transfers = [
      { tensor: xs[rank]!, to },
      { tensor: outs[rank]!, from },
    ];
    ranks.groups[rank]!.sendRecv(transfers, { label: "ring(sp)" }).wait();
    ranks.groups[rank]!.barrier().wait();
  };
  for (const outcome of await outcomes(outs, post)) {
    expect(failed(outcome, CollectiveMismatchError)).toContain(
      "ring(sp): rank 0 is at sendRecv #1 (world) float32 [2,8,10,4], rank 2 at sendRecv #1 (world) float32 [2,8,13,4]",
    );
  }
});

const oneRankOff: [string, (group: ProcessGroup, x: Tensor, y: Tensor, odd: boolean) => void, string][] = [
  ["another operation", (group, x, _, odd) => (odd ? group.allReduce(x) : group.barrier()).wait(), "barrier #1"],
  ["another reduction", (group, x, _, odd) => group.allReduce(x, odd ? "max" : "sum").wait(), "#1 (world) max"],
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
  await using ranks = await openRanks(3, { timeout: 10 });
  const xs = ranks.devices.map((device) => tensor(device, [1, 2, 3, 4, 5, 6], [6]));
  const ys = ranks.devices.map((device) => tensor(device, [1, 2, 3, 4, 5, 6], [6], "bfloat16"));
  // What NCCL can carry out all the same is found out a moment later: all ranks go on until they hear of it.
  const post = async (rank: number) => {
    call(ranks.groups[rank]!, xs[rank]!, ys[rank]!, rank === 1);
    for (;;) {
      ranks.groups[rank]!.barrier().wait();
      await ranks.devices[rank]!.stream.synchronize();
    }
  };
  const errors = await Promise.all(ranks.groups.map((__, rank) => post(rank).catch((error: Error) => error)));
  for (const error of errors) {
    const message = failed(error, CollectiveMismatchError);
    expect(message).toContain(mention);
    expect(message).toMatch(/rank 1.*all ranks of a group must call the same collectives in the same order/);
  }
});

test("a rank that called nothing, and one that is elsewhere", async () => {
  await using ranks = await openRanks(3, { timeout: 0.5 });
  const xs = ranks.devices.map((device) => tensor(device, [1], [1]));
  ranks.groups[0]!.allReduce(xs[0]!).wait();
  ranks.groups[1]!.sendRecv([{ tensor: xs[1]!, from: 2 }]).wait();
  const [outcome] = await outcomes([xs[0]!], () => {});
  const message = failed(outcome!, CollectiveTimeoutError);
  // Whose limit passes first tells the other.
  const seen = [
    "rank 0 waits in allReduce #1 (world); rank 1 is at sendRecv #1 (world)",
    "rank 1 waits in sendRecv #1 (world); rank 0 is at allReduce #1 (world)",
  ];
  expect(
    seen.some((each) => message.startsWith(`no end within 0.5 s: ${each}`)),
    message,
  ).toBe(true);
  expect(message).toMatch(/rank 2 has called nothing yet/);
});

test("what was posted after a failure fails at the call, with the cause", async () => {
  await using ranks = await openRanks(2, { timeout: 0.3 });
  const x = tensor(ranks.devices[0]!, [1], [1]);
  const [outcome] = await outcomes([x], () => ranks.groups[0]!.allReduce(x).wait());
  failed(outcome!, CollectiveTimeoutError);
  expect(() => ranks.groups[0]!.allReduce(x)).toThrow(CollectiveTimeoutError);
  expect(() => ranks.groups[0]!.barrier()).toThrow(/rank 0 waits in allReduce #1/);
  await expect(ranks.groups[0]!.split(0)).rejects.toThrow(CollectiveTimeoutError);
});

test("a rank that leaves: what it sent arrives, what it owes is lost", async () => {
  await using ranks = await openRanks(3);
  const [a, b] = [tensor(ranks.devices[0]!, [1, 2], [2]), tensor(ranks.devices[1]!, [0, 0], [2])];
  ranks.groups[0]!.sendRecv([{ tensor: a, to: 1 }]);
  ranks.groups[1]!.sendRecv([{ tensor: b, from: 0 }]).wait();
  await ranks.groups[0]![Symbol.asyncDispose]();
  expect(Array.from(await b.read())).toEqual([1, 2]);
  const [outcome] = await outcomes([b], () => {
    ranks.groups[1]!.sendRecv([{ tensor: b, from: 0 }], { label: "ring(sp)" }).wait();
  });
  expect(failed(outcome!, PeerLostError)).toBe(
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
  const [first, second] = await outcomes([xs[0]!, xs[1]!], () => {});
  expect(failed(first!, ClosedError)).toBe("rank 0: closed during allReduce #1 (world)");
  expect(failed(second!, PeerLostError)).toBe("rank 0 left during allReduce #1 (world)");
  await ranks[Symbol.asyncDispose]();
});

test("ranks closed one after the other do not wait for one another for ever", async () => {
  const ranks = await openRanks(2);
  ranks.groups[0]!.barrier();
  const started = performance.now();
  for (const context of ranks.contexts) await context.close();
  expect(performance.now() - started).toBeLessThan(20_000);
});
