import type { TraceEvent } from "@mosaic/attention/core";
import { describe, expect, it } from "vitest";
import { drawComparison, drawTimeline } from "../src/picture.ts";
import type { Tile } from "../src/rank-schedule.ts";
import type { Lane } from "../src/timeline.ts";

const lanes: readonly Lane[] = [0, 1].map((rank) => ({
  rank,
  computeBlocks: [
    { start: 0, end: 1, queries: [rank], keys: [rank], isBackward: false },
    { start: 1, end: 2, queries: [rank], keys: [1 - rank], isBackward: false },
    { start: 2, end: 4, queries: [rank], keys: [rank], isBackward: true },
  ],
  transfers: [
    {
      start: 0,
      end: 0.25,
      bytes: 12_000_000,
      isBackward: false,
      payloads: [{ name: "K, V", owners: [rank], receiver: 1 - rank, bytes: 12_000_000 }],
    },
  ],
}));
/** Rank 0 computes attention of the queries of both ranks to the keys of both. */
const sharedLanes: readonly Lane[] = [
  { ...lanes[0]!, computeBlocks: [{ start: 0, end: 4, queries: [0, 1], keys: [0, 1], isBackward: false }] },
  lanes[1]!,
];
const caption = {
  title: "Two <ranks> & one ring",
  subtitle: "small",
  shardDescriptions: ["rank 0: 0–9", "rank 1: 10–19"],
  measurements: ["a fact"],
};

/** Returns whether tags are opened and closed in order and attributes are quoted: the subset of XML that is written. */
function isWellFormed(svg: string): boolean {
  const openTags: string[] = [];
  for (const [, closingSlash, name, selfClosingSlash] of svg.matchAll(
    /<(\/?)([a-zA-Z]+)(?:\s+[\w:-]+="[^"<]*")*\s*(\/?)>/g,
  )) {
    if (closingSlash && openTags.pop() !== name) return false;
    if (!closingSlash && !selfClosingSlash) openTags.push(name!);
  }
  return openTags.length === 0 && !/<(?!\/?[a-zA-Z])/.test(svg);
}

describe("drawTimeline", () => {
  const svg = drawTimeline(lanes, caption);

  it("draws a well-formed picture with a title", () => {
    expect(isWellFormed(svg)).toBe(true);
    expect(svg).toContain("<title>Two &lt;ranks&gt; &amp; one ring</title>");
  });

  it("draws a bar for every block, colored by source, and a legend", () => {
    expect(svg.match(/queries of rank \d attend to keys and values of rank \d/g)).toHaveLength(6);
    expect(svg).toContain("queries of rank 1 attend to keys and values of rank 1, backward: 2 s to 4 s");
    expect(svg).toContain("sends 12 MB, K, V of rank 0 to rank 1: 0 s to 250 ms");
    expect(svg).toContain("K, V, 12 MB in 250 ms");
  });

  it("shows the owners of queries that other ranks attend, and all colors of shared blocks", () => {
    const sharedSvg = drawTimeline(sharedLanes, caption);
    const block = /<g><title>queries of all ranks attend to keys and values of all ranks: 0 s to 4 s<.*?<\/g>/.exec(
      sharedSvg,
    )![0];
    expect([...block.matchAll(/fill="(#\w+)"/g)].map(([, color]) => color)).toEqual([
      "#3366cc",
      "#e08214",
      "#3366cc",
      "#e08214",
    ]);
    expect(sharedSvg).toContain("Q, K, V of all ranks");
    expect(sharedSvg).toContain("lower edge: rank that owns the queries");
    expect(svg).not.toContain("lower edge");
  });

  it("labels blocks and transfers with their stages", () => {
    const stagedLanes = lanes.map(({ computeBlocks, transfers, ...lane }) => ({
      ...lane,
      computeBlocks: computeBlocks.map((block, i) => (i === 1 ? { ...block, stage: 2 } : block)),
      transfers: transfers.map((transfer) => ({ ...transfer, stage: 2 })),
    }));
    const stagedSvg = drawTimeline(stagedLanes, caption);
    expect(stagedSvg).toContain(
      "<title>stage 2: queries of rank 0 attend to keys and values of rank 1: 1 s to 2 s</title>",
    );
    expect(stagedSvg).toContain("<title>stage 2: sends 12 MB, K, V of rank 0 to rank 1: 0 s to 250 ms</title>");
    for (const expectedText of [">stage 2: K, V of rank 1<", ">stage 2: K, V, 12 MB in 250 ms<"])
      expect(stagedSvg).toContain(expectedText);
    expect(svg).not.toContain("stage");
  });

  it("shows a legend, the shards and the measurements", () => {
    for (const expectedText of [...caption.shardDescriptions, ...caption.measurements, "rank 1", "computes", "sends"])
      expect(svg).toContain(expectedText);
  });

  it("draws within the frame for any number of ranks", () => {
    for (const ranks of [1, 8, 9, 64]) {
      const manyRanksSvg = drawTimeline(
        Array.from({ length: ranks }, (_, rank) => ({ ...lanes[0]!, rank })),
        {
          ...caption,
          shardDescriptions: Array.from({ length: ranks }, (_, rank) => `rank ${rank}`),
        },
      );
      const [, width, height] = /viewBox="0 0 (\d+) ([\d.]+)"/.exec(manyRanksSvg)!.map(Number) as [
        number,
        number,
        number,
      ];
      for (const [, x, y] of manyRanksSvg.matchAll(/<(?:rect|text) x="([\d.-]+)" y="([\d.-]+)"/g)) {
        expect(Number(x)).toBeGreaterThanOrEqual(0);
        expect(Number(x)).toBeLessThanOrEqual(width);
        expect(Number(y)).toBeLessThanOrEqual(height);
      }
    }
  });
});

