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
const createMethod = (name: string, overrides: Partial<MethodResult> = {}): MethodResult => ({
  name,
  settings: parseSettings([]),
  seconds: 1,
  curve,
  ...overrides,
});
const recall = { recall: 0.5, captured: 0.75, chance: 0.25 };
const comparison: Comparison = {
  ...origin,
  methods: [
    createMethod("local", { curve: curve.map((point) => ({ ...point, bytes: 0 })) }),
    createMethod("meta 2", { recall }),
    createMethod("ring"),
  ],
  map: { bin: 12_126, bins: 4, weights: [0, 1, 0, 0, 0.5, 0, 0.5, 0, 0.25, 0.25, 0.25, 0.25, 0, 0, 0, 1] },
};
const planted: PlantedResult = {
  ...origin,
  runs: [0, 1].map((seed) => ({
    settings: parseSettings(["--task", "planted", "--seed", String(seed)]),
    seconds: 2,
    curve: curve.map((point) => ({ ...point, held: { ...point.held, recall: point.step / 4 } })),
    recall: 0.75,
    pairs: 512,
    chance: 2 / 15,
    loss: 1.38,
  })),
};

/** Finds tags that are not closed in order, unquoted attributes and unescaped &. */
function findMalformedTags(xml: string): readonly string[] {
  const openTags: string[] = [];
  const malformedTags: string[] = [];
  for (const [tag, closingSlash, name, attributes] of xml.matchAll(/<(\/?)([\w-]+)([^>]*)>/g)) {
    if (closingSlash) {
      if (openTags.pop() !== name) malformedTags.push(tag);
    } else if (!attributes!.endsWith("/")) openTags.push(name!);
    if (!/^(\s+[\w:-]+="[^"<]*")*\s*\/?$/.test(attributes!)) malformedTags.push(tag);
  }
  const bareAmpersands = xml.match(/&(?!(amp|lt|gt|quot|#\d+);)/g) ?? [];
  return [...malformedTags, ...openTags, ...bareAmpersands];
}

describe("pictures", () => {
  const pictures = drawPictures(comparison, planted);

  it.each(["routing", "loss-bytes", "recall"])(
    "%s is well-formed, contains only valid numbers, and renders to a PNG",
    (name) => {
      const svg = pictures[name]!;
      expect(findMalformedTags(svg)).toEqual([]);
      expect(svg).not.toMatch(/NaN|Infinity|undefined/);
      const { width, height } = new Resvg(svg);
      const pixels = Buffer.from(renderPng(svg));
      expect(pixels.subarray(0, 8)).toEqual(Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]));
      expect([pixels.readUInt32BE(16), pixels.readUInt32BE(20)]).toEqual([2 * width, 2 * height]);
    },
  );

  it("show genes, methods and recall", () => {
    for (const gene of ["cI", "int", "J", "O"]) expect(pictures["routing"]).toContain(`<title>${gene}: `);
    for (const { name } of comparison.methods) expect(pictures["loss-bytes"]).toContain(`>${name}<`);
    expect(pictures["recall"]).toContain("seed 1: 0.750");
  });

  it("draw each cell of the map with at least uniform weight once", () => {
    const cells = pictures["routing"]!.match(/M\d+ \d+h1v1h-1z/g)!;
    // Weights below a uniform one are not drawn.
    expect(cells.length).toBe(comparison.map.weights.filter((weight) => weight >= 1 / 4).length);
  });

  it("are embedded in one page that loads no external resources", () => {
    const html = formatPage(comparison, planted, pictures);
    expect(html).toContain("npm run &lt;anything&gt; &amp; more");
    expect(html.match(/<svg /g)!.length).toBe(3);
    expect(html).not.toMatch(/<(script|link|img|iframe)\b/);
    expect(html.replaceAll('xmlns="http://www.w3.org/2000/svg"', "")).not.toMatch(/https?:/);
  });
});
