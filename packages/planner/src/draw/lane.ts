import type { TimelineEvent } from "../time/timeline.ts";
import { formatBytes, formatSeconds, type TimeScale } from "./axis.ts";
import { type ColorScheme, contrastColor, isBackward, type Style } from "./color-scheme.ts";
import { type Box, theme, page, rect, text, tooltip, textWidth } from "./svg.ts";
import { type Interval, waitIntervals } from "./intervals.ts";

/** Heights within a rank's band, and its font size. */
export interface BandHeights {
  readonly band: number;
  readonly compute: number;
  readonly send: number;
  readonly fontSize: number;
}

/** Returns the heights for a number of bands. More bands have thinner rows. */
export function bandHeights(bands: number): BandHeights {
  if (bands <= 8) return { band: 62, compute: 28, send: 12, fontSize: 13 };
  return bands <= 16
    ? { band: 40, compute: 18, send: 8, fontSize: 11 }
    : { band: 24, compute: 11, send: 5, fontSize: 9 };
}

export interface LaneContext {
  readonly scale: TimeScale;
  readonly top: number;
  readonly heights: BandHeights;
  readonly scheme: ColorScheme;
}

/** Draws what one rank did: compute, with waits for transfers, above its transfers. */
export function drawLanes(events: readonly TimelineEvent[], { scale, top, heights, scheme }: LaneContext): string {
  const sendTop = top + heights.compute + 3;
  const compute = mergeEvents(events, "compute", { scale, scheme });
  const communication = mergeEvents(events, "communication", { scale, scheme });
  const laneExtent = { x: scale.x(0), width: page.width - page.right - scale.x(0) };
  const rowIndices = assignRows(communication);
  const numRows = Math.max(1, ...rowIndices.map((each) => each + 1));
  const height = heights.send / numRows;
  const visibleWaits = waitIntervals(events).filter(({ start, end }) => scale.x(end) - scale.x(start) > 0.6);
  return [
    rect({ ...laneExtent, y: top, height: heights.compute }, `fill="${theme.track}" rx="3"`),
    rect({ ...laneExtent, y: sendTop, height: heights.send }, `fill="${theme.track}" rx="2"`),
    ...visibleWaits.map((wait) => drawWait(wait, barRectangle(wait, scale, { y: top, height: heights.compute }))),
    ...compute.map((run) => drawBar(run, barRectangle(run, scale, { y: top, height: heights.compute }))),
    ...compute.map((run) =>
      drawLabel(run, barRectangle(run, scale, { y: top, height: heights.compute }), heights.fontSize),
    ),
    ...communication.map((run, i) =>
      drawBar(run, barRectangle(run, scale, { y: sendTop + rowIndices[i]! * height, height })),
    ),
  ]
    .filter((part) => part !== "")
    .join("\n");
}

/** Adjacent events of one style that are too thin to be distinguished, merged into one. */
interface EventRun extends Interval {
  readonly style: Style;
  /** Name in the tooltip. */
  readonly name: string;
  readonly backward: boolean;
  readonly events: number;
  readonly bytes: number;
  readonly lane: TimelineEvent["lane"];
}

/** Widths in pixels below which a bar is merged with an adjacent one of its style, or omitted beside others. */
const MIN_BAR_WIDTH = 3;
const MIN_VISIBLE_WIDTH = 0.6;

function mergeEvents(
  events: readonly TimelineEvent[],
  lane: TimelineEvent["lane"],
  { scale, scheme }: Pick<LaneContext, "scale" | "scheme">,
): readonly EventRun[] {
  const runs: EventRun[] = [];
  for (const event of events.filter((each) => each.lane === lane).toSorted((a, b) => a.start - b.start)) {
    const style = scheme.getStyle(event);
    const last = runs.at(-1);
    const width = scale.x(event.end) - scale.x(event.start);
    const gap = last ? scale.x(event.start) - scale.x(last.end) : Number.POSITIVE_INFINITY;
    const run = {
      style,
      lane,
      backward: isBackward(event),
      start: event.start,
      end: event.end,
      events: 1,
      bytes: event.bytesSent ?? 0,
      name: getRunName(event, style.name),
    };
    if (last && last.style === style && gap < MIN_VISIBLE_WIDTH && gap > -MIN_BAR_WIDTH && width < MIN_BAR_WIDTH) {
      const end = Math.max(last.end, event.end);
      runs[runs.length - 1] = {
        ...last,
        name: style.name,
        end,
        events: last.events + 1,
        bytes: last.bytes + run.bytes,
      };
    } else if (width >= MIN_VISIBLE_WIDTH || gap >= MIN_VISIBLE_WIDTH) runs.push(run);
  }
  return runs;
}

/** Returns an event's name for its tooltip: its own, preceded by that of its group unless it contains that. */
function getRunName({ lane, name, label }: TimelineEvent, group: string): string {
  const eventLabel = lane === "compute" ? name : (label ?? name);
  return eventLabel.includes(group) ? eventLabel : `${group}, ${eventLabel}`;
}

/** Assigns each transfer a row, so that concurrent transfers are in different rows. */
function assignRows(runs: readonly EventRun[]): readonly number[] {
  const rowEnds: number[] = [];
  return runs.map(({ start, end }) => {
    const freeRow = rowEnds.findIndex((rowEnd) => rowEnd <= start + 1e-12);
    const row = freeRow < 0 ? rowEnds.length : freeRow;
    rowEnds[row] = end;
    return row;
  });
}

function barRectangle({ start, end }: Interval, { x }: TimeScale, { y, height }: Pick<Box, "y" | "height">): Box {
  const [left, right] = [x(start), x(end)];
  return {
    x: left,
    y,
    width: Math.max(MIN_VISIBLE_WIDTH, right - left - (right - left > MIN_BAR_WIDTH ? 0.8 : 0)),
    height,
  };
}

function drawBar({ style, name, backward, start, end, events, bytes, lane }: EventRun, box: Box): string {
  const countText = events > 1 ? ` (${events} events)` : "";
  const sentText = lane === "communication" ? `, sends ${formatBytes(bytes)}` : "";
  const tooltipText = `${name}${countText}${sentText}: ${formatSeconds(start)} to ${formatSeconds(end)}, ${formatSeconds(end - start)}`;
  const cornerAttribute = box.width > 2 * MIN_BAR_WIDTH ? ` rx="${Math.min(3, box.height / 3).toFixed(1)}"` : "";
  const drawFilledBar = (fill: string): string => rect(box, `fill="${fill}"${cornerAttribute}`);
  return tooltip(tooltipText, drawFilledBar(style.fill) + (backward ? drawFilledBar("url(#backward)") : ""));
}

function drawLabel({ style }: EventRun, box: Box, size: number): string {
  if (box.width < textWidth(style.name, size) + 3) return "";
  const textAttributes = `text-anchor="middle" font-size="${size}" font-weight="550"`;
  return text(
    box.x + box.width / 2,
    box.y + box.height * 0.68,
    style.name,
    `${textAttributes} fill="${contrastColor(style.fill)}"`,
  );
}

function drawWait({ start, end }: Interval, box: Box): string {
  return tooltip(
    `waits for transfers: ${formatSeconds(start)} to ${formatSeconds(end)}, ${formatSeconds(end - start)}`,
    rect(box, `fill="url(#waiting)"`),
  );
}
