import { expect, test } from "vitest";
import type { Profile } from "../../src/index.ts";
import { collectiveTraffic } from "../../src/time/collective.ts";
import { profileWithLink, runScript, type RankStage } from "./toy.ts";

const directProfile: Profile = profileWithLink({ latency: 0.5 });
const ringProfile: Profile = { ...directProfile, collectives: "ring" };
const n = 4;

const collectives: Readonly<Record<string, (stage: RankStage) => void>> = {
  allGather: ({ ctx, tensor }) => ctx.world.allGather(tensor(2 * n), tensor(2)).wait(),
  reduceScatter: ({ ctx, tensor }) => ctx.world.reduceScatter(tensor(2), tensor(2 * n)).wait(),
  allReduce: ({ ctx, tensor }) => ctx.world.allReduce(tensor(2 * n)).wait(),
  allToAll: ({ ctx, tensor }) => ctx.world.allToAll(tensor(2 * n), tensor(2 * n)).wait(),
  broadcast: ({ ctx, tensor }) => ctx.world.broadcast(tensor(2), 1).wait(),
  barrier: ({ ctx }) => ctx.world.barrier().wait(),
  // Rank 0 sends two messages of 2 elements to rank 1.
  sendRecv({ ctx, rank, tensor }) {
    const toTransfer = () => (rank === 0 ? { tensor: tensor(2), to: 1 } : { tensor: tensor(2), from: 0 });
    ctx.world.sendRecv(rank < 2 ? [toTransfer(), toTransfer()] : []).wait();
  },
};

/**
 * Seconds on the two machines. An element takes a second, a latency half a second. There are 4 ranks with shares of 2
 * elements.
 */
const expectedSeconds: readonly (readonly [string, number, number])[] = [
  ["allGather", 0.5 + 6, Math.max(3 * 0.5, 0.5 + 6)],
  ["reduceScatter", 0.5 + 6, Math.max(3 * 0.5, 0.5 + 6)],
  ["allReduce", 0.5 + 12, Math.max(6 * 0.5, 0.5 + 12)],
  ["allToAll", 0.5 + 6, 0.5 + 6],
  ["broadcast", 0.5 + 6, Math.max(3 * 0.5, 0.5 + 2)],
  ["barrier", 2 * 0.5, 2 * 0.5],
];

test.each(expectedSeconds)(
  "%s takes %d seconds in direct form and %d as a ring",
  (name, directSeconds, ringSeconds) => {
    expect(runScript({ sp: n }, directProfile, collectives[name]!).seconds).toBeCloseTo(directSeconds, 9);
    expect(runScript({ sp: n }, ringProfile, collectives[name]!).seconds).toBeCloseTo(ringSeconds, 9);
  },
);

test("in a ring, a rank sends all shares to the next one, except that of the receiver or the one that it keeps", () => {
  const counts = [1, 2, 4];
  const ranks = [5, 6, 9];
  const sentBytes = (op: "allGather" | "reduceScatter" | "broadcast" | "allReduce") =>
    ranks.map((_, rank) => {
      const collective = { op, root: 1, counts, size: 7, elementBytes: 4 };
      const [transfer, ...others] = collectiveTraffic(ringProfile, ranks, rank, collective).transfers;
      expect([transfer!.peerRank, others]).toEqual([ranks[(rank + 1) % 3], []]);
      return transfer!.bytes;
    });
  expect(sentBytes("allGather")).toEqual([4 * (1 + 4), 4 * (1 + 2), 4 * (2 + 4)]);
  expect(sentBytes("reduceScatter")).toEqual([4 * (2 + 4), 4 * (1 + 4), 4 * (1 + 2)]);
  expect(sentBytes("broadcast")).toEqual([0, 4 * 7, 4 * 7]);
  for (const bytes of sentBytes("allReduce")) expect(bytes).toBeCloseTo((2 * 2 * 4 * 7) / 3, 9);
});

