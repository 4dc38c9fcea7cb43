import { defineOptions, option, type OptionsOf } from "@mosaic/core";
import { checkTimeline, type Piece, type Timeline } from "../time/timeline.ts";
import { formatSeconds, formatShare, type Scale, timeScale, timeAxis } from "./axis.ts";
import { type ColorScheme, colorScheme } from "./color-scheme.ts";
import { aggregateUtilization } from "./utilization.ts";
import { drawLanes, type BandHeights, bandHeights } from "./lane.ts";
import { drawLegend, patterns } from "./legend.ts";
import { document, isText, truncate, footnotes, heading, theme, page, text, textWidth } from "./svg.ts";
import { timeShares } from "./wait-intervals.ts";

/** One run, or what was foretold of it beside what was measured. */
export type Timelines = Timeline | { readonly predicted: Timeline; readonly measured: Timeline };

export const timelineSvgOptions = defineOptions("timelineSvg", {
  /** The heading, and the document's title. Default "Timeline". */
  title: option.custom("a string", isText, { default: "Timeline" }),
  /** A line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
  /** Sentences at the foot of the picture, below those on how the time was spent. Default []. */
  facts: option.array(option.custom("a string", isText), { default: [] }),
  /** The ranks that get a row of their own. Default: all of up to 16; of more, eight, and all together are drawn above them. */
  ranks: option.array(option.integer({ min: 0 }), { optional: true }),
  /** What a piece's colour stands for. Default: the kernel that computes, and the label of a transfer. */
  group: option.custom("a function", option.isFunction<(piece: Piece) => string>, { optional: true }),
});
/** What a picture of a timeline shows, and how. */
export type TimelineSvgOptions = OptionsOf<typeof timelineSvgOptions>;

interface NamedTimeline {
  readonly name: string;
  readonly timeline: Timeline;
}

/** Ranks that all get a row, and how many of more do. */
const MAX_RANKS_SHOWN = 16;
const SAMPLED_RANKS = 8;
const TOP = 112;

/**
 * Draws who computed and sent what when, as an SVG document: two lanes for each rank, compute above transfers. Hatching in
 * the compute lane is time in which a rank had nothing to compute while its transfers were under way: communication that
 * compute does not hide. Tooltips show name, bytes and time.
 *
 * With `predicted` and `measured`, both are drawn on one axis, one under the other for every rank.
 *
 * @example
 * ```ts
 * import { timelineSvg } from "@mosaic/planner";
 * const pieces = [{ lane: "compute", name: "attend", start: 0, end: 0.003 }] as const;
 * const svg = timelineSvg({ seconds: 0.004, ranks: [{ rank: 0, at: { sp: 0 }, pieces }] }, { title: "One rank" });
 * svg.includes("<title id=\"title\">One rank</title>"); // => true
 * ```
 */
export function timelineSvg(timelines: Timelines, options?: TimelineSvgOptions): string {
  const { title, subtitle, facts, ranks, group } = timelineSvgOptions.parse(options);
  const named = namedTimelines(timelines);
  const runs = named.map(({ timeline }) => timeline);
  const scale = timeScale(Math.max(...runs.map(({ seconds }) => seconds)));
  const colouring = colorScheme(runs, group);
  const rows = selectRanks(runs, ranks);
  const isAggregated = runs.some(({ ranks }) => ranks.length > rows.length);
  let top = TOP;
  const aggregates = (isAggregated ? named : []).map(({ name, timeline }) => {
    const aggregate = aggregateUtilization(timeline, name, { scale, colouring, top });
    top = aggregate.bottom;
    return aggregate.svg;
  });
  const heights = bandHeights(rows.length * named.length);
  const bands = rows.map((rank, i) => {
    return drawBands(rank, named, {
      scale,
      colouring,
      rows: heights,
      top: top + i * named.length * heights.band,
      first: i === 0,
    });
  });
  const bottom = top + rows.length * named.length * heights.band;
  const legend = drawLegend(colouring, bottom + 52);
  const notes = [...named.map(describeShares), ...describeError(timelines), ...facts];
  return document({
    title,
    description: [subtitle, ...notes].filter((words) => words !== "").join(" "),
    height: legend.bottom + notes.length * 20 + 28,
    definitions: patterns,
    body: [
      heading(title, subtitle),
      timeAxis(scale, TOP - 12, bottom + 2),
      ...aggregates,
      ...bands,
      legend.svg,
      footnotes(notes, legend.bottom + 16),
    ],
  });
}

