import fc from "fast-check";
import { expect, test } from "vitest";
import { type TimelineEvent, type Timeline, timelineSvg, timeBreakdown } from "../../src/index.ts";
import { waitIntervals } from "../../src/draw/intervals.ts";
import { ringTimeline } from "./timelines.ts";
import { findElements, type Element, parse } from "./xml.ts";

/** Returns the tooltip of each bar. */
function listTooltips(svg: Element): readonly string[] {
  return findElements(svg, "g").flatMap((group) => {
    const [first] = group.children;
    return first?.name === "title" ? [first.text] : [];
  });
}

test("every event has a bar with its name, bytes and time, and every wait is hatched", () => {
  const svg = parse(timelineSvg(ringTimeline(4, 6), { title: "A ring", subtitle: "of four" }));
  const tooltips = listTooltips(svg);
  expect(tooltips.filter((tip) => tip.startsWith("attend: "))).toHaveLength(4 * 3);
  expect(tooltips.filter((tip) => tip.startsWith("attendBackward: "))).toHaveLength(4 * 3);
  expect(tooltips.filter((tip) => tip.startsWith("ring(sp), sends 1 MB: "))).toHaveLength(4 * 6);
  expect(tooltips.filter((tip) => tip.startsWith("waits for transfers: "))).toHaveLength(4 * 6);
  expect(tooltips).toContain("attendBackward: 4 ms to 7 ms, 3 ms");
  const texts = findElements(svg, "text").map(({ text }) => text);
  for (const expected of ["A ring", "of four", "rank 0", "rank 3", "sp 3", "20 ms", "ring(sp)"]) {
    expect(texts).toContain(expected);
  }
});

test("the picture has a title and a description for screen readers", () => {
  const svg = parse(timelineSvg(ringTimeline(2, 2), { title: "Two ranks", facts: ["All is well."] }));
  expect(svg.attributes).toMatchObject({ role: "img", "aria-labelledby": "title description" });
  const [title, description] = svg.children;
  expect(title).toMatchObject({ name: "title", text: "Two ranks", attributes: { id: "title" } });
  expect(description!.attributes["id"]).toBe("description");
  expect(description!.text).toBe(
    "8 ms; share of rank time: 75 % computing, 25 % waiting for transfers, 0 % idle. All is well.",
  );
});

test("predicted and measured timelines share an axis and are drawn one below the other", () => {
  const predicted = ringTimeline(3, 4);
  const measured = { ...ringTimeline(3, 5), seconds: 0.02 };
  const svg = parse(timelineSvg({ predicted, measured }));
  const texts = findElements(svg, "text").map(({ text }) => text);
  expect(texts.filter((text) => text === "predicted")).toHaveLength(3);
  expect(texts.filter((text) => text === "measured")).toHaveLength(3);
  expect(texts.filter((text) => text === "rank 1")).toHaveLength(1);
  expect(listTooltips(svg).filter((tip) => tip.startsWith("ring(sp)"))).toHaveLength(3 * 4 + 3 * 5);
  expect(texts).toContain("The prediction is 20 % below the measurement.");
});

test("of many ranks, a summary and eight or nine ranks are drawn, in less than 2 MB", () => {
  const text = timelineSvg(ringTimeline(512, 600));
  const svg = parse(text);
  const rows = findElements(svg, "text").filter(({ text: words }) => /^rank \d+$/.test(words));
  expect(rows.length).toBeGreaterThanOrEqual(8);
  expect(rows.length).toBeLessThanOrEqual(9);
  expect(rows[0]!.text).toBe("rank 0");
  expect(rows.at(-1)!.text).toBe("rank 511");
  expect(findElements(svg, "text").some(({ text: words }) => words === "512 ranks")).toBe(true);
  expect(findElements(svg, "path").length).toBeGreaterThanOrEqual(3);
  expect(text.length).toBeLessThan(2e6);
});

test("only the selected ranks are drawn", () => {
  const svg = parse(timelineSvg(ringTimeline(64, 4), { ranks: [5, 17, 99] }));
  const rows = findElements(svg, "text").filter(({ text }) => /^rank \d+$/.test(text));
  expect(rows.map(({ text }) => text)).toEqual(["rank 5", "rank 17"]);
});

test("the option group determines the colors, which are the same in both lanes", () => {
  const getStepName = ({ start }: TimelineEvent): string => `step ${Math.round(start / 0.004)}`;
  const svg = parse(timelineSvg(ringTimeline(1, 3), { group: getStepName }));
  const bars = findElements(svg, "g").filter(({ children }) => children[0]?.text.startsWith("step 1"));
  expect(bars).toHaveLength(2);
  expect(new Set(bars.map(({ children }) => children[1]!.attributes["fill"])).size).toBe(1);
});

