import { expect, test } from "vitest";
import { createStageSchedule } from "../src/stage-schedule.ts";
import { type RankLoad, predictPassSeconds, stageCostOptions } from "../src/stage-time.ts";

const cost = {
  latency: 0,
  bandwidth: 1,
  launch: 0,
  enqueue: 0,
  flops: 1,
  backwardFlops: 1,
  halfSpeedKeys: 0,
  backwardHalfSpeedKeys: 0,
  memoryBandwidth: 1e12,
};
const forward = { groupCastRowBytes: 1, groupReduceRowBytes: 0, pairFlops: 1 };
const backward = { groupCastRowBytes: 1, groupReduceRowBytes: 2, pairFlops: 1 };

/** Creates the loads of two ranks that require the same number of rows from each other. */
function createPairLoads(ownPairs: number, remotePairs: number, rows: number): RankLoad[] {
  return [1, 0].map((owner) => {
    return { ownPairs, remotePairs, queries: 10, peers: [{ owner, rows, ranges: 1, pairs: remotePairs }], rows };
  });
}
const loads = createPairLoads(100, 300, 100);

// oxlint-disable-next-line max-params -- the pass, what is unlike `cost`, and what is fixed
const chooseSchedule = (
  size: typeof forward,
  costOverrides: Partial<typeof cost> = {},
  degree?: number,
  rankLoads = loads,
) => createStageSchedule(rankLoads, size, { cost: { ...cost, ...costOverrides }, degree });

test("one stage suffices if all remote rows arrive while the local rows are attended to", () => {
  expect(chooseSchedule(forward)).toMatchObject({
    degree: 1,
    isSplit: false,
    cuts: [
      [0, 1],
      [0, 1],
    ],
  });
});

test("remote rows that the local rows cannot hide arrive in more stages, each hidden behind the previous one", () => {
  const { degree, cuts } = chooseSchedule(forward, { bandwidth: 0.5 });
  // The local rows take 100 s, during which 50 rows are received. The other 50 are received during the 150 s of these.
  expect(degree).toBe(2);
  expect(cuts[0]).toEqual([0, 0.5, 1]);
});

test("a first stage is as small as the local rows can hide, and at most 8 stages are considered", () => {
  const heavyLoads = createPairLoads(100, 900, 100);
  // The local rows take 100 s, during which 40 rows are received. The other 60 are received during the 360 s of these.
  expect(chooseSchedule(forward, { bandwidth: 0.4 }, 2, heavyLoads).cuts).toEqual([
    [0, 0.4, 1],
    [0, 0.4, 1],
  ]);
  expect(chooseSchedule(forward, { bandwidth: 0.2 }, undefined, createPairLoads(10, 1000, 100)).degree).toBe(8);
});

test("stages after the first are hidden behind the pairs of the previous stage alone, and a transfer begins with its latency", () => {
  const heavyLoads = createPairLoads(100, 900, 100);
  // 15 rows are received during 100 s, 20.25 during the 135 s of these, and 27.3375 during the 182.25 s of those.
  const { cuts } = chooseSchedule(forward, { bandwidth: 0.15 }, 4, heavyLoads);
  for (const [i, cut] of [0, 0.15, 0.3525, 0.625_875, 1].entries()) expect(cuts[0]![i], `cut ${i}`).toBeCloseTo(cut);
  // 30 rows are received during the last 75 of 100 s.
  expect(chooseSchedule(forward, { bandwidth: 0.4, latency: 25 }, 2, heavyLoads).cuts[0]).toEqual([0, 0.3, 1]);
});

test("a rank that sends more rows than it receives cuts its stages by the rows that it sends", () => {
  const [firstLoad, secondLoad] = createPairLoads(100, 900, 100) as [RankLoad, RankLoad];
  const sender = { ...firstLoad, remotePairs: 90, peers: [{ owner: 1, rows: 10, ranges: 1, pairs: 90 }], rows: 10 };
  const { cuts } = chooseSchedule(forward, { bandwidth: 0.4 }, 2, [sender, secondLoad]);
  expect(cuts).toEqual([
    [0, 0.4, 1],
    [0, 0.4, 1],
  ]);
});

test("a cost per call for all queries reduces the number of stages", () => {
  const degrees = [0, 5, 100].map((halfSpeedKeys) => chooseSchedule(forward, { bandwidth: 0.3, halfSpeedKeys }).degree);
  expect(degrees[0]).toBeGreaterThan(degrees[1]!);
  expect(degrees[2]).toBe(0);
});

test("latency reduces the number of stages", () => {
  const degrees = [0, 200, 1000].map((latency) => chooseSchedule(forward, { bandwidth: 0.3, latency }).degree);
  expect(degrees[0]).toBeGreaterThan(degrees[1]!);
  expect(degrees[2]).toBe(1);
});

