import { clipQueries, OptionError, type Slice, sliceArea, type Span, visibleKeyRange, visibleRows } from "@mosaic/core";
import { tickStep } from "./axis.ts";
import { paletteColor } from "./color-scheme.ts";
import { formatCoordinate, text, theme, tooltip } from "./svg.ts";

// A mask in the plane of queries, from the top, and keys, from the left: each slice a polygon.

/** The smaller side of a plane is in proportion to the larger one, but never a line. */
const MIN_PLOT_SIZE = 48;
/** More are one path of each color: without tooltips, and without gaps between them. */
const MAX_TOOLTIPS = 1000;
const MAX_POLYGONS = 200_000;
/** Rows that are at least as high are drawn as steps; lower ones as a line through their middles. */
const MIN_STEP_HEIGHT = 4;

/** How many queries and keys a plane has. */
export interface PlaneLengths {
  readonly queries: number;
  readonly keys: number;
}

/** Slices of one color. */
export interface SliceGroup {
  /** What the legend states. */
  readonly name: string;
  /** What tooltips add to the type. */
  readonly owner?: string;
  readonly fill: string;
  readonly slices: readonly Slice[];
}

const typeNames = {
  full: "full",
  causal: "causal",
  inverseCausal: "inverse causal",
  bidirectionalCausal: "bidirectional causal",
} as const;

/** Those of a type are a group. */
export function groupByType(slices: readonly Slice[]): readonly SliceGroup[] {
  return Object.entries(typeNames).flatMap(([type, name], i) => {
    const slicesOfType = slices.filter((maskSlice) => maskSlice.type === type);
    if (slicesOfType.length === 0) return [];
    const countText = `${name}: ${formatCount(slicesOfType.length)} ${slicesOfType.length === 1 ? "slice" : "slices"}`;
    return [{ name: countText, fill: paletteColor(i), slices: slicesOfType }];
  });
}

/** The slices, cut where the queries change their shard: for each shard its own. */
export function slicesByShard(
  where: string,
  slices: readonly Slice[],
  shards: readonly (readonly Span[])[],
): readonly (readonly Slice[])[] {
  checkPolygonCount(
    where,
    shards.flat().reduce((sum, { length, step }) => sum + (step === 1 ? 1 : length), 0),
  );
  const shardSlices = shards.map((spans) => spans.flatMap(contiguousSpans).flatMap((span) => clipSlices(slices, span)));
  checkPolygonCount(
    where,
    shardSlices.reduce((sum, pieces) => sum + pieces.length, 0),
  );
  return shardSlices;
}

/** Visible pairs of some slices. */
export function totalArea(slices: readonly Slice[]): number {
  return slices.reduce((sum, slice) => sum + sliceArea(slice), 0);
}

function checkPolygonCount(where: string, count: number): void {
  if (count <= MAX_POLYGONS) return;
  throw new OptionError({
    where,
    expected: `at most ${formatCount(MAX_POLYGONS)} shapes`,
    received: formatCount(count),
    remedy: "draw fewer queries, or use a placement with longer spans",
  });
}

/** A strided span is as many spans as it has positions. */
export function contiguousSpans(span: Span): readonly Span[] {
  if (span.step === 1) return [span];
  return Array.from({ length: span.length }, (_, i) => ({ start: span.start + i * span.step, length: 1, step: 1 }));
}

function clipSlices(slices: readonly Slice[], { start, length }: Span): readonly Slice[] {
  const end = start + length;
  return slices.flatMap((slice) => {
    if (slice.q1 <= start || end <= slice.q0) return [];
    // Rows at the end of a slanted border may see no key.
    const clippedSlice = clipQueries(slice, start, end);
    return clippedSlice ? [clippedSlice] : [];
  });
}

/** Where the plane lies on the page, and where its positions do. */
export interface PlaneScale {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  x(key: number): number;
  y(query: number): number;
}

/** A plane whose longer side has `side` pixels. */
export function planeScale(
  { queries, keys }: PlaneLengths,
  { left, top, side }: { readonly left: number; readonly top: number; readonly side: number },
): PlaneScale {
  const maxLength = Math.max(queries, keys);
  const width = Math.max(MIN_PLOT_SIZE, (keys / maxLength) * side);
  const height = Math.max(MIN_PLOT_SIZE, (queries / maxLength) * side);
  return {
    left,
    top,
    width,
    height,
    x: (key) => left + (key / keys) * width,
    y: (query) => top + (query / queries) * height,
  };
}

/** The polygons of all groups. */
export function drawGroups(groups: readonly SliceGroup[], scale: PlaneScale): readonly string[] {
  const numSlices = groups.reduce((sum, { slices }) => sum + slices.length, 0);
  if (numSlices <= MAX_TOOLTIPS) return groups.flatMap((group) => drawSlices(group, scale));
  return groups.map(({ slices: pieces, fill, owner }) => {
    const outlines = pieces.map((piece) => slicePath(piece, scale)).join("");
    // A stroke closes the seams of one color; of several it would leave the last one of those in a pixel.
    const seamStroke = owner === undefined ? ` stroke="${fill}" stroke-width="0.5"` : "";
    return outlines === "" ? "" : `<path d="${outlines}" fill="${fill}"${seamStroke}/>`;
  });
}

