import { world } from "@mosaic/collectives-local";
import type { Context } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { clockOffset, perfettoTrace, timelineOf } from "../../src/index.ts";

const SECOND = 1e9;
/** By rank: how far its clock is ahead of the real time. Hosts were booted at different times. */
const clockOffsets = [0, 0, 3 * SECOND, 3 * SECOND, -86_400 * SECOND];
const hosts = [0, 0, 1, 1, 2];
const createClock = (rank: number) => (): number => Number(process.hrtime.bigint()) + clockOffsets[rank]!;

async function runOnHosts<T>(run: (contexts: readonly Context[]) => Promise<T>): Promise<T> {
  const contexts = await world(hosts.length, { device: () => cpu({ threads: 1 }), timeout: 20 });
  for (const ctx of contexts) Object.assign(ctx.world, { hosts });
  try {
    return await run(contexts);
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

test("clockOffset measures the offset of each host's clock within the stated error", async () => {
  const offsets = await runOnHosts((contexts) =>
    Promise.all(contexts.map((ctx) => clockOffset(ctx, { now: createClock(ctx.rank) }))),
  );
  expect(offsets.slice(0, 2)).toEqual([
    { offset: 0, error: 0 },
    { offset: 0, error: 0 },
  ]);
  expect(offsets[3]).toEqual(offsets[2]);
  for (const rank of [2, 4]) {
    const { offset, error } = offsets[rank]!;
    // Offsets are broadcast in whole nanoseconds; doubles of a day's nanoseconds have finer steps.
    expect(Math.abs(offset + clockOffsets[rank]!)).toBeLessThanOrEqual(error + 2);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(0.02 * SECOND);
  }
});

test("timelineOf aligns traces of several hosts: no barrier ends before it has begun on every host", async () => {
  const traces = await runOnHosts(async (contexts) => {
    for (const ctx of contexts) ctx.startTrace();
    for (const ctx of contexts) ctx.world.barrier().wait();
    const events = await Promise.all(contexts.map((ctx) => ctx.stopTrace()));
    const clocks = await Promise.all(contexts.map((ctx) => clockOffset(ctx, { now: createClock(ctx.rank) })));
    return events.map((rankEvents, rank) => ({
      ...{ rank, at: { sp: rank }, clock: clocks[rank]! },
      events: rankEvents.map((each) => ({
        ...each,
        start: each.start + clockOffsets[rank]!,
        end: each.end + clockOffsets[rank]!,
      })),
    }));
  });
  const { ranks, clockError, seconds } = timelineOf(traces);
  const barriers = ranks.map(({ events }) => events.find(({ name }) => name === "barrier")!);
  const lastStart = Math.max(...barriers.map(({ start }) => start));
  const firstEnd = Math.min(...barriers.map(({ end }) => end));
  expect(clockError).toBeGreaterThan(0);
  expect(clockError).toBeLessThan(0.04);
  expect(lastStart - firstEnd).toBeLessThanOrEqual(clockError!);
  expect(seconds).toBeLessThan(10);
  const unalignedTimeline = timelineOf(traces.map(({ rank, at, events }) => ({ rank, at, events })));
  expect(unalignedTimeline.seconds).toBeGreaterThan(86_000);
  expect(unalignedTimeline.clockError).toBeUndefined();
  const { otherData } = JSON.parse(perfettoTrace({ seconds, ranks, clockError: clockError! })) as {
    otherData: { clockErrorMicroseconds: number };
  };
  expect(otherData.clockErrorMicroseconds).toBeCloseTo(clockError! * 1e6, 2);
});

test("ranks of one host have a clock offset of 0 and send no messages", async () => {
  const contexts = await world(2, { device: () => cpu({ threads: 1 }), timeout: 20 });
  const offsets = await Promise.all(contexts.map((ctx) => clockOffset(ctx)));
  expect(offsets).toEqual([
    { offset: 0, error: 0 },
    { offset: 0, error: 0 },
  ]);
  expect(contexts[1]!.world.traffic().messagesSent).toBe(0);
  await expect(clockOffset(contexts[0]!, { rounds: 0 })).rejects.toThrow(/clockOffset: rounds: expected an integer/);
  await Promise.all(contexts.map((ctx) => ctx.close()));
});
