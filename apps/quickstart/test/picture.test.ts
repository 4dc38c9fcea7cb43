import { describe, expect, it } from "vitest";
import { drawTimeline } from "../src/picture.ts";
import type { Lane } from "../src/timeline.ts";

const lanes: readonly Lane[] = [0, 1].map((rank) => ({
  rank,
  compute: [
    { start: 0, end: 1, queries: [rank], keys: [rank], backward: false },
    { start: 1, end: 2, queries: [rank], keys: [1 - rank], backward: false },
    { start: 2, end: 4, queries: [rank], keys: [rank], backward: true },
  ],
  communication: [
    {
      start: 0,
      end: 0.25,
      bytes: 12_000_000,
      backward: false,
      payloads: [{ name: "K, V", owners: [rank], to: 1 - rank, bytes: 12_000_000 }],
    },
  ],
}));
/** Rank 0 attends with the queries of both to the keys of both. */
const shared: readonly Lane[] = [
  { ...lanes[0]!, compute: [{ start: 0, end: 4, queries: [0, 1], keys: [0, 1], backward: false }] },
  lanes[1]!,
];
const caption = {
  title: "Two <ranks> & one ring",
  subtitle: "small",
  shardDescription: ["rank 0: 0–9", "rank 1: 10–19"],
  measurements: ["a fact"],
};

/** Tags opened and closed in order, attributes quoted: enough of XML for what we write. */
function isWellFormed(svg: string): boolean {
  const open: string[] = [];
  for (const [, close, name, empty] of svg.matchAll(/<(\/?)([a-zA-Z]+)(?:\s+[\w:-]+="[^"<]*")*\s*(\/?)>/g)) {
    if (close && open.pop() !== name) return false;
    if (!close && !empty) open.push(name!);
  }
  return open.length === 0 && !/<(?!\/?[a-zA-Z])/.test(svg);
}

describe("the picture", () => {
  const svg = drawTimeline(lanes, caption);

  it("is well-formed and has a title", () => {
    expect(isWellFormed(svg)).toBe(true);
    expect(svg).toContain("<title>Two &lt;ranks&gt; &amp; one ring</title>");
  });

  it("has a bar for every block, coloured by source, with a legend", () => {
    expect(svg.match(/queries of rank \d attend to keys and values of rank \d/g)).toHaveLength(6);
    expect(svg).toContain("queries of rank 1 attend to keys and values of rank 1, backward: 2 s to 4 s");
    expect(svg).toContain("sends 12 MB, K, V of rank 0 to rank 1: 0 s to 250 ms");
    expect(svg).toContain("K, V, 12 MB in 250 ms");
  });

  it("shows whose queries attend where ranks attend for others, and all colours of shared blocks", () => {
    const both = drawTimeline(shared, caption);
    const block = /<g><title>queries of all ranks attend to keys and values of all ranks: 0 s to 4 s<.*?<\/g>/.exec(
      both,
    )![0];
    expect([...block.matchAll(/fill="(#\w+)"/g)].map(([, colour]) => colour)).toEqual([
      "#3366cc",
      "#e08214",
      "#3366cc",
      "#e08214",
    ]);
    expect(both).toContain("Q, K, V of all ranks");
    expect(both).toContain("along the lower edge whose queries attend");
    expect(svg).not.toContain("lower edge");
  });

  it("explains its colours and shows the facts", () => {
    for (const words of [...caption.shardDescription, ...caption.measurements, "rank 1", "computes", "sends"])
      expect(svg).toContain(words);
  });

  it("stays within its frame, whatever the number of ranks", () => {
    for (const ranks of [1, 8, 9, 64]) {
      const many = drawTimeline(
        Array.from({ length: ranks }, (_, rank) => ({ ...lanes[0]!, rank })),
        {
          ...caption,
          shardDescription: Array.from({ length: ranks }, (_, rank) => `rank ${rank}`),
        },
      );
      const [, width, height] = /viewBox="0 0 (\d+) ([\d.]+)"/.exec(many)!.map(Number) as [number, number, number];
      for (const [, x, y] of many.matchAll(/<(?:rect|text) x="([\d.-]+)" y="([\d.-]+)"/g)) {
        expect(Number(x)).toBeGreaterThanOrEqual(0);
        expect(Number(x)).toBeLessThanOrEqual(width);
        expect(Number(y)).toBeLessThanOrEqual(height);
      }
    }
  });
});