describe("drawComparison", () => {
  const event = (name: string, start: number, label?: string): TraceEvent => ({
    lane: label === undefined ? "compute" : "communication",
    name,
    start: start * 1e9,
    end: (start + 1) * 1e9,
    ...(label !== undefined && { label, bytesSent: 1000 }),
  });
  /** Local keys, one stage, and both in the backward, with two kernels for each. */
  const events = [
    event("attend", 0),
    event("fill", 1),
    event("attend", 2),
    ...["attendKeys", "attendQueries"].map((name, i) => event(name, 3 + i)),
    ...["attendKeys", "attendQueries"].map((name, i) => event(name, 5 + i)),
    event("groupCast", 0, "flex(sp) stage 1: keys"),
    event("groupReduce", 7, "flex(sp) stage 1: gradients"),
  ];
  const tile = { queries: [0], keys: [0], isBackward: false };
  const remoteTile = { ...tile, keys: [1], stage: 1 };
  const drawTilesComparison = (tiles: readonly Tile[]): string => {
    const report = { rank: 0, coordinate: { sp: 0 }, spans: [], begin: 0, end: 8, bytesSent: 0, peakBytes: 0, events };
    const predicted = events.map((each) => ({ ...each, start: each.start / 1e9, end: each.end / 1e9 }));
    const prediction = { seconds: 8, ranks: [{ rank: 0, at: { sp: 0 }, events: predicted }] };
    const schedules = [{ rank: 0, tiles, batches: [] }];
    return drawComparison({ bytesSent: 0, schedules, prediction }, [report], caption);
  };
  const findBars = (svg: string): (readonly string[])[] =>
    [...svg.matchAll(/<title>([^<:]*(?:: (?:keys|gradients))?)[^<]*<\/title><rect [^>]*fill="(#\w+)"/g)].map(
      ([, ...bar]) => bar,
    );

  it("labels attention with its stage, in the color of the transfers of that stage", () => {
    const svg = drawTilesComparison([
      tile,
      remoteTile,
      { ...tile, isBackward: true },
      { ...remoteTile, isBackward: true },
    ]);
    const [ownColor, stageColor, otherColor] = ["#d55e00", "#009e73", "#0072b2"];
    const bars = [
      ["attend own rows", ownColor],
      ["other kernels, fill", otherColor],
      ["attend stage 1", stageColor],
      ["attendBackward own rows", ownColor],
      ["attendBackward own rows", ownColor],
      ["attendBackward stage 1", stageColor],
      ["attendBackward stage 1", stageColor],
      ["flex(sp) stage 1: keys", stageColor],
      ["flex(sp) stage 1: gradients", stageColor],
    ];
    expect(findBars(svg)).toEqual([...bars, ...bars]);
    for (const expectedText of [">own rows<", ">stage 1<", ">other kernels<"]) expect(svg).toContain(expectedText);
  });

  it("keeps the kernel names of a backend without stages", () => {
    const { stage: _, ...tileWithoutStage } = remoteTile;
    const svg = drawTilesComparison([
      tile,
      tileWithoutStage,
      { ...tile, isBackward: true },
      { ...tileWithoutStage, isBackward: true },
    ]);
    expect(findBars(svg).map(([name]) => name)).toEqual(expect.arrayContaining(["attend", "attendKeys"]));
    expect(svg).not.toContain("own rows");
  });
});
