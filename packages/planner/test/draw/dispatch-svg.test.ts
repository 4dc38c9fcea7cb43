import { crossDispatch, dispatch, evaluateDispatch } from "@mosaic/backend-flex";
import { type Mask, masks, type Placement, type PlacementName } from "@mosaic/core";
import { expect, test } from "vitest";
import { drawDispatch, type DrawDispatchOptions } from "../../src/index.ts";
import { findElements, type Element, parse } from "./xml.ts";

const lengths = [300, 500, 1, 199];
const packedMask = masks.documents(lengths, "causal");

const listTexts = (svg: Element): readonly string[] => findElements(svg, "text").map(({ text }) => text);

/** Returns the matches in the tooltips of each column, before and after. */
function matchTooltips(svg: Element, pattern: RegExp): readonly (readonly string[])[][] {
  const columns: (readonly string[])[][] = [[], []];
  for (const group of findElements(svg, "g")) {
    const match = pattern.exec(group.children[0]!.text);
    const shape = group.children[1]!;
    const x = Number(shape.attributes["x"] ?? /^M([\d.]+)/.exec(shape.attributes["d"]!)![1]);
    if (match) columns[x < 560 ? 0 : 1]!.push(match.slice(1));
  }
  return columns;
}

const toNumber = (text: string): number => Number(text.replaceAll(",", ""));

/** Returns the rows by receiver and by sender in the matrix of each column. */
function parseTransfers(svg: Element, ranks: number): { received: number[]; sent: number[] }[] {
  return matchTooltips(svg, /^rank (\d+) sends ([\d,]+) rows to rank (\d+)$/).map((cells) => {
    const totals = { received: Array<number>(ranks).fill(0), sent: Array<number>(ranks).fill(0) };
    for (const [sender, rows, receiver] of cells) {
      totals.received[Number(receiver)]! += toNumber(rows!);
      totals.sent[Number(sender)]! += toNumber(rows!);
    }
    return totals;
  });
}

/** Returns the values of the bars of each column. */
function parseBars(svg: Element, metric: "load" | "received" | "sent"): number[][] {
  return matchTooltips(svg, new RegExp(`^rank \\d+: ${metric} ([\\d.,]+)`)).map((bars) =>
    bars.map(([value]) => toNumber(value!)),
  );
}

const trials: [mask: Mask, ranks: number, after: (mask: Mask) => Placement | PlacementName][] = [
  [packedMask, 4, (mask) => dispatch({ mask, length: 1000, ranks: 4, chunkSize: 16 })],
  [packedMask, 3, () => "striped"],
  [masks.full(), 5, () => "zigzag"],
  [masks.slidingWindow({ left: 70, right: 20 }), 7, (mask) => dispatch({ mask, length: 1000, ranks: 7, chunkSize: 8 })],
  [masks.bidirectionalCausal(), 2, () => "striped"],
  [masks.or(masks.slidingWindow(64), masks.globalTokens(4, { queries: true })), 4, () => "zigzag"],
  [masks.shareQuestion(400, [250, 200, 150]), 1, () => "contiguous"],
  [masks.fromSlices([]), 2, () => "zigzag"],
];

test.each(trials)(
  "%o: drawn transfers, rows and loads equal those of evaluateDispatch",
  (mask, ranks, createPlacement) => {
    const after = createPlacement(mask);
    const svg = parse(drawDispatch(mask, { queries: 1000, ranks, after }));
    const drawnTransfers = parseTransfers(svg, ranks);
    for (const [i, placement] of ["contiguous" as const, after].entries()) {
      const { ranks: loads } = evaluateDispatch({ mask, length: 1000, ranks, placement });
      const expected = {
        received: loads.map(({ receivedRows }) => receivedRows),
        sent: loads.map(({ sentRows }) => sentRows),
      };
      expect(drawnTransfers[i]).toEqual(expected);
      expect(parseBars(svg, "received")[i]).toEqual(expected.received);
      expect(parseBars(svg, "sent")[i]).toEqual(expected.sent);
      const mean = loads.reduce((sum, { pairs }) => sum + pairs, 0) / ranks;
      const expectedLoad = loads.map(({ pairs }) => (mean === 0 ? 0 : Number((pairs / mean).toFixed(2))));
      expect(parseBars(svg, "load")[i]).toEqual(expectedLoad);
    }
  },
);

