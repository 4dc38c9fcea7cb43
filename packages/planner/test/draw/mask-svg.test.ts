import { type Mask, masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { drawMask, type DrawMaskOptions } from "../../src/index.ts";
import { findElements, type Element, parse } from "./xml.ts";

const lengths = [300, 500, 1, 199];

/** Returns the area of all polygons of a picture, in pixels. */
function drawnArea(svg: Element): number {
  const outlines = findElements(svg, "path").flatMap(({ attributes }) =>
    attributes["d"]!.split("Z").filter((d) => d !== ""),
  );
  return outlines.reduce((sum, outline) => {
    const points = outline
      .slice(1)
      .split("L")
      .map((point) => point.split(" ").map(Number) as [number, number]);
    const crossProducts = points.map(([x, y], i) => {
      const [nextX, nextY] = points[(i + 1) % points.length]!;
      return x * nextY - nextX * y;
    });
    return sum + Math.abs(crossProducts.reduce((a, b) => a + b, 0)) / 2;
  }, 0);
}

function planeArea(svg: Element): number {
  const { width, height } = findElements(svg, "rect")[1]!.attributes;
  return Number(width) * Number(height);
}

const trials: [name: string, mask: Mask, options: DrawMaskOptions][] = [
  ["each pair a step", masks.shareQuestion(12, [5, 4, 3]), { queries: 24 }],
  ["rows that see nothing", masks.causal(), { queries: 30, keys: 12 }],
  ["other keys", masks.slidingWindow({ left: 3, right: 2 }), { queries: 12, keys: 30 }],
  ["thousands of pairs a pixel", masks.documents(lengths, masks.slidingWindow(128)), { queries: 1000 }],
  ["a thousand slices and more", masks.blockCausal(8), { queries: 16_384 }],
  ["by shard", masks.documents(lengths, "causal"), { queries: 1000, placement: "zigzag", shards: 4 }],
  ["by strided shard", masks.causal(), { queries: 50, placement: "striped", shards: 4 }],
  ["a long and low one", masks.full(), { queries: 2, keys: 4000 }],
];

test.each(trials)("the polygons cover the same share of the plane as the mask: %s", (_, mask, options) => {
  const { queries, keys = queries } = options;
  const svg = parse(drawMask(mask, options));
  const share = masks.maskArea(mask, queries, keys) / (queries * keys);
  expect(drawnArea(svg) / planeArea(svg)).toBeCloseTo(share, 3);
});

test("each slice is one path, and a very large number of slices shares one path", () => {
  const mask = masks.documents(lengths, masks.slidingWindow(128));
  const svg = parse(drawMask(mask, { queries: 1000 }));
  expect(findElements(svg, "path")).toHaveLength(mask.slices(1000, 1000).length);
  const manySlicesSvg = parse(drawMask(masks.blockCausal(8), { queries: 16_384 }));
  expect(findElements(manySlicesSvg, "path")).toHaveLength(1);
});

test("the picture shows the name, the area, positions on both axes and a legend", () => {
  const svg = parse(drawMask(masks.prefix(100), { queries: 1000, keys: 1500 }));
  expect(svg.children[0]!.text).toBe("prefix(100)");
  const texts = findElements(svg, "text").map(({ text }) => text);
  const area = masks.maskArea(masks.prefix(100), 1000, 1500);
  expect(texts[1]).toBe(`${area.toLocaleString("en-US")} visible pairs, 66.7 % of 1,000 × 1,500`);
  expect(texts.slice(2)).toEqual(expect.arrayContaining(["0", "500", "1,000", "1,500", "keys →", "queries ↓"]));
  expect(texts.slice(-2)).toEqual(["full: 1 slice", "causal: 1 slice"]);
});

test("rows of at least four pixels are drawn as steps, and positions of short sequences are whole numbers", () => {
  const countCorners = (queries: number) =>
    findElements(parse(drawMask(masks.causal(), { queries })), "path")[0]!.attributes["d"]!.split("L").length;
  expect(countCorners(160)).toBe(2 * 160 + 2);
  expect(countCorners(161)).toBe(4);
  const svg = parse(drawMask(masks.full(), { queries: 3, title: "", subtitle: "" }));
  const positions = findElements(svg, "text").filter(({ text }) => /^[\d.]+$/.test(text));
  expect(positions.map(({ text }) => text)).toEqual(["0", "1", "2", "3", "0", "1", "2", "3"]);
});

test("the title and the subtitle can be set", () => {
  const texts = findElements(
    parse(drawMask(masks.full(), { queries: 4, title: "<All>", subtitle: "of four" })),
    "text",
  );
  expect(texts[0]!.text).toBe("<All>");
  expect(texts[1]!.text).toBe("of four · 16 visible pairs, 100 % of 4 × 4");
});

test("each shard has its own color, and its pairs are compared with the mean", () => {
  const svg = parse(drawMask(masks.causal(), { queries: 400, placement: "contiguous", shards: 4 }));
  const texts = findElements(svg, "text").map(({ text }) => text);
  const loads = ["0.25", "0.75", "1.25", "1.75"];
  expect(texts.slice(-4)).toEqual(loads.map((load, i) => `shard ${i}: ${load} × the mean`));
  expect(new Set(findElements(svg, "path").map(({ attributes }) => attributes["fill"])).size).toBe(4);
  const tooltips = findElements(svg, "title").map(({ text }) => text);
  expect(tooltips).toContain("queries 300 to 399, keys 0 to 399: shard 3, causal");
  const emptySvg = drawMask(masks.fromSlices([]), { queries: 4, placement: "contiguous", shards: 2 });
  expect(parse(emptySvg).text).toContain("shard 1: no pairs");
});

test("of many shards, the first are in the legend, which ends above the end of the page", () => {
  const svg = parse(drawMask(masks.causal(), { queries: 4000, keys: 40_000, placement: "contiguous", shards: 40 }));
  const texts = findElements(svg, "text").filter(({ text }) => /^shard|^and/.test(text));
  expect(texts).toHaveLength(29);
  expect(texts.at(-1)!.text).toBe("and 12 more");
  expect(Number(svg.attributes["height"]) - Number(texts.at(-1)!.attributes["y"])).toBeGreaterThan(36);
});

test("very many slices have strokes to close their seams only if they have one color", () => {
  const mask = masks.documents(Array<number>(2000).fill(1));
  const listStrokes = (options: DrawMaskOptions) =>
    findElements(parse(drawMask(mask, options)), "path").map(({ attributes }) => attributes["stroke"] !== undefined);
  expect(listStrokes({ queries: 2000 })).toEqual([true]);
  expect(listStrokes({ queries: 2000, placement: "contiguous", shards: 2 })).toEqual([false, false]);
});

test("the picture of a thousand documents and a million tokens has less than 200 kB", () => {
  const sizes = Array.from({ length: 1000 }, (_, i) => 1 + ((i * 7919) % 2000));
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const svg = drawMask(masks.documents(sizes, masks.slidingWindow(512)), { queries: total });
  parse(svg);
  expect(svg.length).toBeLessThan(200_000);
});

test("drawMask rejects invalid arguments and names the fault", () => {
  const mask = masks.causal();
  expect(() => drawMask("causal" as never, { queries: 4 })).toThrow(/drawMask: expected a Mask, .* received "causal"/);
  expect(() => drawMask(mask, {} as never)).toThrow(/drawMask: queries: expected an integer ≥ 1/);
  expect(() => drawMask(mask, { queries: 4, shards: 2 })).toThrow(/expected placement beside shards, received shards/);
  expect(() => drawMask(mask, { queries: 4, placement: "zigzag" })).toThrow(/expected shards beside placement/);
  expect(() => drawMask(masks.documents([3]), { queries: 4 })).toThrow(
    /documents\(1, full\): expected a sequence of length 3/,
  );
  expect(() => drawMask(mask, { queries: 2 ** 20, placement: "striped", shards: 2 })).toThrow(
    /drawMask: expected at most 200,000 shapes, received 1,048,576; draw fewer queries/,
  );
  const documents = masks.documents(Array<number>(200_001).fill(1));
  for (const options of [{}, { placement: "contiguous", shards: 1 }] as const) {
    expect(() => drawMask(documents, { queries: 200_001, ...options })).toThrow(
      /drawMask: expected at most 200,000 shapes, received 200,001; draw fewer queries/,
    );
  }
});
