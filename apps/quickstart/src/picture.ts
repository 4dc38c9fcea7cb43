import {
  drawDispatch,
  type Timeline,
  formatBytes,
  formatPercent,
  formatSeconds,
  type TimelineEvent,
  timelineOf,
  timelineSvg,
  viewerHtml,
} from "@mosaic/attention/planner";
import { escape, rect, text } from "@mosaic/planner/svg";
import { describeShape, keyValueBytesPerToken, getMask, createPlacement } from "./backends.ts";
import { groupDigits } from "./format.ts";
import type { RankReport, Settings } from "./job.ts";
import { describeMask } from "./mask.ts";
import { rankColor, GRAY, drawLane, type LaneContext, getLaneSizes, communicationTop } from "./timeline-lane.ts";
import type { ExpectedRun } from "./prediction.ts";
import type { RankSchedule } from "./rank-schedule.ts";
import { type RunResult, summarize } from "./report.ts";
import type { Lane } from "./timeline.ts";

/** Returns the text of the picture. */
export function describeRun(result: RunResult): Caption {
  const { settings, reports } = result;
  const { tokens, ranks, numHeads, headDim, dtype, mask, placement, backward } = settings;
  const summary = summarize(result);
  const overlapText =
    summary.overlap === null ? "no bytes were sent" : `${formatPercent(summary.overlap)} of it hidden behind compute`;
  return {
    title: `${capitalize(settings.backend)} attention over a whole genome, ${ranks === 1 ? "on one rank" : `sharded over ${ranks} ranks`}`,
    subtitle: [
      "bacteriophage λ (NC_001416.1)",
      ...describeShape(settings),
      `${groupDigits(tokens)} tokens`,
      `${numHeads} heads × ${headDim}`,
      dtype,
      describeMask(mask),
      ...(placement === "contiguous" || ranks === 1 ? [] : [`${placement} placement`]),
      backward ? "forward and backward" : "forward",
    ].join(" · "),
    shardDescriptions: reports.map(describeShard),
    measurements: [
      `${formatSeconds(summary.seconds)} wall time. ${formatBytes(summary.bytesSent)} sent by all ranks; ${overlapText}.`,
      `Peak tensor memory: ${formatBytes(summary.peakBytesPerRank)} per rank, ${formatBytes(summary.peakBytesOneDevice)} on one device. Largest difference from single-device attention: ${summary.errorRatio.toFixed(2)} × the single-device error against float64.`,
    ],
  };
}

/** Number of ranges that are listed. The rest is counted, because dispatch may split a rank's rows into dozens. */
const MAX_RANGES = 4;

function describeShard({ rank, spans }: RankReport): string {
  const ranges = spans
    .filter(({ length }) => length > 0)
    .map(({ start, length, step }) => `${groupDigits(start)}–${groupDigits(start + (length - 1) * step)}`);
  const rangeTexts =
    ranges.length > MAX_RANGES
      ? [...ranges.slice(0, MAX_RANGES - 1), `${ranges.length - MAX_RANGES + 1} more`]
      : ranges;
  return `rank ${rank}: ${rangeTexts.length > 0 ? `positions ${rangeTexts.join(", ")}` : "no positions"}`;
}

const capitalize = (word: string): string => word.charAt(0).toUpperCase() + word.slice(1);

/** Text around the lanes of the picture. */
interface Caption {
  readonly title: string;
  readonly subtitle: string;
  /** Description of each rank's shard, indexed by rank. */
  readonly shardDescriptions: readonly string[];
  /** Measurements below the legend, one per line. */
  readonly measurements: readonly string[];
}

const WIDTH = 1120;
const MARGIN_LEFT = 164;
const MARGIN_RIGHT = 36;
const MARGIN_TOP = 112;
const TEXT_COLOR = "#1c2430";

