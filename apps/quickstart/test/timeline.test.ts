import type { TraceEvent } from "@mosaic/attention/core";
import { describe, expect, it } from "vitest";
import type { RankReport } from "../src/job.ts";
import type { MessageBatch, RankSchedule, Tile } from "../src/rank-schedule.ts";
import { overlapFraction, createTimeline } from "../src/timeline.ts";

const second = 1e9;
const attend = (start: number, end: number, name = "attend"): TraceEvent => ({
  lane: "compute",
  name,
  start: start * second,
  end: end * second,
});
const send = (start: number, end: number, bytesSent = 8, label = "ring(sp)"): TraceEvent => ({
  lane: "communication",
  name: "sendRecv",
  label,
  start: start * second,
  end: end * second,
  bytesSent,
});
const report = (rank: number, events: readonly TraceEvent[]): RankReport => ({
  rank,
  at: { sp: rank },
  spans: [],
  begin: 10,
  end: 20,
  bytesSent: 0,
  peakBytes: 0,
  events,
});
const tile = (keys: number, backward = false): Tile => ({ queries: [0], keys: [keys], backward });
const sending = (of: number, bytes = 8, label = "ring(sp)"): MessageBatch => ({
  label,
  bytes,
  backward: false,
  payloads: [{ name: "K, V", owners: [of], to: 1, bytes }],
});
const script = (tiles: readonly Tile[], batches: readonly MessageBatch[] = []): readonly RankSchedule[] => [
  { rank: 0, tiles, batches },
];

describe("the timeline", () => {
  it("counts from the first beginning and joins the heads of a block", () => {
    const events = [attend(10, 11), attend(11, 12), attend(12, 14), attend(14, 15, "attendBackward")];
    const [lane] = createTimeline([report(0, events)], script([tile(0), tile(0), tile(1), tile(1, true)]));
    expect(lane?.compute).toEqual([
      { start: 0, end: 2, queries: [0], keys: [0], backward: false },
      { start: 2, end: 4, queries: [0], keys: [1], backward: false },
      { start: 4, end: 5, queries: [0], keys: [1], backward: true },
    ]);
  });

  it("takes for one piece of backward what a device does in several kernels", () => {
    const names = ["attend_bf16", "attendKeys_bf16", "attendQueries_bf16", "attendKeys_bf16", "attendQueries_bf16"];
    const events = names.map((name, i) => attend(10 + i, 11 + i, name));
    const [lane] = createTimeline([report(0, events)], script([tile(0), tile(0, true), tile(1, true)]));
    expect(lane?.compute.map(({ start, end, keys }) => [start, end, ...keys])).toEqual([
      [0, 1, 0],
      [1, 3, 0],
      [3, 5, 1],
    ]);
    expect(() =>
      createTimeline([report(0, events)], script([tile(0), tile(0, true), tile(1, true), tile(2, true)])),
    ).toThrow(/expected 4 attention events, as planned; received 5/);
  });

  it("reports what a batch of messages takes, however those of several senders mix", () => {
    const events = [send(10, 11, 8, "ring(gpu)"), send(11, 12), send(12, 13, 4, "ring(gpu)"), send(13, 14, 0)];
    const [lane] = createTimeline(
      [report(0, events)],
      script([], [sending(5), sending(6, 8, "ring(gpu)"), sending(7, 4, "ring(gpu)")]),
    );
    expect(lane?.communication.map(({ start, payloads }) => [start, payloads[0]?.owners])).toEqual([
      [0, [6]],
      [1, [5]],
      [2, [7]],
    ]);
  });

  it("rejects a rank that did not do what its script states", () => {
    const done = (...events: readonly TraceEvent[]) =>
      createTimeline([report(0, events)], script([tile(0)], [sending(0)]));
    expect(() => done()).toThrow("rank 0: expected 1 attention events, as planned; received 0");
    expect(() => done(attend(10, 11), send(10, 11, 9))).toThrow(
      "expected 8 bytes in a batch of ring(sp), as planned; received 9",
    );
    expect(() => done(attend(10, 11), send(10, 11), send(11, 12))).toThrow(
      "expected undefined bytes in a batch of ring(sp), as planned; received 8",
    );
  });
});

describe("overlap", () => {
  it("is the share of communication under which the same rank computes", () => {
    const events = [attend(10, 12), send(11, 13), attend(12.5, 14)];
    expect(overlapFraction([report(0, events)])).toBeCloseTo(0.75);
    expect(overlapFraction([report(0, events), report(1, [send(10, 12)])])).toBeCloseTo(1.5 / 4);
  });

  it("counts no moment twice, and nothing that sends nothing", () => {
    expect(overlapFraction([report(0, [attend(10, 12), send(10, 12), send(10, 12), send(13, 20, 0)])])).toBeCloseTo(1);
    expect(overlapFraction([report(0, [attend(10, 12)])])).toBeUndefined();
  });
});