test("a barrier of any number of ranks takes whole steps", () => {
  const barrier = { op: "barrier", root: 0, counts: [], size: 0, elementBytes: 4 } as const;
  const latencyOf = (count: number) => collectiveTraffic(ringProfile, [...Array(count).keys()], 0, barrier).latency;
  expect([2, 3, 4, 5].map(latencyOf)).toEqual([0.5, 1, 1, 1.5]);
});

test("every rank of a collective waits for the last one to join", () => {
  const simulation = runScript({ sp: 2 }, directProfile, ({ ctx, rank, compute }) => {
    if (rank === 1) compute();
    ctx.world.barrier().wait();
  });
  expect(simulation.ranks.map(({ exposedCommunicationSeconds }) => exposedCommunicationSeconds)).toEqual([1.5, 0.5]);
});

test("an allGather crosses nodes on two links as a ring and once per node in direct form", () => {
  const spreadOverNodes = (profile: Profile): Profile => {
    const { links } = profile;
    return {
      ...profile,
      ranksPerNode: 2,
      links: { ...links, "inter-node": { ...links["inter-node"], bandwidth: 2, sharedBy: 2 } },
    };
  };
  const secondsOf = (name: string): number =>
    runScript({ sp: n }, spreadOverNodes(directProfile), collectives[name]!).seconds;
  // In direct form, both ranks of a node send a share of 2 elements through one port of half an element per second. It
  // is forwarded in the other node. A reduceScatter sends 2 shares for each rank of the other node.
  expect(secondsOf("allGather")).toBeCloseTo(0.5 + 8, 9);
  expect(secondsOf("reduceScatter")).toBeCloseTo(0.5 + 16, 9);
  expect(runScript({ sp: n }, spreadOverNodes(ringProfile), collectives["allGather"]!).seconds).toBeCloseTo(
    0.5 + 12,
    9,
  );
});

test("a collective that forwards shares within nodes has the latency of both hops", () => {
  const link = { ...directProfile.links.self, bandwidth: 1e9 };
  const profile: Profile = {
    ...{ ...directProfile, ranksPerNode: 2 },
    links: { self: link, "intra-node": { ...link, latency: 10 }, "inter-node": { ...link, latency: 100 } },
  };
  const secondsOf = (name: string): number => runScript({ sp: n }, profile, collectives[name]!).seconds;
  expect(secondsOf("allGather")).toBeCloseTo(110, 3);
  expect(secondsOf("broadcast")).toBeCloseTo(110, 3);
  expect(secondsOf("allReduce")).toBeCloseTo(210, 3);
  expect(secondsOf("reduceScatter")).toBeCloseTo(100, 3);
  expect(secondsOf("allToAll")).toBeCloseTo(100, 3);
});

test("a ring has one latency for each of its steps", () => {
  const profile = { ...profileWithLink({ latency: 10, bandwidth: 1e9 }), collectives: "ring" } as const;
  const secondsOf = (name: string): number => runScript({ sp: n }, profile, collectives[name]!).seconds;
  expect(secondsOf("allGather")).toBeCloseTo(30, 3);
  expect(secondsOf("reduceScatter")).toBeCloseTo(30, 3);
  expect(secondsOf("broadcast")).toBeCloseTo(30, 3);
  expect(secondsOf("allReduce")).toBeCloseTo(60, 3);
  expect(secondsOf("allToAll")).toBeCloseTo(10, 3);
});

test.each([
  ["allGather", [24, 24, 24, 24], [24, 24, 24, 24]],
  ["broadcast", [0, 24, 0, 0], [8, 0, 8, 8]],
  ["barrier", [0, 0, 0, 0], [0, 0, 0, 0]],
  ["sendRecv", [16, 0, 0, 0], [0, 16, 0, 0]],
])("the event of %s has the bytes that each rank sends and receives", (name, bytesSent, bytesReceived) => {
  const { ranks } = runScript({ sp: n }, directProfile, collectives[name]!);
  const events = ranks.map((rank) => rank.events.find((event) => event.name === name)!);
  expect(events.map((event) => event.bytesSent)).toEqual(bytesSent);
  expect(events.map((event) => event.bytesReceived)).toEqual(bytesReceived);
});