/** Draws the timeline of compute and transfers as an SVG document, with two rows per rank. */
export function drawTimeline(lanes: readonly Lane[], caption: Caption): string {
  const sizes = getLaneSizes(lanes.length);
  const end = Math.max(
    1e-9,
    ...lanes.flatMap(({ computeBlocks, transfers }) => [...computeBlocks, ...transfers].map((block) => block.end)),
  );
  const x = (time: number): number => MARGIN_LEFT + (time / end) * (WIDTH - MARGIN_LEFT - MARGIN_RIGHT);
  const shouldShowQueries = lanes.some(({ rank, computeBlocks }) =>
    computeBlocks.some(({ queries }) => `${queries}` !== `${rank}`),
  );
  const bottom = MARGIN_TOP + lanes.length * sizes.laneHeight;
  const legend = drawLegend(lanes, {
    shardDescriptions: caption.shardDescriptions,
    top: bottom + 52,
    shouldShowQueries,
  });
  const height = legend.bottom + caption.measurements.length * 20 + 24;
  const textAttributes = `font-size="13" fill="${GRAY}"`;
  const body = [
    text(32, 44, caption.title, `font-size="22" font-weight="650"`),
    text(32, 70, caption.subtitle, `font-size="14" fill="${GRAY}"`),
    drawAxis(end, x, bottom),
    ...lanes.flatMap((lane, index) => {
      const laneContext = {
        x,
        end,
        top: MARGIN_TOP + index * sizes.laneHeight,
        sizes,
        ranks: lanes.length,
        shouldShowQueries,
      };
      return [drawLaneNames(lane, laneContext), drawLane(lane, laneContext)];
    }),
    legend.svg,
    ...caption.measurements.map((measurement, i) => text(32, legend.bottom + 16 + i * 20, measurement, textAttributes)),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" fill="${TEXT_COLOR}">
<title>${escape(caption.title)}</title>
${BACKWARD_PATTERN}
<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>
${body.join("\n")}
</svg>
`;
}

/** Stripes of backward blocks. */
const BACKWARD_PATTERN = `<defs><pattern id="backward" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.4" height="7" fill="#ffffff" fill-opacity="0.2"/></pattern></defs>`;

/** Draws the rank of a lane and the labels of its rows. */
function drawLaneNames({ rank }: Lane, laneContext: LaneContext): string {
  const { top, sizes } = laneContext;
  const fontSizeAttribute = `font-size="${sizes.fontSize}"`;
  const rowLabelAttributes = `text-anchor="end" ${fontSizeAttribute} fill="${GRAY}"`;
  return [
    text(32, top + sizes.computeHeight * 0.72, `rank ${rank}`, `${fontSizeAttribute} font-weight="600"`),
    text(MARGIN_LEFT - 12, top + sizes.computeHeight * 0.72, "computes", rowLabelAttributes),
    text(MARGIN_LEFT - 12, communicationTop(laneContext) + sizes.sendHeight * 0.9, "sends", rowLabelAttributes),
  ].join("\n");
}

function drawAxis(end: number, x: (time: number) => number, bottom: number): string {
  const step = roundTickStep(end / 8);
  const ticks = Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, i) => i * step);
  return ticks
    .map((time) =>
      [
        `<line x1="${x(time).toFixed(1)}" x2="${x(time).toFixed(1)}" y1="${MARGIN_TOP - 12}" y2="${bottom + 2}" stroke="#d9dee5" stroke-width="1"/>`,
        text(x(time), bottom + 20, formatSeconds(time), `text-anchor="middle" font-size="12" fill="${GRAY}"`),
      ].join("\n"),
    )
    .join("\n");
}

/** Returns 1, 2 or 5 times a power of ten, not below `minStep`. */
function roundTickStep(minStep: number): number {
  const power = 10 ** Math.floor(Math.log10(minStep));
  return power * (minStep <= power ? 1 : minStep <= 2 * power ? 2 : minStep <= 5 * power ? 5 : 10);
}

interface LegendOptions {
  readonly shardDescriptions: readonly string[];
  readonly top: number;
  readonly shouldShowQueries: boolean;
}

function drawLegend(
  lanes: readonly Lane[],
  { shardDescriptions, top, shouldShowQueries }: LegendOptions,
): { readonly svg: string; readonly bottom: number } {
  const stripesNote = lanes.some(({ computeBlocks }) => computeBlocks.some(({ isBackward }) => isBackward))
    ? " Stripes: backward."
    : "";
  const maxShardLabelLength = Math.max(...shardDescriptions.map((shard) => shard.length));
  const columns = Math.max(
    1,
    Math.min(4, shardDescriptions.length, Math.floor((WIDTH - 64) / (maxShardLabelLength * 7.6 + 36))),
  );
  const columnWidth = (WIDTH - 64) / columns;
  const legendEntries = shardDescriptions.map((shard, rank) => {
    const [x, y] = [32 + (rank % columns) * columnWidth, top + 24 + Math.floor(rank / columns) * 22];
    const swatch = rect({ x, y: y - 11, width: 13, height: 13 }, `fill="${rankColor(rank)}" rx="3"`);
    return swatch + text(x + 20, y, shard, `font-size="13"`);
  });
  const colorMeaning = shouldShowQueries
    ? "Color: rank that owns the keys and values; lower edge: rank that owns the queries; in transfers: rank that owns the rows."
    : "Color: rank that owns the attended or sent keys and values.";
  const head = text(32, top, `${colorMeaning}${stripesNote}`, `font-size="13" fill="${GRAY}"`);
  return {
    svg: [head, ...legendEntries].join("\n"),
    bottom: top + 24 + Math.ceil(shardDescriptions.length / columns) * 22,
  };
}

