import { defineOptions, option, type OptionsOf } from "@mosaic/core";
import { checkTimeline, type Timeline, type TimelineEvent } from "../time/timeline.ts";
import { formatPercent, formatSeconds, type TimeScale, timeAxis, timeScale } from "./axis.ts";
import { type ColorScheme, colorScheme, type Style } from "./color-scheme.ts";
import { drawLegend, type Fragment, hatchPatterns } from "./legend.ts";
import { type BandHeights, bandHeights, drawLanes } from "./lane.ts";
import {
  document,
  footnotes,
  formatCoordinate,
  heading,
  isText,
  page,
  rect,
  text,
  textWidth,
  theme,
  tooltip,
  truncate,
} from "./svg.ts";
import { waitIntervals } from "./intervals.ts";
import { timeBreakdown } from "./time-breakdown.ts";

/** One run, or a predicted run and a measured one. */
export type Timelines = Timeline | { readonly predicted: Timeline; readonly measured: Timeline };

export const timelineSvgOptions = defineOptions("timelineSvg", {
  /** Heading and title of the document. Default "Timeline". */
  title: option.custom("a string", isText, { default: "Timeline" }),
  /** A line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
  /** Sentences at the foot of the picture, below those on how the time was spent. Default []. */
  facts: option.array(option.custom("a string", isText), { default: [] }),
  /**
   * Ranks that have a row of their own. Default: all of up to 16; of more, eight and the last to end, below a plot of
   * all ranks.
   */
  ranks: option.array(option.integer({ min: 0 }), { optional: true }),
  /**
   * Returns the group of an event, which determines its color. Default: the kernel of compute, and the label of a
   * transfer.
   */
  group: option.custom("a function", option.isFunction<(event: TimelineEvent) => string>, { optional: true }),
});
/** Options of `timelineSvg`. */
export type TimelineSvgOptions = OptionsOf<typeof timelineSvgOptions>;

/** A timeline with its name, which is "" for the only one. */
export interface NamedTimeline {
  readonly name: string;
  readonly timeline: Timeline;
}

/** Maximum number of ranks that all have a row, and number of rows of more ranks. */
const MAX_RANKS_SHOWN = 16;
const NUM_SAMPLED_RANKS = 8;
const MARGIN_TOP = 112;

/**
 * Draws what each rank computed and sent over time, as an SVG document: two lanes for each rank, compute above
 * transfers. Hatching in the compute lane is time in which a rank had nothing to compute while its transfers were in
 * progress: communication that compute does not hide. Tooltips show name, bytes and time.
 *
 * With `predicted` and `measured`, both are drawn on one axis, one under the other for every rank.
 *
 * @example
 * ```ts
 * import { timelineSvg } from "@mosaic/planner";
 * const events = [{ lane: "compute", name: "attend", start: 0, end: 0.003 }] as const;
 * const svg = timelineSvg({ seconds: 0.004, ranks: [{ rank: 0, at: { sp: 0 }, events }] }, { title: "One rank" });
 * svg.includes("<title id=\"title\">One rank</title>"); // => true
 * ```
 */
export function timelineSvg(timelines: Timelines, options?: TimelineSvgOptions): string {
  const { title, subtitle, facts, ranks, group } = timelineSvgOptions.parse(options);
  const namedTimelines = toNamedTimelines("timelineSvg", timelines);
  const plottedTimelines = namedTimelines.map(({ timeline }) => timeline);
  const scale = timeScale(Math.max(...plottedTimelines.map(({ seconds }) => seconds)));
  const scheme = colorScheme(plottedTimelines, group);
  const shownRanks = selectRanks(plottedTimelines, ranks);
  const hasHiddenRanks = plottedTimelines.some(({ ranks }) => ranks.length > shownRanks.length);
  let top = MARGIN_TOP;
  const utilizationSvgs = (hasHiddenRanks ? namedTimelines : []).map(({ name, timeline }) => {
    const utilizationPlot = drawUtilization(timeline, name, { scale, scheme, top });
    top = utilizationPlot.bottom;
    return utilizationPlot.svg;
  });
  const heights = bandHeights(shownRanks.length * namedTimelines.length);
  const bands = shownRanks.map((rank, i) => {
    return drawBands(rank, namedTimelines, {
      scale,
      scheme,
      heights,
      top: top + i * namedTimelines.length * heights.band,
      hasLaneLabels: i === 0,
    });
  });
  const bottom = top + shownRanks.length * namedTimelines.length * heights.band;
  const legend = drawLegend(scheme, bottom + 52);
  const notes = [...namedTimelines.map(describeShares), ...describeError(timelines), ...facts];
  return document({
    title,
    description: [subtitle, ...notes].filter((words) => words !== "").join(" "),
    height: legend.bottom + notes.length * 20 + 28,
    definitions: hatchPatterns,
    body: [
      heading(title, subtitle),
      timeAxis(scale, MARGIN_TOP - 12, bottom + 2),
      ...utilizationSvgs,
      ...bands,
      legend.svg,
      footnotes(notes, legend.bottom + 16),
    ],
  });
}

