import { expect, test } from "vitest";
import { type Timeline, timelineOf } from "../../src/index.ts";
import type { EventKind, RankTraceData } from "../../src/view/data.ts";
import { encodeRun } from "../../src/view/encode.ts";
import { memoryOverTime } from "../../viewer/memory.ts";
import { Coverage } from "../../viewer/coverage.ts";
import { criticalPath } from "../../viewer/critical-path.ts";
import { decodeRun, decodeTraces, Kinds, listEvents } from "../../viewer/model.ts";
import { layoutRows, pan, reveal, wholeViewport, zoom } from "../../viewer/viewport.ts";

type EventTuple = readonly [
  lane: "compute" | "communication",
  name: string,
  start: number,
  end: number,
  label?: string,
];

function createTimeline(ranks: readonly (readonly EventTuple[])[]): Timeline {
  const rankTimelines = ranks.map((events, rank) => ({
    rank,
    at: { sp: rank },
    events: events.map(([lane, name, start, end, label]) => ({ lane, name, start, end, ...(label && { label }) })),
  }));
  return { seconds: Math.max(0, ...ranks.flat().map(([, , , end]) => end)), ranks: rankTimelines };
}

function describeCriticalPath(timeline: Timeline): readonly string[] {
  const kinds = new Kinds();
  const run = decodeRun(encodeRun("", timeline, 1e6), kinds);
  return criticalPath(run, kinds).map(({ rank, event }) => {
    const { start } = run.ranks[rank]!.events;
    return `${rank} ${kinds.allKinds[run.ranks[rank]!.events.kind[event]!]!.name} ${start[event]}`;
  });
}

test("the critical path follows the events of a rank back to the beginning", () => {
  expect(
    describeCriticalPath(
      createTimeline([
        [
          ["compute", "a", 0, 1],
          ["compute", "b", 1, 2],
        ],
        [["compute", "a", 0, 1.5]],
      ]),
    ),
  ).toEqual(["0 b 1", "0 a 0"]);
});

test("the critical path continues at the rank that joined a collective last", () => {
  const path = describeCriticalPath(
    createTimeline([
      [
        ["compute", "fast", 0, 1],
        ["communication", "allReduce", 1, 4, "sum(sp)"],
        ["compute", "end", 4, 6],
      ],
      [
        ["compute", "slow", 0, 3],
        ["communication", "allReduce", 3, 4, "sum(sp)"],
        ["compute", "end", 4, 5],
      ],
    ]),
  );
  expect(path).toEqual(["0 end 4", "0 allReduce 1", "1 slow 0"]);
});

test("the critical path does not continue at ranks of other groups", () => {
  const createEvents = (joinTime: number): readonly EventTuple[] => [
    ["compute", "own", 0, joinTime],
    ["communication", "allReduce", joinTime, 4, "sum(tp)"],
  ];
  const baseTimeline = createTimeline([createEvents(1), createEvents(3)]);
  const separateGroups = {
    ...baseTimeline,
    ranks: baseTimeline.ranks.map((rank, dp) => ({ ...rank, at: { dp, tp: 0 } })),
  };
  expect(describeCriticalPath(separateGroups)).toEqual(["0 allReduce 1", "0 own 0"]);
  const oneGroup = { ...baseTimeline, ranks: baseTimeline.ranks.map((rank, tp) => ({ ...rank, at: { dp: 0, tp } })) };
  expect(describeCriticalPath(oneGroup)).toEqual(["0 allReduce 1", "1 own 0"]);
});

test("an empty timeline and events of zero duration have no critical path", () => {
  expect(describeCriticalPath({ seconds: 0, ranks: [] })).toEqual([]);
  expect(describeCriticalPath(createTimeline([[["compute", "a", 1, 1]]]))).toEqual([]);
});

test("coverage is the weighted share of each pixel's time, for each style", () => {
  const kinds = new Kinds();
  const eventTuples: EventTuple[] = Array.from({ length: 200 }, (_, i) => [
    "compute",
    i % 3 ? "a" : "b",
    i * 0.37,
    i * 0.37 + 0.05 * (i % 7),
  ]);
  const [rank] = decodeRun(encodeRun("", createTimeline([eventTuples]), 1e6), kinds).ranks;
  const window = { start: 10, end: 61, pixels: 83 };
  const coverage = new Coverage(window.pixels, 2);
  coverage.add(rank!.events, window, {
    styleIndexByKind: Int16Array.from(kinds.allKinds, ({ name }) => (name === "a" ? 0 : 1)),
    weight: 0.5,
  });
  for (const [style, name] of ["a", "b"].entries()) {
    const width = (window.end - window.start) / window.pixels;
    const expected = Array.from({ length: window.pixels }, (_, pixel) => {
      const [pixelStart, pixelEnd] = [window.start + pixel * width, window.start + (pixel + 1) * width];
      const overlap = eventTuples
        .filter((event) => event[1] === name)
        .map(([, , start, end]) => Math.max(0, Math.min(pixelEnd, end) - Math.max(pixelStart, start)));
      return (0.5 * overlap.reduce((sum, each) => sum + each, 0)) / width;
    });
    const shares = coverage.shares(style);
    for (const [pixel, share] of expected.entries()) expect(shares[pixel]).toBeCloseTo(share, 4);
  }
});

