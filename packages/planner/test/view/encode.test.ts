import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { predict, profiles, record, simulate, timeBreakdown, viewerHtml } from "../../src/index.ts";
import { tileMap } from "../../src/draw/tile-map-svg.ts";
import type { ViewerData } from "../../src/view/data.ts";
import { encodeMemory, encodeRun } from "../../src/view/encode.ts";
import { encodeLinks } from "../../src/view/links.ts";
import { encodeLoad } from "../../src/view/load.ts";
import { encodeTiles } from "../../src/view/tiles.ts";
import { decodeRun, Kinds, listEvents } from "../../viewer/model.ts";
import { decodeTiles } from "../../viewer/tile-layers.ts";

const call = { tokens: 1024, numHeads: 4, headDim: 16, mask: masks.causal(), placement: "zigzag" } as const;
const profile = profiles["h100-ib400"];

test("decoded events equal the encoded events to within 2 ns", () => {
  const { simulation } = predict({ backend: ring(), mesh: { dp: 2, sp: 3 }, ...call }, profile);
  const kinds = new Kinds();
  const run = decodeRun(encodeRun("predicted", simulation, 1e6), kinds);
  expect(run.events).toBe(simulation.ranks.reduce((sum, { events }) => sum + events.length, 0));
  for (const [i, { rank, at, events }] of simulation.ranks.entries()) {
    const decoded = run.ranks[i]!;
    expect([decoded.rank, decoded.at]).toEqual([rank, at]);
    expect(listEvents(decoded.events, kinds).map(({ name, label }) => [name, label])).toEqual(
      events.map(({ name, label }) => [name, label]),
    );
    for (const [j, event] of events.entries()) {
      expect(Math.abs(decoded.events.start[j]! - event.start)).toBeLessThan(1e-9);
      expect(Math.abs(decoded.events.end[j]! - event.end)).toBeLessThan(2e-9);
      expect(decoded.events.sent[j]).toBe(event.bytesSent ?? 0);
    }
  }
});

test("merged events preserve busy time, bytes and the time breakdown of each rank", () => {
  const { simulation } = predict({ backend: ring(), mesh: { sp: 8 }, ...call }, profile);
  const kinds = new Kinds();
  const data = encodeRun("", simulation, 160);
  const run = decodeRun(data, kinds);
  const numDrawn = run.ranks.reduce((sum, { events }) => sum + events.count, 0);
  expect(run.events).toBeGreaterThan(400);
  expect(numDrawn).toBeLessThanOrEqual(160);
  for (const [i, { events }] of simulation.ranks.entries()) {
    const decoded = run.ranks[i]!.events;
    for (const lane of ["compute", "communication"] as const) {
      const busySeconds = events
        .filter((event) => event.lane === lane)
        .reduce((sum, { start, end }) => sum + end - start, 0);
      const laneEvents = [...decoded.kind.keys()].filter((j) => kinds.allKinds[decoded.kind[j]!]!.lane === lane);
      const keptSeconds = laneEvents.reduce(
        (sum, j) => sum + (decoded.end[j]! - decoded.start[j]!) * decoded.share[j]!,
        0,
      );
      expect(Math.abs(keptSeconds - busySeconds)).toBeLessThan(0.005 * simulation.seconds);
    }
    expect(decoded.merged.reduce((sum, count) => sum + count, 0)).toBe(events.length);
    const sent = events.reduce((sum, { bytesSent = 0 }) => sum + bytesSent, 0);
    expect(decoded.sent.reduce((sum, bytes) => sum + bytes, 0)).toBe(sent);
  }
  const { computing, waiting } = timeBreakdown(simulation);
  const spent = run.ranks.map((rank) => [rank.computing, rank.waiting] as const);
  const totalRankSeconds = simulation.seconds * 8;
  expect(spent.reduce((sum, [own]) => sum + own, 0) / totalRankSeconds).toBeCloseTo(computing, 9);
  expect(spent.reduce((sum, [, own]) => sum + own, 0) / totalRankSeconds).toBeCloseTo(waiting, 9);
});

