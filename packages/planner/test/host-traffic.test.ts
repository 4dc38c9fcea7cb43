import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, masks, scope } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, countHostTraffic, record } from "../src/index.ts";

const call = { backend: ring(), mesh: { dp: 2, sp: 3 }, tokens: 37, numHeads: 2, headDim: 8, mask: masks.causal() };

test("countHostTraffic equals the traffic of rank 0 in count if each rank has its own host", () => {
  const { forward, backward } = count(record(call)).ranks[0]!;
  const [rankTraffic] = countHostTraffic(call, [[0, 1, 2, 3, 4, 5]]);
  expect(rankTraffic).toEqual({ forward: forward.sent.bytes, backward: backward.sent.bytes });
  expect(rankTraffic!.forward).toBeGreaterThan(0);
});

test("countHostTraffic ignores messages within a host and those of other hosts", () => {
  expect(
    countHostTraffic(call, [
      [0, 0, 0, 1, 1, 1],
      [1, 1, 1, 1, 1, 1],
    ]),
  ).toEqual([
    { forward: 0, backward: 0 },
    { forward: 0, backward: 0 },
  ]);
});

test("countHostTraffic counts a gathered share once for each other host", () => {
  const backend: AttentionBackend = {
    name: "scripted",
    axes: [],
    attend: (ctx) =>
      scope(() => ctx.world.allGather(ctx.device.empty([60], "float32"), ctx.device.empty([10], "float32")).wait()),
    attendBackward() {},
  };
  const hostAssignments = [
    [0, 0, 0, 1, 1, 1],
    [0, 1, 0, 2, 1, 1],
    [0, 1, 2, 3, 4, 5],
  ];
  const traffic = countHostTraffic({ ...call, backend, mesh: { sp: 6 } }, hostAssignments);
  // Host 0 has 3, 2 and 1 ranks, each with a share of 40 bytes, and there are 1, 2 and 5 other hosts.
  expect(traffic.map(({ forward }) => forward)).toEqual([3 * 40, 2 * 2 * 40, 5 * 40]);
});

test("a broadcast is received on another host by the rank with the root's index there, which forwards it", () => {
  const countSentMessages = (root: number): number[] => {
    const backend: AttentionBackend = {
      name: "scripted",
      axes: [],
      attend: (ctx) => scope(() => ctx.world.broadcast(ctx.device.empty([10], "float32"), root).wait()),
      attendBackward() {},
    };
    const { ranks } = count(record({ ...call, backend, mesh: { sp: 5 }, hosts: [0, 0, 1, 1, 1] }));
    return ranks.map(({ forward }) => forward.sent.messages);
  };
  expect(countSentMessages(0)).toEqual([2, 0, 2, 0, 0]);
  expect(countSentMessages(1)).toEqual([0, 2, 0, 2, 0]);
  expect(countSentMessages(3)).toEqual([0, 1, 0, 3, 0]);
});

test("countHostTraffic rejects host lists of the wrong length", () => {
  expect(() => countHostTraffic(call, [[0, 1]])).toThrow(
    /countHostTraffic: expected an array of arrays of 6 hosts, one host per rank/,
  );
});