test("concurrent transfers are drawn one below the other", () => {
  const transfer = { lane: "communication", name: "sendRecv", start: 0, end: 1 } as const;
  const events = [
    { ...transfer, label: "row" },
    { ...transfer, label: "column" },
  ];
  const svg = parse(timelineSvg({ seconds: 1, ranks: [{ rank: 0, at: {}, events }] }));
  const boxes = findElements(svg, "g")
    .filter(({ children }) => /^(row|column),/.test(children[0]?.text ?? ""))
    .map(({ children }) => children[1]!.attributes);
  expect(boxes).toHaveLength(2);
  expect(Number(boxes[1]!["y"])).toBeCloseTo(Number(boxes[0]!["y"]) + Number(boxes[0]!["height"]));
});

/** Returns the picture of one rank during one second. */
const drawRank = (events: readonly TimelineEvent[], seconds = 1) =>
  parse(timelineSvg({ seconds, ranks: [{ rank: 0, at: {}, events }] }));

test("transfers one after the other are in one row, beside those that are concurrent", () => {
  const transfer = { lane: "communication", name: "sendRecv" } as const;
  const svg = drawRank([
    { ...transfer, label: "first", start: 0, end: 0.3 },
    { ...transfer, label: "long", start: 0.1, end: 0.9 },
    { ...transfer, label: "second", start: 0.3, end: 0.6 },
    { ...transfer, label: "third", start: 0.6, end: 1 },
  ]);
  const rows = findElements(svg, "g")
    .filter(({ children }) => /, sends /.test(children[0]?.text ?? ""))
    .map(({ children: [title, bar] }) => [title!.text.split(",")[0], bar!.attributes["y"]] as const);
  const rowOf = new Map(rows);
  expect([rowOf.get("second"), rowOf.get("third")]).toEqual([rowOf.get("first"), rowOf.get("first")]);
  expect(rowOf.get("long")).not.toBe(rowOf.get("first"));
});

test("adjacent events of one group that are too thin are one bar, which has their number and bytes", () => {
  const kernel = { lane: "compute", name: "attend" } as const;
  const transfer = { lane: "communication", name: "sendRecv", label: "ring", bytesSent: 1000 } as const;
  const millisecond = (i: number) => ({ start: 0.001 * i, end: 0.001 * (i + 1) });
  const svg = drawRank([
    ...Array.from({ length: 20 }, (_, i) => ({ ...kernel, ...millisecond(i) })),
    ...Array.from({ length: 20 }, (_, i) => ({ ...kernel, name: "merge", ...millisecond(20 + i) })),
    ...Array.from({ length: 20 }, (_, i) => ({ ...transfer, ...millisecond(i) })),
    // The second transfer ends before the first.
    { ...transfer, start: 0.5, end: 0.503 },
    { ...transfer, start: 0.501, end: 0.502 },
  ]);
  expect(listTooltips(svg).filter((tip) => !tip.startsWith("waits"))).toEqual([
    "attend (20 events): 0 s to 20 ms, 20 ms",
    "merge (20 events): 20 ms to 40 ms, 20 ms",
    "ring (20 events), sends 20 kB: 0 s to 20 ms, 20 ms",
    "ring (2 events), sends 2 kB: 500 ms to 503 ms, 3 ms",
  ]);
});

test("a bar has its name only if there is room, and an axis has a line at its end if that is round", () => {
  const kernel = { lane: "compute", name: "attend" } as const;
  const svg = drawRank(
    [
      { ...kernel, start: 0, end: 0.003 },
      { ...kernel, start: 0.1, end: 0.3 },
    ],
    0.3,
  );
  const texts = findElements(svg, "text").map(({ text }) => text);
  expect(texts.filter((text) => text === "attend")).toHaveLength(2); // one bar, and the legend
  expect(texts).toContain("300 ms");
});

test("the legend has one row for shared colors, and otherwise one for each lane that has events", () => {
  const kernel = { lane: "compute", name: "attendBackward", start: 0, end: 1 } as const;
  const transfer = { lane: "communication", name: "sendRecv", start: 0, end: 1 } as const;
  // The headings of the legend are at the left margin, unlike the names of the lanes.
  const headings = (svg: Element) =>
    findElements(svg, "text").flatMap(({ text, attributes: { x } }) =>
      x === "32" && /^(colors|computes|transfers)$/.test(text) ? [text] : [],
    );
  expect(headings(drawRank([kernel]))).toEqual(["computes"]);
  expect(headings(drawRank([kernel, transfer]))).toEqual(["computes", "transfers"]);
  const timeline = { seconds: 1, ranks: [{ rank: 0, at: {}, events: [kernel, transfer] }] };
  expect(headings(parse(timelineSvg(timeline, { group: () => "step" })))).toEqual(["colors"]);
  // In the bar and in the legend.
  const striped = findElements(drawRank([kernel]), "rect").filter(({ attributes: { fill } }) => /backward/.test(fill!));
  expect(striped).toHaveLength(2);
});

