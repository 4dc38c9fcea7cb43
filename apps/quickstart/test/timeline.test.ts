import type { TraceEvent } from "@mosaic/attention/core";
import { describe, expect, it } from "vitest";
import type { RankReport } from "../src/job.ts";
import type { MessageBatch, RankSchedule, Tile } from "../src/rank-schedule.ts";
import { overlapFraction, createTimeline } from "../src/timeline.ts";

const NS_PER_SECOND = 1e9;
const attendEvent = (start: number, end: number, name = "attend"): TraceEvent => ({
  lane: "compute",
  name,
  start: start * NS_PER_SECOND,
  end: end * NS_PER_SECOND,
});
const sendEvent = (start: number, end: number, bytesSent = 8, label = "ring(sp)"): TraceEvent => ({
  lane: "communication",
  name: "sendRecv",
  label,
  start: start * NS_PER_SECOND,
  end: end * NS_PER_SECOND,
  bytesSent,
});
const report = (rank: number, events: readonly TraceEvent[]): RankReport => ({
  rank,
  coordinate: { sp: rank },
  spans: [],
  begin: 10,
  end: 20,
  bytesSent: 0,
  peakBytes: 0,
  events,
});
const createTile = (keys: number, isBackward = false): Tile => ({ queries: [0], keys: [keys], isBackward });
const createBatch = (owner: number, bytes = 8, label = "ring(sp)"): MessageBatch => ({
  label,
  bytes,
  isBackward: false,
  payloads: [{ name: "K, V", owners: [owner], receiver: 1, bytes }],
});
const createSchedule = (tiles: readonly Tile[], batches: readonly MessageBatch[] = []): readonly RankSchedule[] => [
  { rank: 0, tiles, batches },
];

describe("the timeline", () => {
  it("measures times from the start of the run, and merges the heads of a block", () => {
    const events = [
      attendEvent(10, 11),
      attendEvent(11, 12),
      attendEvent(12, 14),
      attendEvent(14, 15, "attendBackward"),
    ];
    const [lane] = createTimeline(
      [report(0, events)],
      createSchedule([createTile(0), createTile(0), createTile(1), createTile(1, true)]),
    );
    expect(lane?.computeBlocks).toEqual([
      { start: 0, end: 2, queries: [0], keys: [0], isBackward: false },
      { start: 2, end: 4, queries: [0], keys: [1], isBackward: false },
      { start: 4, end: 5, queries: [0], keys: [1], isBackward: true },
    ]);
  });

  it("merges the backward kernels of a device into one block", () => {
    const names = ["attend_bf16", "attendKeys_bf16", "attendQueries_bf16", "attendKeys_bf16", "attendQueries_bf16"];
    const events = names.map((name, i) => attendEvent(10 + i, 11 + i, name));
    const [lane] = createTimeline(
      [report(0, events)],
      createSchedule([createTile(0), createTile(0, true), createTile(1, true)]),
    );
    expect(lane?.computeBlocks.map(({ start, end, keys }) => [start, end, ...keys])).toEqual([
      [0, 1, 0],
      [1, 3, 0],
      [3, 5, 1],
    ]);
    expect(() =>
      createTimeline(
        [report(0, events)],
        createSchedule([createTile(0), createTile(0, true), createTile(1, true), createTile(2, true)]),
      ),
    ).toThrow(/expected 4 attention events, as planned; received 5/);
  });

  it("assigns planned payloads to transfers by label, in any interleaving", () => {
    const events = [
      sendEvent(10, 11, 8, "ring(gpu)"),
      sendEvent(11, 12),
      sendEvent(12, 13, 4, "ring(gpu)"),
      sendEvent(13, 14, 0),
    ];
    const [lane] = createTimeline(
      [report(0, events)],
      createSchedule([], [createBatch(5), createBatch(6, 8, "ring(gpu)"), createBatch(7, 4, "ring(gpu)")]),
    );
    expect(lane?.transfers.map(({ start, payloads }) => [start, payloads[0]?.owners])).toEqual([
      [0, [6]],
      [1, [5]],
      [2, [7]],
    ]);
  });

  it("rejects a rank whose events differ from its schedule", () => {
    const tryCreateTimeline = (...events: readonly TraceEvent[]) =>
      createTimeline([report(0, events)], createSchedule([createTile(0)], [createBatch(0)]));
    expect(() => tryCreateTimeline()).toThrow("rank 0: expected 1 attention events, as planned; received 0");
    expect(() => tryCreateTimeline(attendEvent(10, 11), sendEvent(10, 11, 9))).toThrow(
      "expected 8 bytes in a batch of ring(sp), as planned; received 9",
    );
    expect(() => tryCreateTimeline(attendEvent(10, 11), sendEvent(10, 11), sendEvent(11, 12))).toThrow(
      "rank 0: expected 1 batches of ring(sp), as planned; received 2",
    );
    expect(() => tryCreateTimeline(attendEvent(10, 11))).toThrow(
      "rank 0: expected 1 batches of ring(sp), as planned; received 0",
    );
    expect(() => tryCreateTimeline(attendEvent(10, 11), sendEvent(10, 11), sendEvent(11, 12, 8, "ring(gpu)"))).toThrow(
      "rank 0: expected 0 batches of ring(gpu), as planned; received 1",
    );
  });
});

describe("overlap", () => {
  it("is the fraction of communication time during which the same rank computes", () => {
    const events = [attendEvent(10, 12), sendEvent(11, 13), attendEvent(12.5, 14)];
    expect(overlapFraction([report(0, events)])).toBeCloseTo(0.75);
    expect(overlapFraction([report(0, events), report(1, [sendEvent(10, 12)])])).toBeCloseTo(1.5 / 4);
  });

  it("counts simultaneous transfers once, and ignores transfers of 0 bytes", () => {
    expect(
      overlapFraction([report(0, [attendEvent(10, 12), sendEvent(10, 12), sendEvent(10, 12), sendEvent(13, 20, 0)])]),
    ).toBeCloseTo(1);
    expect(overlapFraction([report(0, [attendEvent(10, 12)])])).toBeUndefined();
  });
});