/** Returns timelines with names. Throws an OptionError that names `where` for a value that is not a timeline. */
export function toNamedTimelines(where: string, timelines: Timelines): readonly NamedTimeline[] {
  const isPair = typeof timelines === "object" && timelines !== null && "predicted" in timelines;
  const namedTimelines = isPair
    ? (["predicted", "measured"] as const).map((name) => ({ name, timeline: timelines[name] }))
    : [{ name: "", timeline: timelines }];
  for (const { timeline } of namedTimelines) checkTimeline(where, timeline);
  return namedTimelines;
}

/** Returns evenly spread ranks, including the last to end. */
function selectRanks(timelines: readonly Timeline[], requestedRanks: readonly number[] | undefined): readonly number[] {
  const recordedRanks = [...new Set(timelines.flatMap(({ ranks }) => ranks.map(({ rank }) => rank)))].toSorted(
    (a, b) => a - b,
  );
  if (requestedRanks) return requestedRanks.filter((rank) => recordedRanks.includes(rank));
  if (recordedRanks.length * timelines.length <= MAX_RANKS_SHOWN) return recordedRanks;
  const sampledRanks = Array.from(
    { length: NUM_SAMPLED_RANKS },
    (_, i) => recordedRanks[Math.round((i * (recordedRanks.length - 1)) / (NUM_SAMPLED_RANKS - 1))]!,
  );
  const ends = timelines
    .flatMap(({ ranks }) => ranks)
    .map(({ rank, events }) => ({ rank, end: events.reduce((end, each) => Math.max(end, each.end), 0) }));
  const latestRank = ends.reduce((a, b) => (b.end > a.end ? b : a));
  return [...new Set([...sampledRanks, latestRank.rank])].toSorted((a, b) => a - b);
}

interface BandContext {
  readonly scale: TimeScale;
  readonly scheme: ColorScheme;
  readonly heights: BandHeights;
  readonly top: number;
  /** Whether to label the two lanes. */
  readonly hasLaneLabels: boolean;
}

function drawBands(
  rank: number,
  namedTimelines: readonly NamedTimeline[],
  { heights, top, hasLaneLabels, ...laneContext }: BandContext,
): string {
  const labelAttributes = `font-size="${Math.max(9, heights.fontSize - 2)}" fill="${theme.faint}"`;
  const rankTimelines = namedTimelines.map(({ timeline }) => timeline.ranks.find((each) => each.rank === rank));
  const coordinateTexts = Object.entries(rankTimelines.find((each) => each)?.at ?? {}).map(
    ([axis, index]) => `${axis} ${index}`,
  );
  const coordinateText =
    heights.band >= 40 ? truncate(coordinateTexts.join(" · "), heights.fontSize - 2, page.left - page.edge - 8) : "";
  const hasRoom = page.left - page.edge - 76 > textWidth(coordinateText, heights.fontSize - 2);
  const drawnLanes = namedTimelines.map(({ name }, i) => {
    const y = top + i * heights.band;
    const drawLaneLabel = (label: string, baseline: number) =>
      text(page.left - 10, baseline, label, `text-anchor="end" ${labelAttributes}`);
    return [
      name !== ""
        ? drawLaneLabel(name, y + heights.compute * 0.72)
        : hasLaneLabels
          ? drawLaneLabel("computes", y + heights.compute * 0.72)
          : "",
      name === "" && hasLaneLabels && hasRoom && heights.send >= 8
        ? drawLaneLabel("transfers", y + heights.compute + 3 + heights.send * 0.9)
        : "",
      drawLanes(rankTimelines[i]?.events ?? [], { ...laneContext, heights, top: y }),
    ].join("\n");
  });
  return [
    text(page.edge, top + heights.compute * 0.72, `rank ${rank}`, `font-size="${heights.fontSize}" font-weight="600"`),
    coordinateText === ""
      ? ""
      : text(page.edge, top + heights.compute * 0.72 + heights.fontSize + 3, coordinateText, labelAttributes),
    ...drawnLanes,
  ].join("\n");
}

function describeShares({ name, timeline }: NamedTimeline): string {
  const { computing, waiting, idle } = timeBreakdown(timeline);
  const namePrefix = name === "" ? "" : `${name[0]!.toUpperCase()}${name.slice(1)}: `;
  return `${namePrefix}${formatSeconds(timeline.seconds)}; share of rank time: ${formatPercent(computing)} computing, ${formatPercent(waiting)} waiting for transfers, ${formatPercent(idle)} idle.`;
}

function describeError(timelines: Timelines): readonly string[] {
  if (!("predicted" in timelines)) return [];
  const { predicted, measured } = timelines;
  if (measured.seconds <= 0) return [];
  const relativeError = predicted.seconds / measured.seconds - 1;
  return [
    `The prediction is ${formatPercent(Math.abs(relativeError))} ${relativeError < 0 ? "below" : "above"} the measurement.`,
  ];
}