test("a kernel without duration does not divide a wait", () => {
  const kernel = { lane: "compute", name: "attend", start: 5, end: 5 } as const;
  const transfer = { lane: "communication", name: "sendRecv", start: 0, end: 9 } as const;
  expect(waitIntervals([kernel, transfer])).toEqual([{ start: 0, end: 9 }]);
});

test("empty timelines and names with special characters of XML are drawn", () => {
  for (const timeline of [
    { seconds: 0, ranks: [] },
    { seconds: 0, ranks: [{ rank: 0, at: {}, events: [] }] },
  ]) {
    expect(timelineSvg(timeline)).not.toMatch(/NaN|Infinity|undefined/);
    parse(timelineSvg(timeline));
  }
  const hostile = `</svg>"&<b a='\u0000\ud800\uffff`;
  const events = [{ lane: "compute", name: hostile, start: 0, end: 1 }] as const;
  const timeline = { seconds: 1, ranks: [{ rank: 0, at: { [hostile]: 0 }, events }] };
  const svg = parse(timelineSvg(timeline, { title: hostile, subtitle: hostile, facts: [hostile] }));
  expect(svg.children[0]!.text).toBe(`</svg>"&<b a='\ufffd\ufffd\ufffd`);
});

const events = fc.array(
  fc.record({
    lane: fc.constantFrom("compute" as const, "communication" as const),
    name: fc.constant("attend"),
    start: fc.integer({ min: 0, max: 50 }),
    end: fc.integer({ min: 0, max: 20 }),
  }),
  { maxLength: 12 },
);

test("waiting is the time in which transfers are in progress and no kernel runs", () => {
  fc.assert(
    fc.property(events, (eventSpecs) => {
      const timelineEvents: TimelineEvent[] = eventSpecs.map((event) => ({ ...event, end: event.start + event.end }));
      const isActiveAt = (time: number) => (event: { start: number; end: number }) =>
        event.start <= time && time < event.end;
      const waits = waitIntervals(timelineEvents);
      for (let time = 0; time < 72; time++) {
        const isLaneBusy = (lane: TimelineEvent["lane"]) =>
          timelineEvents.some((event) => event.lane === lane && isActiveAt(time)(event));
        expect(waits.some(isActiveAt(time))).toBe(isLaneBusy("communication") && !isLaneBusy("compute"));
      }
    }),
  );
});

test("computing, waiting and idle time add up to the total time", () => {
  fc.assert(
    fc.property(fc.array(events, { minLength: 1, maxLength: 4 }), (eventsByRank) => {
      const ranks = eventsByRank.map((rankEvents, rank) => {
        return { rank, at: {}, events: rankEvents.map((event) => ({ ...event, end: event.start + event.end })) };
      });
      const timeline: Timeline = { seconds: 80, ranks };
      const { computing, waiting, idle } = timeBreakdown(timeline);
      expect(Math.min(computing, waiting, idle)).toBeGreaterThanOrEqual(0);
      expect(computing + waiting + idle).toBeCloseTo(1, 12);
      parse(timelineSvg(timeline));
    }),
    { numRuns: 30 },
  );
});

test("long names stay within the page and are complete in the tooltips", () => {
  const longName = "a name that goes on and on, ".repeat(12);
  const { seconds, ranks } = ringTimeline(2, 2);
  const namedRanks = ranks.map(({ rank, events }) => ({
    rank,
    at: { ["an_axis_with_a_long_name_".repeat(3)]: rank },
    events: events.map((event) => ({ ...event, name: `${event.name} ${longName}`, label: longName })),
  }));
  const svg = parse(timelineSvg({ seconds, ranks: namedRanks }, { title: longName, subtitle: longName }));
  const width = Number(svg.attributes["width"]);
  for (const { text, attributes } of findElements(svg, "text")) {
    if (attributes["text-anchor"]) continue;
    expect(Number(attributes["x"]) + text.length * Number(attributes["font-size"]) * 0.53).toBeLessThanOrEqual(width);
  }
  expect(svg.children[0]!.text).toBe(longName);
  expect(listTooltips(svg)).toContain(`attend ${longName}`);
});

test("a timeline without events is drawn without a comparison", () => {
  const measured = { seconds: 0, ranks: [] };
  const svg = timelineSvg({ predicted: measured, measured: ringTimeline(20, 1) });
  expect(parse(svg).children[0]!.text).toBe("Timeline");
  expect(timelineSvg({ predicted: ringTimeline(20, 1), measured })).not.toMatch(/NaN|Infinity|The prediction is/);
});

test("timelineSvg rejects unknown options", () => {
  expect(() => timelineSvg(ringTimeline(1, 1), { titel: "A ring" } as object)).toThrow(/timelineSvg: expected options/);
});
