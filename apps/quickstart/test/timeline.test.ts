import { describe, expect, it } from "vitest";
import type { TraceEvent } from "@mosaic/attention";
import type { RankReport } from "../src/job.ts";
import { overlap, timeline } from "../src/timeline.ts";

const second = 1e9;
const attend = (start: number, end: number, name = "attend"): TraceEvent => ({
  lane: "compute",
  name,
  start: start * second,
  end: end * second,
});
const send = (start: number, end: number, bytesSent = 8): TraceEvent => ({
  lane: "communication",
  name: "sendRecv",
  start: start * second,
  end: end * second,
  bytesSent,
});
const report = (rank: number, events: readonly TraceEvent[], sources: readonly number[]): RankReport => ({
  rank,
  spans: [],
  begin: 10,
  end: 20,
  bytesSent: 0,
  peakBytes: 0,
  events,
  sources,
});

describe("the timeline", () => {
  it("counts from the first beginning and joins the heads of a block", () => {
    const [lane] = timeline([
      report(0, [attend(10, 11), attend(11, 12), attend(12, 14), attend(14, 15, "attendBackward")], [0, 0, 1, 1]),
    ]);
    expect(lane?.compute).toEqual([
      { start: 0, end: 2, source: 0, backward: false },
      { start: 2, end: 4, source: 1, backward: false },
      { start: 4, end: 5, source: 1, backward: true },
    ]);
  });

  it("says whose keys a transfer carries", () => {
    const events = [
      send(10, 10.5),
      attend(10, 12),
      send(12, 12.5),
      attend(12.1, 14),
      { ...send(14, 15), label: "ring(sp) gradients" },
    ];
    const [lane] = timeline([report(1, events, [1, 0])]);
    expect(lane?.communication.map(({ source, bytes }) => [source, bytes])).toEqual([
      [1, 8],
      [0, 8],
      [0, 8],
    ]);
  });
});

describe("overlap", () => {
  it("is the share of communication under which the same rank computes", () => {
    const events = [attend(10, 12), send(11, 13), attend(12.5, 14)];
    expect(overlap([report(0, events, [0, 1])])).toBeCloseTo(0.75);
    expect(overlap([report(0, events, [0, 1]), report(1, [send(10, 12)], [])])).toBeCloseTo(1.5 / 4);
  });

  it("counts no moment twice, and nothing that sends nothing", () => {
    expect(overlap([report(0, [attend(10, 12), send(10, 12), send(10, 12), send(13, 20, 0)], [0])])).toBeCloseTo(1);
    expect(overlap([report(0, [attend(10, 12)], [0])])).toBeUndefined();
  });
});
