import { ring } from "@mosaic/backend-ring";
import { expect, test } from "vitest";
import { perfettoTrace, predict, profiles, type Timeline } from "../../src/index.ts";
import { ringTimeline } from "./timelines.ts";

interface TraceEntry {
  readonly ph: string;
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  readonly ts?: number;
  readonly dur?: number;
  readonly args?: Readonly<Record<string, unknown>>;
}

function parseEntries(timeline: Timeline): readonly TraceEntry[] {
  const trace = JSON.parse(perfettoTrace(timeline)) as { displayTimeUnit: string; traceEvents: readonly TraceEntry[] };
  expect(Object.keys(trace).toSorted()).toEqual(["displayTimeUnit", "traceEvents"]);
  expect(trace.displayTimeUnit).toBe("ms");
  return trace.traceEvents;
}

test("each event is exported as a complete event in the process of its rank, in microseconds", () => {
  const entries = parseEntries(ringTimeline(3, 4));
  const slices = entries.filter(({ ph }) => ph === "X");
  expect(slices).toHaveLength(3 * 4 * 2);
  expect(slices.find(({ pid, name }) => pid === 2 && name === "attendBackward")).toMatchObject({ ts: 4000, dur: 3000 });
  expect(slices.find(({ name }) => name === "ring(sp)")!.args).toEqual({
    collective: "sendRecv",
    bytesSent: 1e6,
    bytesReceived: 1e6,
  });
  for (const entry of entries) {
    expect(["X", "M"]).toContain(entry.ph);
    expect(Number.isInteger(entry.pid) && Number.isInteger(entry.tid)).toBe(true);
    if (entry.ph === "X") expect(entry.ts! >= 0 && entry.dur! >= 0).toBe(true);
  }
});

test("processes and tracks have names", () => {
  const names = parseEntries(ringTimeline(2, 1)).filter(({ ph }) => ph === "M");
  const listNames = (kind: string) =>
    names.filter(({ name }) => name === kind).map(({ pid, args }) => [pid, args!["name"]]);
  expect(listNames("process_name")).toEqual([
    [0, "rank 0 (sp 0)"],
    [1, "rank 1 (sp 1)"],
  ]);
  expect(listNames("thread_name")).toEqual([
    [0, "compute"],
    [0, "communication"],
    [1, "compute"],
    [1, "communication"],
  ]);
});

test("slices of a track do not overlap, even if the events of the timeline do", () => {
  const overlappingTimeline = ringTimeline(1, 4);
  const events = overlappingTimeline.ranks[0]!.events.map((event) => ({ ...event, end: event.end + 0.002 }));
  const { simulation } = predict(
    { backend: ring(), mesh: { sp: 4 }, tokens: 4096, numHeads: 8, headDim: 64 },
    profiles["h100-ib400"],
  );
  for (const timeline of [{ ...overlappingTimeline, ranks: [{ rank: 0, at: {}, events }] }, simulation]) {
    const slices = parseEntries(timeline).filter(({ ph }) => ph === "X");
    expect(slices).toHaveLength(timeline.ranks.reduce((sum, rank) => sum + rank.events.length, 0));
    const tracks = new Map<string, TraceEntry[]>();
    for (const slice of slices) {
      const name = `${slice.pid} ${slice.tid}`;
      tracks.set(name, [...(tracks.get(name) ?? []), slice]);
    }
    for (const track of tracks.values()) {
      for (const [i, { ts }] of track.entries()) {
        const previousEntry = track[i - 1];
        if (previousEntry) expect(ts!).toBeGreaterThanOrEqual(previousEntry.ts! + previousEntry.dur! - 1e-3);
      }
    }
  }
});