function namedTimelines(timelines: Timelines): readonly NamedTimeline[] {
  const isPair = typeof timelines === "object" && timelines !== null && "predicted" in timelines;
  const named = isPair
    ? (["predicted", "measured"] as const).map((name) => ({ name, timeline: timelines[name] }))
    : [{ name: "", timeline: timelines }];
  for (const { timeline } of named) checkTimeline("timelineSvg", timeline);
  return named;
}

/** Evenly spread ranks, with the last to end among them. */
function selectRanks(runs: readonly Timeline[], requested: readonly number[] | undefined): readonly number[] {
  const known = [...new Set(runs.flatMap(({ ranks }) => ranks.map(({ rank }) => rank)))].toSorted((a, b) => a - b);
  if (requested) return requested.filter((rank) => known.includes(rank));
  if (known.length * runs.length <= MAX_RANKS_SHOWN) return known;
  const spread = Array.from(
    { length: SAMPLED_RANKS },
    (_, i) => known[Math.round((i * (known.length - 1)) / (SAMPLED_RANKS - 1))]!,
  );
  const ends = runs
    .flatMap(({ ranks }) => ranks)
    .map(({ rank, pieces }) => ({ rank, end: pieces.reduce((end, each) => Math.max(end, each.end), 0) }));
  const last = ends.reduce((a, b) => (b.end > a.end ? b : a));
  return [...new Set([...spread, last.rank])].toSorted((a, b) => a - b);
}

interface BandContext {
  readonly scale: Scale;
  readonly colouring: ColorScheme;
  readonly rows: BandHeights;
  readonly top: number;
  /** Whether to label the two lanes. */
  readonly first: boolean;
}

function drawBands(rank: number, named: readonly NamedTimeline[], { rows, top, first, ...place }: BandContext): string {
  const faint = `font-size="${Math.max(9, rows.font - 2)}" fill="${theme.faint}"`;
  const own = named.map(({ timeline }) => timeline.ranks.find((each) => each.rank === rank));
  const at = Object.entries(own.find((each) => each)?.at ?? {}).map(([axis, index]) => `${axis} ${index}`);
  const where = rows.band >= 40 ? truncate(at.join(" · "), rows.font - 2, page.left - page.edge - 8) : "";
  const room = page.left - page.edge - 76 > textWidth(where, rows.font - 2);
  const drawn = named.map(({ name }, i) => {
    const y = top + i * rows.band;
    const right = (words: string, at: number) => text(page.left - 10, at, words, `text-anchor="end" ${faint}`);
    return [
      name !== "" ? right(name, y + rows.compute * 0.72) : first ? right("computes", y + rows.compute * 0.72) : "",
      name === "" && first && room && rows.send >= 8 ? right("transfers", y + rows.compute + 3 + rows.send * 0.9) : "",
      drawLanes(own[i]?.pieces ?? [], { ...place, rows, top: y }),
    ].join("\n");
  });
  return [
    text(page.edge, top + rows.compute * 0.72, `rank ${rank}`, `font-size="${rows.font}" font-weight="600"`),
    where === "" ? "" : text(page.edge, top + rows.compute * 0.72 + rows.font + 3, where, faint),
    ...drawn,
  ].join("\n");
}

function describeShares({ name, timeline }: NamedTimeline): string {
  const { computing, waiting, idle } = timeShares(timeline);
  const legendText = name === "" ? "" : `${name[0]!.toUpperCase()}${name.slice(1)}: `;
  return `${legendText}${formatSeconds(timeline.seconds)}; of the ranks' time, ${formatShare(computing)} computing, ${formatShare(waiting)} waiting for transfers, ${formatShare(idle)} idle.`;
}

function describeError(timelines: Timelines): readonly string[] {
  if (!("predicted" in timelines)) return [];
  const { predicted, measured } = timelines;
  if (measured.seconds <= 0) return [];
  const off = predicted.seconds / measured.seconds - 1;
  return [`The prediction is ${formatShare(Math.abs(off))} ${off < 0 ? "below" : "above"} what was measured.`];
}