test("memory over time reaches the record's peak and is kept only for selected ranks", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 4 }, ...call });
  const { ranks } = simulate(attentionRecord, profile);
  for (const [i, { memory, seconds }] of ranks.entries()) {
    expect(Math.max(...memory!.map(({ bytes }) => bytes))).toBe(attentionRecord.ranks[i]!.peakBytes);
    expect(memory!.every(({ time }, j) => time >= (memory![j - 1]?.time ?? 0) && time <= seconds)).toBe(true);
    expect(memory!.some(({ bytes }) => bytes < 0)).toBe(false);
  }
  expect(
    simulate(attentionRecord, profile, { keep: (rank) => rank === 1 }).ranks.map(({ memory }) => memory !== undefined),
  ).toEqual([false, true, false, false]);
});

test("of too many samples of memory, the peak of each interval and the last sample are kept", () => {
  const createSamples = (seconds: number) =>
    Array.from({ length: 1000 }, (_, i) => ({ time: (seconds * i) / 999, bytes: i === 500 ? 1000 : i % 7 }));
  const samples = createSamples(1);
  expect(encodeMemory(samples, 1000).bytes).toEqual(samples.map(({ bytes }) => bytes));
  const { time, bytes } = encodeMemory(samples, 100);
  expect(time).toHaveLength(101);
  expect(bytes.filter((each) => each === 6 || each === 1000)).toHaveLength(100);
  expect(bytes.filter((each) => each === 1000)).toHaveLength(1);
  expect([time.reduce((sum, each) => sum + each, 0), bytes.at(-1)]).toEqual([1e9, 999 % 7]);
  // All samples at one time are one interval.
  expect(encodeMemory(createSamples(0), 100).bytes).toEqual([1000, 999 % 7]);
});

test("encoded tiles have the ranks of the tile map, and a rank's own tiles have step 0", () => {
  for (const backend of [ring(), ulysses()]) {
    const attentionRecord = record({ backend, mesh: { sp: 4 }, ...call });
    const data = encodeTiles(attentionRecord);
    const map = tileMap(attentionRecord);
    const layers = decodeTiles(data);
    expect([data.queries.length, data.keys.length]).toEqual([map.queries.length, map.keys.length]);
    for (const query of map.queries.keys()) {
      for (const key of map.keys.keys()) {
        const cell = query * map.keys.length + key;
        const ranks = layers.map(({ rank }) => rank[cell]!).filter((rank) => rank >= 0);
        expect(ranks).toEqual(map.computingRanks(query, key));
      }
    }
  }
  const ringTiles = encodeTiles(record({ backend: ring(), mesh: { sp: 4 }, ...call }));
  expect(ringTiles.steps).toBe(4);
  // A rank's own keys come first. There are seven spans, because the two of the last rank are joined.
  const [layer] = decodeTiles(ringTiles);
  expect(Array.from({ length: 7 }, (_, i) => layer!.step[i * 7 + i])).toEqual([0, 0, 0, 0, 0, 0, 0]);
});

test("spans beyond the limit are sampled, and every visible cell still has a rank", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 12 }, ...call });
  expect(encodeTiles(attentionRecord).queries.length).toBe(23);
  const data = encodeTiles(attentionRecord, 16);
  expect(data.queries.length).toBe(16);
  const [layer] = decodeTiles(data);
  for (let row = 0; row < 16; row++) {
    for (let column = 0; column < 16; column++) expect(layer!.rank[row * 16 + column]! >= 0).toBe(column <= row);
  }
});

test("links have the bytes that ranks send, between ranks or between nodes", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 4 }, ...call });
  const { links, nodes, between } = encodeLinks(attentionRecord, 2);
  expect([nodes, between]).toEqual([[0, 0, 1, 1], "ranks"]);
  expect(links.map(({ from, to }) => (from + 1) % 4 === to || (to + 1) % 4 === from)).not.toContain(false);
  const { simulation } = predict({ backend: ring(), mesh: { sp: 4 }, ...call }, profile);
  for (const { rank, events } of simulation.ranks) {
    const sent = events.reduce((sum, { bytesSent = 0 }) => sum + bytesSent, 0);
    expect(links.filter(({ from }) => from === rank).reduce((sum, { bytes }) => sum + bytes, 0)).toBe(sent);
  }
  const nodeLinks = encodeLinks(attentionRecord, 2, 3);
  const sumBytes = (from: number, to: number): number =>
    links
      .filter((link) => nodes[link.from] === from && nodes[link.to] === to)
      .reduce((sum, { bytes }) => sum + bytes, 0);
  expect(nodeLinks.between).toBe("nodes");
  expect(nodeLinks.links.map(({ from, to, bytes }) => bytes === sumBytes(from, to))).toEqual([true, true, true, true]);
});