/** Draws the prediction beside the measurement, by rank and on one clock, as the planner does. */
export function drawComparison(
  { prediction, schedules }: Omit<Required<ExpectedRun>, "record">,
  reports: readonly RankReport[],
  { title, subtitle }: Caption,
): string {
  const labelTimeline = (timeline: Timeline): Timeline => ({
    ...timeline,
    ranks: timeline.ranks.map((rank) => ({ ...rank, events: labelStages(rank.events, schedules[rank.rank]!) })),
  });
  const [labeledPrediction, labeledMeasurement] = [labelTimeline(prediction), labelTimeline(measuredTimeline(reports))];
  const groupOption = schedules.some(({ tiles }) => tiles.some(({ stage }) => stage !== undefined))
    ? { group: stageLabel }
    : {};
  return timelineSvg(
    { predicted: labeledPrediction, measured: labeledMeasurement },
    { title, subtitle, ...groupOption },
  );
}

/** Labels attention events with their stages, if there are any. Tiles run in the order of the schedule. */
function labelStages(events: readonly TimelineEvent[], { tiles }: RankSchedule): readonly TimelineEvent[] {
  if (tiles.every(({ stage }) => stage === undefined)) return events;
  const numAttentionEvents = events.filter(isAttention).length;
  const numForwardTiles = tiles.filter(({ isBackward }) => !isBackward).length;
  // A device may run several kernels for a tile of backward.
  const kernelsPerBackwardTile =
    tiles.length > numForwardTiles ? (numAttentionEvents - numForwardTiles) / (tiles.length - numForwardTiles) : 1;
  let numKernels = 0;
  return events.map((event) => {
    if (!isAttention(event)) return event;
    const i = numKernels++;
    const tile =
      tiles[i < numForwardTiles ? i : numForwardTiles + Math.floor((i - numForwardTiles) / kernelsPerBackwardTile)];
    if (!tile) return event;
    const kernelName = tile.isBackward ? "attendBackward" : "attend";
    return { ...event, name: `${kernelName} ${tile.stage === undefined ? "own rows" : `stage ${tile.stage}`}` };
  });
}

/** Returns the group that determines an event's color if there are stages. Attention and transfers of a stage match. */
function stageLabel(event: TimelineEvent): string {
  const { lane, name, label = "" } = event;
  const [stageText] = /\bstage \d+\b/.exec(lane === "compute" ? name : label) ?? [];
  if (stageText !== undefined) return stageText;
  if (lane === "communication") return "other transfers";
  return isAttention(event) ? "own rows" : "other kernels";
}

function isAttention({ lane, name }: TimelineEvent): boolean {
  return lane === "compute" && name.startsWith("attend");
}

/** Draws load and transfers of the contiguous placement beside those of the chosen one. */
export function drawPlacements(settings: Settings): string {
  const { tokens, ranks, mask } = settings;
  return drawDispatch(getMask(settings), {
    queries: tokens,
    ranks,
    after: createPlacement(settings),
    bytesPerRow: keyValueBytesPerToken(settings),
    title: `${capitalize(describeMask(mask))}, on ${ranks} ${ranks === 1 ? "rank" : "ranks"}`,
  });
}

/** Returns an interactive page with the measurement, below the prediction if the machine was measured. */
export function drawPage(
  { prediction, record }: ExpectedRun,
  reports: readonly RankReport[],
  { title, subtitle, measurements }: Caption,
): string {
  const measurement = measuredTimeline(reports);
  const timelines = prediction ? { predicted: prediction, measured: measurement } : measurement;
  return viewerHtml(timelines, { title, subtitle, facts: measurements, record });
}

/** Returns the timeline after the common start barrier, without the time that compute waits for collectives. */
function measuredTimeline(reports: readonly RankReport[]): Timeline {
  const startTime = Math.min(...reports.map((report) => report.begin));
  const traces = reports.map(({ rank, coordinate, events }) => {
    const measuredEvents = events.filter(({ start }) => start / 1e9 >= startTime);
    return { rank, at: coordinate, events: measuredEvents.filter(({ name }) => !name.startsWith("collective ")) };
  });
  return timelineOf(traces);
}
