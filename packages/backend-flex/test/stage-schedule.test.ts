import { expect, test } from "vitest";
import { stageSchedule } from "../src/stage-schedule.ts";

const cost = { latency: 0, bandwidth: 1, launch: 0, flops: 1 };
const forward = { castBytes: 1, reduceBytes: 0, pairFlops: 1 };
const backward = { castBytes: 1, reduceBytes: 2, pairFlops: 1 };
const load = { ownPairs: 100, remotePairs: 300, rows: 100 };

const choose = (size: typeof forward, changed: Partial<typeof cost> = {}, degree?: number, loads = [load]) =>
  stageSchedule(loads, size, { cost: { ...cost, ...changed }, degree });

test("one stage suffices where all rows arrive while the own ones are attended to", () => {
  expect(choose(forward)).toMatchObject({ degree: 1, isSplit: false, cuts: [[0, 1]] });
});

test("more rows than the own ones hide come in more stages, each hidden behind the one before it", () => {
  const { degree, cuts } = choose(forward, { bandwidth: 0.5 });
  expect(degree).toBeGreaterThan(1);
  // The own rows take 100 s: 50 rows arrive meanwhile, and the other 50 in the 150 s of these.
  expect(cuts[0]!.slice(0, 2)).toEqual([0, 0.5]);
  expect(cuts[0]!.at(-1)).toBe(1);
});

test("where a kernel's start costs more than the transfer, everything is one call", () => {
  expect(choose(forward, { launch: 1000 }).degree).toBe(0);
});

test("latency makes stages fewer", () => {
  const degrees = [0, 200, 1000].map((latency) => choose(forward, { bandwidth: 0.3, latency }).degree);
  expect(degrees[0]).toBeGreaterThan(degrees[1]!);
  expect(degrees[2]).toBe(1);
});

test("the last gradients are hidden behind a second part of the own rows", () => {
  // Rows take 100 s to come and 200 s to return: a third of the own rows goes first.
  const { isSplit, ownCuts, degree } = choose(backward, {}, 1, [{ ownPairs: 300, remotePairs: 300, rows: 100 }]);
  expect({ isSplit, degree }).toEqual({ isSplit: true, degree: 1 });
  expect(ownCuts[0]).toBeCloseTo(1 / 3);
});

test("each pass has its own number of stages", () => {
  const heavy = [{ ownPairs: 110, remotePairs: 500, rows: 100 }];
  const degrees = [forward, backward].map((size) => choose(size, { launch: 1 }, undefined, heavy).degree);
  expect(degrees[0]).toBe(1);
  expect(degrees[1]).toBeGreaterThan(1);
});

test("the slowest rank decides, ranks without remote rows do not", () => {
  const idle = { ownPairs: 5, remotePairs: 0, rows: 0 };
  const alone = choose(forward, { bandwidth: 0.5 });
  const { degree, cuts } = choose(forward, { bandwidth: 0.5 }, undefined, [idle, load]);
  expect(degree).toBe(alone.degree);
  expect(cuts[1]).toEqual(alone.cuts[0]);
});

test.each([0, 1, 2, 5])("%i stages, if these are asked for: cuts ascend from 0 to 1", (degree) => {
  const chosen = choose(backward, { bandwidth: 0.1 }, degree);
  expect(chosen.degree).toBe(degree);
  const cuts = chosen.cuts[0]!;
  if (degree > 0) {
    expect(cuts).toHaveLength(degree + 1);
    expect([cuts[0], cuts.at(-1)]).toEqual([0, 1]);
    expect(cuts.every((cut, i) => i === 0 || cut >= cuts[i - 1]!)).toBe(true);
  }
});