test("a link between nodes has the bytes of all their ranks, and the bytes that ranks keep are on no link", () => {
  const attentionRecord = record({ backend: ulysses(), mesh: { sp: 4 }, ...call });
  const { links } = encodeLinks(attentionRecord, 2);
  expect(links.filter(({ from, to }) => from === to)).toEqual([]);
  const total = links.reduce((sum, { bytes }) => sum + bytes, 0);
  const { links: nodeLinks, between } = encodeLinks(attentionRecord, 2, 11);
  expect([between, encodeLinks(attentionRecord, 2, 12).between]).toEqual(["nodes", "ranks"]);
  expect(nodeLinks.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(total);
});

test("load and tiles are those of the first of several sequences", () => {
  const attentionRecord = record({ backend: ring(), mesh: { dp: 2, sp: 2 }, ...call });
  const load = encodeLoad(attentionRecord)!;
  expect([load.mask, load.ranks]).toEqual(["causal", [0, 1]]);
  const [layer] = decodeTiles(encodeTiles(attentionRecord));
  expect(new Set(layer!.rank)).toEqual(new Set([-1, 0, 1]));
  expect(decodeTiles(encodeTiles(attentionRecord))).toHaveLength(1);
});

test("links between hosts have their numbers, which may exceed the number of ranks", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 4 }, ...call, hosts: [7, 7, 9, 9] });
  const { links, nodes, between } = encodeLinks(attentionRecord, undefined, 3);
  expect([nodes, between]).toEqual([[7, 7, 9, 9], "nodes"]);
  expect(new Set(links.map(({ from, to }) => `${from} ${to}`))).toEqual(new Set(["7 7", "7 9", "9 7", "9 9"]));
});

test("load is the number of visible pairs of each rank's queries", () => {
  const attentionRecord = record({ backend: ring(), mesh: { sp: 4 }, ...call, placement: "contiguous" });
  const countPairs = (rank: number): number => 256 * 256 * rank + (256 * 257) / 2;
  expect(encodeLoad(attentionRecord)!.pairs).toEqual([0, 1, 2, 3].map(countPairs));
  expect(
    encodeLoad(record({ backend: ring(), mesh: { sp: 2 }, ...call, tokens: 400_000, placement: "striped" })),
  ).toBeUndefined();
});

test("viewerHtml embeds its data in a script that no text can end", () => {
  const { simulation, record: attentionRecord } = predict({ backend: ring(), mesh: { sp: 2 }, ...call }, profile);
  const page = viewerHtml(simulation, { title: "a </script><b> & c", record: attentionRecord, ranksPerNode: 8 });
  const [, text = ""] = /<script type="application\/json" class="viewer-data">(.*?)<\/script>/s.exec(page) ?? [];
  const data = JSON.parse(text) as ViewerData;
  expect(data.title).toBe("a </script><b> & c");
  expect(Object.keys(data).toSorted()).toEqual([
    "facts",
    "format",
    "links",
    "load",
    "runs",
    "subtitle",
    "tiles",
    "title",
  ]);
  expect(page).toContain("<title>a &lt;/script&gt;&lt;b&gt; &amp; c</title>");
  expect(page.match(/<script/g)?.length).toBe(2);
  expect(page).not.toMatch(/(src|href)="(?!#)/);
  expect(() => viewerHtml(simulation, { record: {} as never })).toThrow(/viewerHtml: expected a record/);
  expect(() => viewerHtml({} as never)).toThrow(/viewerHtml: expected a timeline/);
});