test("the picture states the change in load and in traffic, in rows or in bytes", () => {
  const options = { queries: 1000, ranks: 2, after: "zigzag" } as const;
  const [before, after] = (["contiguous", "zigzag"] as const).map((placement) =>
    evaluateDispatch({ mask: packedMask, length: 1000, ranks: 2, placement }),
  ) as [ReturnType<typeof evaluateDispatch>, ReturnType<typeof evaluateDispatch>];
  const maxReceived = [before, after].map(({ ranks }) => Math.max(...ranks.map(({ receivedRows }) => receivedRows)));
  const svg = parse(drawDispatch(packedMask, { ...options, title: "<Packed>", subtitle: "four documents" }));
  expect(svg.children[0]!.text).toBe("<Packed>");
  const texts = listTexts(svg);
  const imbalance = `maximum load ${before.imbalance.toFixed(2)} → ${after.imbalance.toFixed(2)} × the mean`;
  expect(texts.slice(0, 2)).toEqual([
    "<Packed>",
    `four documents · ${imbalance} · received in total ${before.rows} rows → ${after.rows} rows · maximum received per rank ${maxReceived[0]} rows → ${maxReceived[1]} rows`,
  ]);
  expect(texts).toEqual(expect.arrayContaining(["before: contiguous", "after: zigzag", "received, rows"]));
  const byteTexts = listTexts(parse(drawDispatch(packedMask, { ...options, bytesPerRow: 100 })));
  expect(byteTexts[1]).toContain(`received in total ${before.rows / 10} kB → ${after.rows / 10} kB`);
  expect(byteTexts).toEqual(
    expect.arrayContaining(["received", expect.stringContaining("A row of k and v is 100 B.")]),
  );
});

test("the picture states the predicted times, and why a dispatch has a higher load", () => {
  const lengths = [900, 20, 310, 44, 500, 70, 204];
  const mask = masks.documents(lengths, "causal");
  const settings = { mask, length: 2048, ranks: 4 };
  const slowCost = { pair: 1e-8, backwardPair: 1e-8 };
  const draw = (cost: NonNullable<Parameters<typeof dispatch>[0]["cost"]>) => {
    const after = dispatch({ ...settings, chunkSize: 32, cost });
    const [{ time: timeBefore }, { time: timeAfter }] = [
      evaluateDispatch({ ...settings, placement: "contiguous", cost }),
      evaluateDispatch({ ...settings, placement: after, cost }),
    ];
    const times = { before: timeBefore, after: timeAfter };
    return { times, texts: listTexts(parse(drawDispatch(mask, { queries: 2048, ranks: 4, after, times }))) };
  };
  const explanation = expect.stringContaining("dispatch minimizes the predicted step time for its `cost`");
  const fast = draw({});
  expect(fast.texts[1]).toMatch(/^predicted step \d+ µs → \d+ µs · maximum load 1\.85 → 2\.11 × the mean · /);
  expect(fast.times.after).toBeLessThan(fast.times.before);
  expect(fast.texts).toContainEqual(explanation);
  const slow = draw(slowCost);
  expect(slow.texts[1]).toMatch(/^predicted step .* · maximum load 1\.85 → 1\.00 × the mean · /);
  expect(slow.texts).not.toContainEqual(explanation);
  expect(() =>
    drawDispatch(mask, { queries: 2048, ranks: 4, after: "zigzag", times: { before: -1, after: 0 } }),
  ).toThrow(/drawDispatch: times: before: expected a number ≥ 0, received -1/);
});

test("each rank has its own color in the mask, along its borders and in its bars", () => {
  const after = dispatch({ mask: packedMask, length: 1000, ranks: 4, chunkSize: 50 });
  const svg = parse(drawDispatch(packedMask, { queries: 1000, ranks: 4, after }));
  for (const rank of [0, 1, 2, 3]) {
    const fills = findElements(svg, "g")
      .filter(({ children }) => new RegExp(`(: |held by |^)rank ${rank}\\b(?! sends)`).test(children[0]!.text))
      .map(({ children }) => children.findLast(({ name }) => name === "path" || name === "rect")!.attributes["fill"]);
    // 2 borders and 3 bars in 2 columns, and pieces of the mask.
    expect(fills.length).toBeGreaterThan(10);
    expect(new Set(fills)).toEqual(new Set([["#0072b2", "#d55e00", "#009e73", "#aa4499"][rank]]));
  }
});

test("queries and keys can have different placements", () => {
  const mask = masks.causal();
  const after = crossDispatch({ mask, queries: 400, keys: 1000, ranks: 3, chunkSize: 20 });
  const before = { queries: "zigzag", keys: "contiguous" } as const;
  const svg = parse(drawDispatch(mask, { queries: 400, keys: 1000, ranks: 3, before, after }));
  const drawnTransfers = parseTransfers(svg, 3);
  for (const [i, { queries, keys }] of [before, after].entries()) {
    const evaluation = evaluateDispatch({
      mask,
      length: 400,
      keys: 1000,
      ranks: 3,
      placement: queries,
      keyPlacement: keys,
    });
    expect(drawnTransfers[i]!.received).toEqual(evaluation.ranks.map(({ receivedRows }) => receivedRows));
  }
  expect(listTexts(svg)).toContain("before: queries zigzag, keys contiguous");
});

const sizes: DrawDispatchOptions[] = [
  { queries: 1000, ranks: 1, after: "zigzag" },
  { queries: 1000, ranks: 8, after: "zigzag", bytesPerRow: 123_456 },
  { queries: 1000, ranks: 33, after: "striped" },
  { queries: 1000, ranks: 256, after: "zigzag", bytesPerRow: 4096 },
];

