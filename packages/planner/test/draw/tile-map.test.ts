import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, contiguous, type Coordinate, masks, striped, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { record, recordRepresentatives, tileMapSvg } from "../../src/index.ts";
import { tileMap } from "../../src/draw/tile-map-svg.ts";
import { findElements, parse } from "./xml.ts";

const sizes = { tokens: 64, numHeads: 4, headDim: 8 };

function recordBackend(backend: AttentionBackend, mesh: Coordinate, placement = zigzag()) {
  return record({ backend, mesh, placement, mask: masks.causal(), ...sizes });
}

test.each([
  ["ring", ring(), { sp: 4 }],
  ["mesh2d", mesh2d({ shape: [2, 2], schedule: "fused" }), { sp: 4 }],
  ["mesh2d, overlapped", mesh2d({ shape: [2, 4], schedule: "overlapped" }), { sp: 8 }],
] as const)("%s: exactly one rank computes each visible tile, and no rank computes the others", (_, backend, mesh) => {
  for (const placement of [contiguous(), zigzag()]) {
    const map = tileMap(recordBackend(backend, mesh, placement));
    for (const [i, query] of map.queries.entries()) {
      for (const [j, key] of map.keys.entries()) {
        expect(map.computingRanks(i, j), `${placement.name} ${i} ${j}`).toHaveLength(
          key.start < query.start + query.length ? 1 : 0,
        );
      }
    }
  }
});

test("each rank of a ring computes the rows of its own queries", () => {
  const map = tileMap(recordBackend(ring(), { sp: 4 }, contiguous()));
  expect(map.queries.map(({ start }) => start)).toEqual([0, 16, 32, 48]);
  expect(map.keys.map((_, key) => map.computingRanks(3, key))).toEqual([[3], [3], [3], [3]]);
  expect(map.keys.map((_, key) => map.computingRanks(1, key))).toEqual([[1], [1], [], []]);
});

test("with ulysses, a tile is computed by one rank per share of the heads", () => {
  const backend = ulysses({ axis: "head", inner: ring({ axis: "seq" }) });
  const attentionRecord = recordBackend(backend, { seq: 2, head: 2 });
  const map = tileMap(attentionRecord);
  const last = map.queries.length - 1;
  expect(map.computingRanks(last, 0)).toHaveLength(2);
  const svg = tileMapSvg(attentionRecord);
  parse(svg);
  expect(svg).toContain("each for its share of the heads");
});

test("striped spans are sorted by their first rows, and ranks with other sequences are omitted", () => {
  const map = tileMap(recordBackend(mesh2d({ shape: [2, 2] }), { dp: 2, sp: 4 }, striped()));
  expect(map.queries.map(({ start, step }) => [start, step])).toEqual([
    [0, 4],
    [1, 4],
    [2, 4],
    [3, 4],
  ]);
  const ranks = map.queries.flatMap((_, query) => map.keys.flatMap((__, key) => map.computingRanks(query, key)));
  expect(new Set(ranks)).toEqual(new Set([0, 1, 2, 3]));
});

test("the picture has a cell for each run of tiles and a legend with the number of tiles per rank", () => {
  const attentionRecord = recordBackend(mesh2d({ shape: [2, 2] }), { sp: 4 });
  const map = tileMap(attentionRecord);
  const svg = parse(tileMapSvg(attentionRecord, { title: "Tiles", subtitle: "of four" }));
  expect(svg.children[0]!.text).toBe("Tiles");
  const legend = findElements(svg, "text").filter(({ text }) => /^rank \d \(sp \d\): \d+ tiles$/.test(text));
  expect(legend).toHaveLength(4);
  const numCountedTiles = legend.reduce((sum, { text }) => sum + Number(/: (\d+)/.exec(text)![1]), 0);
  const tiles = map.queries.flatMap((_, query) =>
    map.keys.filter((__, key) => map.computingRanks(query, key).length > 0),
  );
  expect(numCountedTiles).toBe(tiles.length);
  const cells = findElements(svg, "title").filter(({ text }) => text.includes("computed by rank"));
  expect(cells.length).toBeGreaterThan(10);
  expect(cells.length).toBeLessThanOrEqual(tiles.length);
});

test("of many ranks, eight are colored and the others are gray", () => {
  const attentionRecord = record({
    backend: ring(),
    mesh: { sp: 64 },
    tokens: 640,
    numHeads: 1,
    headDim: 8,
    mask: masks.documents([320, 320]),
  });
  const svg = parse(tileMapSvg(attentionRecord));
  const legend = findElements(svg, "text").map(({ text }) => text);
  expect(legend.filter((text) => /^rank \d+ \(/.test(text))).toHaveLength(8);
  expect(legend).toContain("56 other ranks");
  const selectedSvg = parse(tileMapSvg(attentionRecord, { ranks: [7] }));
  expect(findElements(selectedSvg, "title").filter(({ text }) => text.includes("computed by rank"))).toHaveLength(1);
});

test("the legend has a line for every selected rank, within the picture", () => {
  const attentionRecord = recordBackend(ring(), { sp: 32 }, contiguous());
  const svg = parse(tileMapSvg(attentionRecord, { ranks: Array.from({ length: 32 }, (_, rank) => rank) }));
  const lines = findElements(svg, "text").filter(({ text }) => /^rank \d+ \(/.test(text));
  expect(lines).toHaveLength(32);
  for (const { attributes } of lines) expect(Number(attributes["y"])).toBeLessThan(Number(svg.attributes["height"]));
  expect(() => tileMapSvg(attentionRecord, { rank: [1] } as object)).toThrow(/tileMapSvg: expected options/);
});

test("tileMapSvg rejects a record of representatives", () => {
  const representatives = recordRepresentatives({ backend: ring(), mesh: { sp: 8 }, ...sizes });
  expect(() => tileMapSvg(representatives)).toThrow(
    "tileMapSvg: expected a record of every rank, received a record of 1 of 8 ranks, one of each class; " +
      "call record() with a mesh of at most 1024 ranks",
  );
});
