import { Resvg } from "@resvg/resvg-js";
import { describe, expect, it } from "vitest";
import { parseSettings } from "../src/settings.ts";
import { formatPage, drawPictures, renderPng } from "../src/draw/results-page.ts";
import type { Comparison, MethodResult, PlantedResult } from "../src/results.ts";

const origin = { date: "2000-01-01", command: "npm run <anything> & more" };
const curve = [1, 2, 3].map((step) => ({
  step,
  loss: 1.4,
  bytes: step * 5e6,
  work: step,
  held: { loss: 1.4 - step / 50 },
}));
const method = (name: string, more: Partial<MethodResult> = {}): MethodResult => ({
  name,
  settings: parseSettings([]),
  seconds: 1,
  curve,
  ...more,
});
const recall = { recall: 0.5, captured: 0.75, chance: 0.25 };
const comparison: Comparison = {
  ...origin,
  methods: [
    method("local", { curve: curve.map((entry) => ({ ...entry, bytes: 0 })) }),
    method("meta 2", { recall }),
    method("ring"),
  ],
  map: { bin: 12_126, bins: 4, weights: [0, 1, 0, 0, 0.5, 0, 0.5, 0, 0.25, 0.25, 0.25, 0.25, 0, 0, 0, 1] },
};
const planted: PlantedResult = {
  ...origin,
  runs: [0, 1].map((seed) => ({
    settings: parseSettings(["--task", "planted", "--seed", String(seed)]),
    seconds: 2,
    curve: curve.map((entry) => ({ ...entry, held: { ...entry.held, recall: entry.step / 4 } })),
    recall: 0.75,
    pairs: 512,
    chance: 2 / 15,
    loss: 1.38,
  })),
};

/** Every tag is closed in its turn, attributes are quoted, and no bare & is left. */
function findMalformedTags(xml: string): readonly string[] {
  const open: string[] = [];
  const faults: string[] = [];
  for (const [tag, closing, name, rest] of xml.matchAll(/<(\/?)([\w-]+)([^>]*)>/g)) {
    if (closing) {
      if (open.pop() !== name) faults.push(tag);
    } else if (!rest!.endsWith("/")) open.push(name!);
    if (!/^(\s+[\w:-]+="[^"<]*")*\s*\/?$/.test(rest!)) faults.push(tag);
  }
  const bare = xml.match(/&(?!(amp|lt|gt|quot|#\d+);)/g) ?? [];
  return [...faults, ...open, ...bare];
}

describe("the pictures", () => {
  const drawn = drawPictures(comparison, planted);

  it.each(["routing", "loss-bytes", "recall"])("%s is well-formed, holds only numbers, and becomes a PNG", (name) => {
    const svg = drawn[name]!;
    expect(findMalformedTags(svg)).toEqual([]);
    expect(svg).not.toMatch(/NaN|Infinity|undefined/);
    const { width, height } = new Resvg(svg);
    const pixels = Buffer.from(renderPng(svg));
    expect(pixels.subarray(0, 8)).toEqual(Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]));
    expect([pixels.readUInt32BE(16), pixels.readUInt32BE(20)]).toEqual([2 * width, 2 * height]);
  });

  it("show genes, methods and recall", () => {
    for (const gene of ["cI", "int", "J", "O"]) expect(drawn["routing"]).toContain(`<title>${gene}: `);
    for (const { name } of comparison.methods) expect(drawn["loss-bytes"]).toContain(`>${name}<`);
    expect(drawn["recall"]).toContain("seed 1: 0.750");
  });

  it("draw each cell of the map once, in the shade of its share", () => {
    const cells = drawn["routing"]!.match(/M\d+ \d+h1v1h-1z/g)!;
    // Shares below an even one are not drawn.
    expect(cells.length).toBe(comparison.map.weights.filter((weight) => weight >= 1 / 4).length);
  });

  it("stand on one page that fetches nothing", () => {
    const html = formatPage(comparison, planted, drawn);
    expect(html).toContain("npm run &lt;anything&gt; &amp; more");
    expect(html.match(/<svg /g)!.length).toBe(3);
    expect(html).not.toMatch(/<(script|link|img|iframe)\b/);
    expect(html.replaceAll('xmlns="http://www.w3.org/2000/svg"', "")).not.toMatch(/https?:/);
  });
});