function drawSlices({ slices: pieces, fill, owner }: SliceGroup, scale: PlaneScale): readonly string[] {
  return pieces.map((piece) => {
    const outline = slicePath(piece, scale);
    if (outline === "") return "";
    const minExtent = Math.min(scale.x(piece.k1) - scale.x(piece.k0), scale.y(piece.q1) - scale.y(piece.q0));
    // A gap shows where slices meet, unless it would hide them; of what is thinner than a pixel one is drawn.
    const [color, width] = minExtent < 1 ? [fill, 1 - minExtent] : [theme.paper, Math.min(1, minExtent / 8)];
    const strokeAttributes = `stroke="${color}" stroke-width="${formatCoordinate(width)}"`;
    return tooltip(describeSlice(piece, owner), `<path d="${outline}" fill="${fill}" ${strokeAttributes}/>`);
  });
}

function describeSlice({ q0, q1, k0, k1, type }: Slice, owner: string | undefined): string {
  const kind = owner === undefined ? typeNames[type] : `${owner}, ${typeNames[type]}`;
  return `queries ${q0} to ${q1 - 1}, keys ${k0} to ${k1 - 1}: ${kind}`;
}

/** The border of what a slice shows, as commands of a path; nothing for a slice that shows nothing. */
function slicePath(slice: Slice, { x, y }: PlaneScale): string {
  const rows = visibleRows({ start: slice.q0, length: slice.q1 - slice.q0, step: 1 }, slice);
  if (rows.length === 0) return "";
  const [first, last] = [rows.start, rows.start + rows.length - 1];
  const areStepsVisible = y(1) - y(0) >= MIN_STEP_HEIGHT;
  const borderPoints = (side: "start" | "end"): (readonly [key: number, query: number])[] => {
    const [startKey, endKey] = [visibleKeyRange(slice, first)[side], visibleKeyRange(slice, last)[side]];
    if (startKey === endKey || !areStepsVisible) {
      const halfStep = startKey === endKey ? 0 : 0.5;
      return [
        [startKey - halfStep, first],
        [endKey + halfStep, last + 1],
      ];
    }
    return Array.from({ length: rows.length }, (_, i) => first + i).flatMap((q) => [
      [visibleKeyRange(slice, q)[side], q] as const,
      [visibleKeyRange(slice, q)[side], q + 1] as const,
    ]);
  };
  const corners = [...borderPoints("end"), ...borderPoints("start").toReversed()];
  const points = corners.map(([key, query]) => `${formatCoordinate(x(key))} ${formatCoordinate(y(query))}`);
  return `M${points.join("L")}Z`;
}

/** Positions at round numbers, and the ends, outside the plane; `gap` pixels lie between. */
export function drawPlaneAxes({ queries, keys }: PlaneLengths, scale: PlaneScale, gap = 0): string {
  const { x, y, width, height } = scale;
  const [left, top] = [scale.left - gap, scale.top - gap];
  const labelAttributes = `font-size="12" fill="${theme.faint}"`;
  const columns = tickPositions(keys, width / 80).map((key) => {
    const tickX = formatCoordinate(x(key));
    const line = `<line x1="${tickX}" x2="${tickX}" y1="${top - 5}" y2="${top}" stroke="${theme.faint}"/>`;
    return line + text(x(key), top - 10, formatCount(key), `text-anchor="middle" ${labelAttributes}`);
  });
  const rows = tickPositions(queries, height / 40).map((query) => {
    const tickY = formatCoordinate(y(query));
    const line = `<line x1="${left - 5}" x2="${left}" y1="${tickY}" y2="${tickY}" stroke="${theme.faint}"/>`;
    return line + text(left - 10, y(query) + 4, formatCount(query), `text-anchor="end" ${labelAttributes}`);
  });
  return [
    text(scale.left + width / 2, top - 34, "keys →", `text-anchor="middle" font-size="13" fill="${theme.faint}"`),
    text(left - 10, top - 34, "queries ↓", `text-anchor="end" font-size="13" fill="${theme.faint}"`),
    ...columns,
    ...rows,
  ].join("\n");
}

/** Round positions from 0, as many as have room, and the length, which displaces one that is too near to it. */
function tickPositions(length: number, maxTicks: number): readonly number[] {
  const step = Math.max(1, tickStep(length / Math.max(1, maxTicks)));
  const multiples = Array.from({ length: Math.floor(length / step) + 1 }, (_, i) => i * step);
  return [...multiples.filter((position) => length - position >= 0.7 * step), length];
}

const groupedNumberFormat = new Intl.NumberFormat("en-US");

/** A count with its thousands apart. */
export function formatCount(count: number): string {
  return groupedNumberFormat.format(count);
}