test("the last gradients are hidden behind a second part of the local rows", () => {
  // Receiving rows takes 100 s and returning them takes 200 s, so a third of the local rows is attended to first.
  const { isSplit, ownCuts, degree } = chooseSchedule(backward, {}, 1, createPairLoads(300, 300, 100));
  expect({ isSplit, degree }).toEqual({ isSplit: true, degree: 1 });
  expect(ownCuts[0]).toBeCloseTo(1 / 3);
  // With a latency, the transfers take 200 s and 300 s.
  expect(chooseSchedule(backward, { latency: 100 }, 1, createPairLoads(300, 300, 100)).ownCuts[0]).toBeCloseTo(0.4);
});

test("each pass has its own number of stages", () => {
  const heavyLoads = createPairLoads(110, 500, 100);
  const degrees = [forward, backward].map((size) => chooseSchedule(size, { launch: 1 }, undefined, heavyLoads).degree);
  expect(degrees[0]).toBe(1);
  expect(degrees[1]).toBeGreaterThan(1);
});

test("the slowest rank determines the schedule, and ranks without remote rows do not change it", () => {
  const idleLoad = { ownPairs: 5, remotePairs: 0, queries: 10, peers: [], rows: 0 };
  const scheduleWithoutIdle = chooseSchedule(forward, { bandwidth: 0.5 });
  const { degree, cuts } = chooseSchedule(forward, { bandwidth: 0.5 }, undefined, [...loads, idleLoad]);
  expect(degree).toBe(scheduleWithoutIdle.degree);
  expect(cuts[1]).toEqual(scheduleWithoutIdle.cuts[1]);
});

test("a rank that neither sends nor receives rows has all of its local rows first, and no rows in later stages", () => {
  const idleLoad = { ownPairs: 0, remotePairs: 0, queries: 10, peers: [], rows: 0 };
  const backwardLoads = [...createPairLoads(300, 300, 100), idleLoad];
  expect(chooseSchedule(backward, {}, 1, backwardLoads)).toMatchObject({ isSplit: true, ownCuts: { 2: 1 } });
  const forwardLoads = [...createPairLoads(100, 900, 100), idleLoad];
  expect(chooseSchedule(forward, { bandwidth: 0.4 }, 2, forwardLoads).cuts[2]).toEqual([0, 1, 1]);
});

test("the predicted time includes all transfers through a shared port", () => {
  const createReceiver = (owner: number): RankLoad => {
    return { ownPairs: 10, remotePairs: 10, queries: 10, peers: [{ owner, rows: 50, ranges: 1, pairs: 10 }], rows: 50 };
  };
  const senderLoad = { ownPairs: 10, remotePairs: 0, queries: 10, peers: [], rows: 0 };
  const computeSeconds = (ranks: readonly RankLoad[]): number => {
    const problem = { loads: ranks, size: forward, cost: stageCostOptions.parse(cost), hosts: undefined };
    const cuts = ranks.map(() => [0, 1]);
    return predictPassSeconds(problem, { degree: 1, isSplit: false, cuts, ownCuts: ranks.map(() => 1) });
  };
  expect(computeSeconds([senderLoad, createReceiver(0)])).toBeCloseTo(50 + 10);
  // Both receive from the same rank, whose port sends 100 rows.
  expect(computeSeconds([senderLoad, createReceiver(0), createReceiver(0)])).toBeCloseTo(100 + 10);
});

test("the second stage does not wait for the local rows of its sender", () => {
  const senderLoad = { ownPairs: 1000, remotePairs: 0, queries: 10, peers: [], rows: 0 };
  const receiverLoad = {
    ownPairs: 100,
    remotePairs: 900,
    queries: 10,
    peers: [{ owner: 0, rows: 100, ranges: 1, pairs: 900 }],
    rows: 100,
  };
  const problem = {
    loads: [senderLoad, receiverLoad],
    size: forward,
    cost: stageCostOptions.parse(cost),
    hosts: undefined,
  };
  const schedule = { degree: 2, isSplit: false, cuts: [0, 1].map(() => [0, 0.5, 1]), ownCuts: [1, 1] };
  // The sender takes 1000 s for its rows. The receiver has all rows after 100 s.
  expect(predictPassSeconds(problem, schedule)).toBeCloseTo(1000);
});

test.each([0, 1, 2, 5])("%i stages are used if requested, with cuts that ascend from 0 to 1", (degree) => {
  const schedule = chooseSchedule(backward, { bandwidth: 0.1 }, degree);
  expect(schedule.degree).toBe(degree);
  const cuts = schedule.cuts[0]!;
  if (degree > 0) {
    expect(cuts).toHaveLength(degree + 1);
    expect([cuts[0], cuts.at(-1)]).toEqual([0, 1]);
    expect(cuts.every((cut, i) => i === 0 || cut >= cuts[i - 1]!)).toBe(true);
  }
});