test.each(sizes)("the picture is deterministic, has a white background and stays within its bounds: %o", (options) => {
  const svgText = drawDispatch(packedMask, options);
  expect(drawDispatch(packedMask, options)).toBe(svgText);
  expect(svgText.length).toBeLessThan(1_500_000);
  const svg = parse(svgText);
  const [width, height] = [Number(svg.attributes["width"]), Number(svg.attributes["height"])];
  // On dark pages, too, the picture has a white background.
  expect(findElements(svg, "rect")[0]!.attributes).toMatchObject({
    width: String(width),
    height: String(height),
    fill: "#ffffff",
  });
  for (const { attributes } of findElements(svg, "rect")) {
    expect(Number(attributes["x"] ?? 0) + Number(attributes["width"])).toBeLessThanOrEqual(width);
    expect(Number(attributes["y"] ?? 0) + Number(attributes["height"])).toBeLessThanOrEqual(height);
  }
  for (const { attributes, text } of findElements(svg, "text")) {
    const textWidth = text.length * Number(attributes["font-size"]) * 0.53;
    const anchor = attributes["text-anchor"];
    const left = Number(attributes["x"]) - (anchor === "end" ? textWidth : anchor === "middle" ? textWidth / 2 : 0);
    expect([text, left >= 0, left + textWidth <= width, Number(attributes["y"]) <= height]).toEqual([
      text,
      true,
      true,
      true,
    ]);
  }
});

test("texts on one line do not overlap", () => {
  for (const ranks of [1, 2, 8, 16, 48, 256]) {
    for (const bytesPerRow of [undefined, 98_765]) {
      const options = { queries: 100_000, ranks, after: "zigzag", ...(bytesPerRow && { bytesPerRow }) } as const;
      const svg = parse(drawDispatch(masks.causal(), options));
      const lines = new Set(findElements(svg, "text").map(({ attributes }) => attributes["y"]!));
      for (const y of lines) {
        const textExtents = findElements(svg, "text")
          .filter(({ attributes }) => attributes["y"] === y)
          .map(({ attributes, text }) => {
            const textWidth = text.length * Number(attributes["font-size"]) * 0.5;
            const anchor = attributes["text-anchor"];
            const left =
              Number(attributes["x"]) - (anchor === "end" ? textWidth : anchor === "middle" ? textWidth / 2 : 0);
            return { text, left, right: left + textWidth };
          })
          .sort((a, b) => a.left - b.left);
        for (const [i, { text, left }] of textExtents.slice(1).entries())
          expect([ranks, textExtents[i]!.text, text, left >= textExtents[i]!.right]).toEqual([
            ranks,
            textExtents[i]!.text,
            text,
            true,
          ]);
      }
    }
  }
});

test("a rank whose queries attend to no key has load 0 and receives no rows", () => {
  // Only the last 8 queries attend to keys. Rank 1 holds them before, and rank 0 after.
  const svg = parse(drawDispatch(masks.causal(), { queries: 64, keys: 8, ranks: 2, after: "zigzag" }));
  const expectedBars = {
    load: [
      [0, 2],
      [2, 0],
    ],
    received: [
      [0, 4],
      [4, 0],
    ],
    sent: [
      [4, 0],
      [0, 4],
    ],
  };
  for (const metric of ["load", "received", "sent"] as const)
    expect(parseBars(svg, metric), metric).toEqual(expectedBars[metric]);
});

test("drawDispatch rejects invalid arguments and names the fault", () => {
  const options = { queries: 8, ranks: 2, after: "zigzag" } as const;
  expect(() => drawDispatch("causal" as never, options)).toThrow(/drawDispatch: expected a Mask, .* received "causal"/);
  expect(() => drawDispatch(packedMask, options)).toThrow(/documents\(4, causal\): expected a sequence of length 1000/);
  const drawWithOptions =
    (overrides: object): (() => string) =>
    () =>
      drawDispatch(masks.causal(), { ...options, ...overrides });
  expect(drawWithOptions({ ranks: 257 })).toThrow(
    /drawDispatch: ranks: expected an integer from 1 to 256, received 257/,
  );
  expect(drawWithOptions({ after: undefined })).toThrow(
    /drawDispatch: after: expected a placement, or \{ queries, keys \}/,
  );
  expect(drawWithOptions({ after: { queries: "zigzag" } })).toThrow(/drawDispatch: after: expected a placement/);
  expect(drawWithOptions({ bytesPerRow: 0 })).toThrow(/drawDispatch: bytesPerRow: expected a number > 0/);
  const otherPlacement = dispatch({ mask: masks.causal(), length: 8, ranks: 4 });
  expect(drawWithOptions({ after: otherPlacement })).toThrow(
    /dispatch: spans: expected a shard index below 4, 4 shards and length 8/,
  );
  expect(drawWithOptions({ queries: 2 ** 18, before: "striped" })).toThrow(/at most 200,000 shapes, received 262,144/);
});
