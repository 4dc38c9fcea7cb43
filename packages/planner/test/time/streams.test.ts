import { ring } from "@mosaic/backend-ring";
import { expect, test } from "vitest";
import { type Profile, record, simulate } from "../../src/index.ts";
import { HEAD_DIM, profileWithLink, runScript, ROWS, listTimes, toyProfile } from "./toy.ts";

/**
 * Simulates a ring of two ranks with ROWS rows each, on links where K and V take `transferSeconds`, and dK and dV
 * equally long.
 */
function simulateRingOfTwo(transferSeconds: number): {
  readonly forward: number;
  readonly total: number;
  readonly exposed: number;
} {
  const elements = 2 * ROWS * HEAD_DIM;
  const profile = profileWithLink({ bandwidth: (4 * elements) / transferSeconds });
  const attentionRecord = record({
    backend: ring(),
    mesh: { sp: 2 },
    tokens: 2 * ROWS,
    numHeads: 1,
    headDim: HEAD_DIM,
    dtype: "float32",
  });
  const { forwardSeconds, seconds, exposedCommunicationSeconds } = simulate(attentionRecord, profile);
  return { forward: forwardSeconds, total: seconds, exposed: exposedCommunicationSeconds };
}

test("a ring hides a transfer behind the tile before it", () => {
  // Forward: own tile, foreign tile. Backward: the same, then dK and dV are returned, which nothing hides.
  const { forward, total, exposed } = simulateRingOfTwo(0.25);
  expect(forward).toBeCloseTo(2, 9);
  expect(total).toBeCloseTo(2 + 2 + 0.25, 9);
  expect(exposed).toBeCloseTo(0.25, 9);
});

test("the part of a transfer that takes longer than the tile is exposed", () => {
  const { forward, total, exposed } = simulateRingOfTwo(3);
  expect(forward).toBeCloseTo(3 + 1, 9);
  expect(total).toBeCloseTo(3 + 1 + 3 + 1 + 3, 9);
  expect(exposed).toBeCloseTo(2 + 2 + 3, 9);
});

test("a message starts when both sides have reached it", () => {
  const simulation = runScript({ sp: 2 }, toyProfile, ({ ctx, rank, compute, tensor }) => {
    if (rank === 1) compute();
    ctx.world.sendRecv([rank === 0 ? { tensor: tensor(3), to: 1 } : { tensor: tensor(3), from: 0 }]).wait();
  });
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([[0, 4]]);
  expect(listTimes(simulation, 1, "sendRecv")).toEqual([[1, 4]]);
  expect(simulation.ranks[0]!.exposedCommunicationSeconds).toBeCloseTo(4, 9);
  expect(simulation.ranks[1]!.computeSeconds).toBeCloseTo(1, 9);
  expect(simulation.seconds).toBeCloseTo(4, 9);
});

test("collectives of a rank run one after the other, concurrently with its kernels", () => {
  const simulation = runScript({ sp: 2 }, toyProfile, ({ ctx, rank, compute, tensor }) => {
    const peer = 1 - rank;
    const firstWork = ctx.world.sendRecv([
      { tensor: tensor(2), to: peer },
      { tensor: tensor(2), from: peer },
    ]);
    const secondWork = ctx.world.sendRecv([
      { tensor: tensor(1), to: peer },
      { tensor: tensor(1), from: peer },
    ]);
    compute();
    firstWork.wait();
    compute();
    secondWork.wait();
    compute();
  });
  expect(listTimes(simulation, 0, "sendRecv")).toEqual([
    [0, 2],
    [2, 3],
  ]);
  expect(listTimes(simulation, 0, "attend")).toEqual([
    [0, 1],
    [2, 3],
    [3, 4],
  ]);
});

test("groups have separate channels if the profile states so", () => {
  const runBothAxes = (profile: Profile) =>
    runScript({ a: 2, b: 2 }, profile, ({ ctx, tensor }) => {
      const works = ["a", "b"].map((axis) => {
        const group = ctx.mesh.group(axis);
        const peer = 1 - group.rank;
        return group.sendRecv([
          { tensor: tensor(2), to: peer },
          { tensor: tensor(2), from: peer },
        ]);
      });
      for (const work of works) work.wait();
    });
  expect(runBothAxes(toyProfile).seconds).toBeCloseTo(4, 9);
  // Concurrent transfers still share the rank's port. They end together, no sooner than if one had waited for the
  // other.
  expect(listTimes(runBothAxes({ ...toyProfile, channels: "group" }), 0, "sendRecv")).toEqual([
    [0, 4],
    [0, 4],
  ]);
});

test("latency precedes the first byte, once for all messages of a batch", () => {
  const simulation = runScript({ sp: 2 }, profileWithLink({ latency: 0.5 }), ({ ctx, rank, tensor }) => {
    const endpoint = rank === 0 ? { to: 1 } : { from: 0 };
    ctx.world
      .sendRecv([
        { tensor: tensor(1), ...endpoint },
        { tensor: tensor(2), ...endpoint },
      ])
      .wait();
  });
  expect(simulation.seconds).toBeCloseTo(0.5 + 3, 9);
});

test("no operation begins before the host has enqueued it", () => {
  const simulation = runScript({ sp: 1 }, { ...toyProfile, enqueue: 0.1 }, ({ compute }) => {
    compute();
    compute();
  });
  // out and lse are filled first: operations 1 and 2.
  expect(listTimes(simulation, 0, "attend")).toEqual([
    [0.3, 1.3],
    [1.3, 2.3],
  ]);
});

test("the time to enqueue operations limits a machine with fast kernels", () => {
  const profile = {
    ...toyProfile,
    enqueue: 1,
    kernels: { ...toyProfile.kernels, bandwidth: 1e30, attend: { float32: fastSpeed } },
  };
  const simulation = runScript({ sp: 1 }, profile, ({ compute }) => {
    for (let i = 0; i < 5; i++) compute();
  });
  expect(listTimes(simulation, 0, "attend").at(-1)![0]).toBeCloseTo(7, 6);
});

const fastSpeed = { flops: 1e12, halfSpeedRows: 0, halfSpeedKeys: 0, halfSpeedHeadDim: 0 };