test("blend mixes colors over the existing pixels by their shares and resets the sums", () => {
  const kinds = new Kinds();
  const events: readonly EventTuple[] = [
    ["compute", "a", 0, 1],
    ["compute", "a", 2, 2.5],
  ];
  const [rank] = decodeRun(encodeRun("", createTimeline([events]), 1e6), kinds).ranks;
  const coverage = new Coverage(4, 1);
  const row = new Uint32Array(6).fill(0xff000000);
  const paint = { styleIndexByKind: Int16Array.from([0]), weight: 1 };
  coverage.add(rank!.events, { start: 0, end: 4, pixels: 4 }, paint);
  coverage.blend(row, 1, Float32Array.from([200, 100, 50]));
  expect([...row].map((pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255])).toEqual([
    [0, 0, 0],
    [200, 100, 50],
    [0, 0, 0],
    [100, 50, 25],
    [0, 0, 0],
    [0, 0, 0],
  ]);
  coverage.blend(row, 1, Float32Array.from([9, 9, 9]));
  expect(row[1]).toBe((0xff000000 | (50 << 16) | (100 << 8) | 200) >>> 0);
});

test("zoom, pan and reveal keep a view within the extent", () => {
  const extent = { seconds: 10, ranks: 100 };
  const fullView = wholeViewport(extent);
  expect(pan(fullView, extent, [0.5, 0.5])).toEqual(fullView);
  const zoomedView = zoom(fullView, extent, { time: 0.1, ranks: 0.25, center: [1, 0] });
  expect(zoomedView).toEqual({ start: 9, end: 10, first: 0, last: 25 });
  expect(pan(zoomedView, extent, [-20, 20])).toEqual({ start: 0, end: 1, first: 75, last: 100 });
  expect(zoom(zoomedView, extent, { time: 1e-30, ranks: 1e-30, center: [0.5, 0.5] }).last).toBe(13);
  const narrowestView = zoom(zoomedView, extent, { time: 1e-30, center: [0.5, 0.5] });
  expect(narrowestView.end - narrowestView.start).toBeCloseTo(2e-8, 9);
  const { start, end, first, last } = reveal(zoomedView, extent, { start: 2, end: 2.5, rank: 60 });
  expect([start <= 2 && end >= 2.5, first <= 60 && last >= 61]).toEqual([true, true]);
});

test("rows fill the height, and each stands for several ranks if there are too many", () => {
  const fewRows = layoutRows({ start: 0, end: 1, first: 0, last: 3 }, 2, { height: 60, minHeight: 4 });
  expect(fewRows.map(({ run, firstRank: from, endRank: to, top, height }) => [run, from, to, top, height])).toEqual([
    [0, 0, 1, 0, 10],
    [1, 0, 1, 10, 10],
    [0, 1, 2, 20, 10],
    [1, 1, 2, 30, 10],
    [0, 2, 3, 40, 10],
    [1, 2, 3, 50, 10],
  ]);
  const manyRows = layoutRows({ start: 0, end: 1, first: 0, last: 1024 }, 1, { height: 500, minHeight: 4 });
  expect(manyRows.every(({ height }) => height >= 3)).toBe(true);
  expect(manyRows.reduce((sum, { height }) => sum + height, 0)).toBe(500);
  expect([manyRows[0]!.firstRank, manyRows.at(-1)!.endRank >= 1024]).toEqual([0, true]);
});

test("decodeTraces aligns the clocks of several hosts in the same way as timelineOf", () => {
  const kinds: readonly EventKind[] = [
    { lane: "compute", name: "attend" },
    { lane: "compute", name: "collective wait" },
    { lane: "communication", name: "sendRecv", label: "ring(sp)" },
  ];
  const createTrace = (rank: number, offset: number): RankTraceData => ({
    ...{ format: "mosaic-trace/1", rank, worldSize: 2, host: rank, at: { sp: rank } },
    clock: { offset, error: 100 * rank },
    events: {
      kinds,
      kind: [0, 1, 2],
      start: [5e12 - offset + 50 * rank, 300, 100],
      duration: [200, 500, 600],
      bytes: [64, 32],
    },
    memory: { time: [5e12 - offset, 900], bytes: [10, 20] },
  });
  const pageKinds = new Kinds();
  const run = decodeTraces([createTrace(1, 2e9), createTrace(0, 0)], pageKinds);
  const createEvents = (rank: number, offset: number) => [
    {
      lane: "compute",
      name: "attend",
      start: 5e12 - offset + 50 * rank,
      end: 5e12 - offset + 50 * rank + 200,
    } as const,
    {
      lane: "compute",
      name: "collective wait",
      start: 5e12 - offset + 50 * rank + 300,
      end: 5e12 - offset + 50 * rank + 800,
    } as const,
    {
      ...({ lane: "communication", name: "sendRecv", label: "ring(sp)", bytesSent: 64, bytesReceived: 32 } as const),
      start: 5e12 - offset + 50 * rank + 400,
      end: 5e12 - offset + 50 * rank + 1000,
    },
  ];
  const plannedTimeline = timelineOf(
    [0, 1].map((rank) => ({
      rank,
      at: { sp: rank },
      events: createEvents(rank, rank * 2e9),
      clock: { offset: rank * 2e9, error: 100 * rank },
    })),
  );
  expect(run.seconds).toBeCloseTo(plannedTimeline.seconds, 12);
  expect(run.clockError).toBeCloseTo(plannedTimeline.clockError!, 12);
  for (const [i, { events: expected }] of plannedTimeline.ranks.entries()) {
    const listedEvents = listEvents(run.ranks[i]!.events, pageKinds);
    expect(listedEvents.map(({ name }) => name)).toEqual(expected.map(({ name }) => name));
    for (const [j, event] of expected.entries()) expect(listedEvents[j]!.start).toBeCloseTo(event.start, 12);
  }
  const { most, mean } = memoryOverTime(run.ranks, run.seconds, 3);
  expect([most, mean]).toEqual([
    [10, 20, 20],
    [10, 20, 20],
  ]);
});