const NUM_BINS = 240;
const UTILIZATION_HEIGHT = 128;

/**
 * Draws all ranks together, if they are too many for a row each: the share of ranks in each kernel or wait, over time.
 */
function drawUtilization(
  timeline: Timeline,
  name: string,
  plotContext: { scale: TimeScale; scheme: ColorScheme; top: number },
): Fragment {
  const { scale, scheme, top } = plotContext;
  const waitStyle = { name: "waits for transfers", fill: "url(#waiting)" };
  const layers = [...scheme.compute, waitStyle];
  const sharesByStyle = utilizationByStyle(timeline, { layers, waitStyle, scheme, seconds: scale.seconds });
  const stackedShares = new Float64Array(NUM_BINS);
  const areas = layers.map((style) => {
    const binShares = sharesByStyle.get(style)!;
    const lowerShares = Float64Array.from(stackedShares);
    for (let bin = 0; bin < NUM_BINS; bin++) stackedShares[bin] = Math.min(1, lowerShares[bin]! + binShares[bin]!);
    const mean = binShares.reduce((sum, each) => sum + each, 0) / NUM_BINS;
    return tooltip(
      `${style.name}: ${formatPercent(mean)} of the ranks, averaged over time`,
      drawArea(lowerShares, stackedShares, { style, scale, top }),
    );
  });
  const labelAttributes = `font-size="12" fill="${theme.faint}"`;
  const { computing } = timeBreakdown(timeline);
  const svg = [
    text(page.edge, top + 20, `${timeline.ranks.length} ranks`, `font-size="13" font-weight="600"`),
    ...(name === "" ? [] : [text(page.edge, top + 38, name, labelAttributes)]),
    text(page.edge, top + (name === "" ? 38 : 56), `${formatPercent(computing)} computing`, labelAttributes),
    ...[0, 0.5, 1].map((share) =>
      text(
        page.left - 10,
        top + UTILIZATION_HEIGHT * (1 - share) + 4,
        `${share * 100} %`,
        `text-anchor="end" ${labelAttributes}`,
      ),
    ),
    rect(
      { x: scale.x(0), y: top, width: page.width - page.right - scale.x(0), height: UTILIZATION_HEIGHT },
      `fill="${theme.track}"`,
    ),
    ...areas,
  ];
  return { svg: svg.join("\n"), bottom: top + UTILIZATION_HEIGHT + 28 };
}

interface UtilizationOptions {
  readonly layers: readonly Style[];
  readonly waitStyle: Style;
  readonly scheme: ColorScheme;
  readonly seconds: number;
}

/** Returns the share of ranks in each kernel or wait, by style and time bin. */
function utilizationByStyle(
  { ranks }: Timeline,
  { layers, waitStyle, scheme, seconds }: UtilizationOptions,
): Map<Style, Float64Array> {
  const sharesByStyle = new Map(layers.map((style) => [style, new Float64Array(NUM_BINS)]));
  const binSeconds = seconds / NUM_BINS;
  const weight = 1 / (binSeconds * ranks.length);
  for (const { events } of ranks) {
    const addShare = (style: Style, start: number, end: number): void => {
      const binShares = sharesByStyle.get(style)!;
      for (let bin = Math.max(0, Math.floor(start / binSeconds)); bin < NUM_BINS && bin * binSeconds < end; bin++) {
        binShares[bin]! +=
          weight * Math.max(0, Math.min(end, (bin + 1) * binSeconds) - Math.max(start, bin * binSeconds));
      }
    };
    for (const event of events) if (event.lane === "compute") addShare(scheme.getStyle(event), event.start, event.end);
    for (const { start, end } of waitIntervals(events)) addShare(waitStyle, start, end);
  }
  return sharesByStyle;
}

function drawArea(
  lowerShares: Float64Array,
  upperShares: Float64Array,
  plotContext: { style: Style; scale: TimeScale; top: number },
): string {
  const { style, scale, top } = plotContext;
  const x = (bin: number): string => formatCoordinate(scale.x((bin / NUM_BINS) * scale.seconds));
  const y = (share: number): string => formatCoordinate(top + UTILIZATION_HEIGHT * (1 - share));
  const upperEdge = Array.from(upperShares, (share, bin) => `${x(bin)} ${y(share)} ${x(bin + 1)} ${y(share)}`);
  const lowerEdge = Array.from(
    lowerShares,
    (share, bin) => `${x(bin + 1)} ${y(share)} ${x(bin)} ${y(share)}`,
  ).toReversed();
  const outline = `M${upperEdge.join(" ")} ${lowerEdge.join(" ")}z`;
  const fills = style.name.startsWith("attendBackward") ? [style.fill, "url(#backward)"] : [style.fill];
  return fills.map((fill) => `<path d="${outline}" fill="${fill}"/>`).join("");
}
