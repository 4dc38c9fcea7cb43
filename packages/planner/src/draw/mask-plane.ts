import { clipQueries, OptionError, type Slice, sliceArea, type Span, visibleKeyRange, visibleRows } from "@mosaic/core";
import { tickStep } from "./axis.ts";
import { paletteColor } from "./color-scheme.ts";
import { formatCoordinate, text, theme, tooltip } from "./svg.ts";

// A mask in the plane of queries, from the top, and keys, from the left. Each slice is a polygon.

/** Minimum length of the smaller side of a plane, which is otherwise in proportion to the larger one. */
const MIN_PLOT_SIZE = 48;
/** Maximum number of polygons with tooltips and gaps. More are drawn as one path per color. */
const MAX_TOOLTIPS = 1000;
const MAX_POLYGONS = 200_000;
/** Minimum height of rows that are drawn as steps. Lower rows are drawn as a line through their middles. */
const MIN_STEP_HEIGHT = 4;

/** Number of queries and keys of a plane. */
export interface PlaneLengths {
  readonly queries: number;
  readonly keys: number;
}

/** Slices of one color. */
export interface SliceGroup {
  /** Name in the legend. */
  readonly name: string;
  /** Name that tooltips show before the slice type. */
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

/** Groups slices by type. */
export function groupByType(where: string, slices: readonly Slice[]): readonly SliceGroup[] {
  checkPolygonCount(where, slices.length);
  return Object.entries(typeNames).flatMap(([type, name], i) => {
    const slicesOfType = slices.filter((maskSlice) => maskSlice.type === type);
    if (slicesOfType.length === 0) return [];
    const countText = `${name}: ${formatCount(slicesOfType.length)} ${slicesOfType.length === 1 ? "slice" : "slices"}`;
    return [{ name: countText, fill: paletteColor(i), slices: slicesOfType }];
  });
}

/** Cuts slices where the queries change their shard. Returns the slices of each shard. */
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

/** Returns the number of visible pairs of some slices. */
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

/** Splits a strided span into spans of one position each. */
export function contiguousSpans(span: Span): readonly Span[] {
  if (span.step === 1) return [span];
  return Array.from({ length: span.length }, (_, i) => ({ start: span.start + i * span.step, length: 1, step: 1 }));
}

function clipSlices(slices: readonly Slice[], { start, length }: Span): readonly Slice[] {
  const end = start + length;
  return slices.flatMap((slice) => {
    if (slice.q1 <= start || end <= slice.q0) return [];
    // Rows at the end of a slanted border may attend to no key.
    const clippedSlice = clipQueries(slice, start, end);
    return clippedSlice ? [clippedSlice] : [];
  });
}

/** Position of the plane on the page, and of its queries and keys. */
export interface PlaneScale {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  x(key: number): number;
  y(query: number): number;
}

/** Creates the scale of a plane whose longer side has `side` pixels. */
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

/** Draws the polygons of all groups. */
export function drawGroups(groups: readonly SliceGroup[], scale: PlaneScale): readonly string[] {
  const numSlices = groups.reduce((sum, { slices }) => sum + slices.length, 0);
  if (numSlices <= MAX_TOOLTIPS) return groups.flatMap((group) => drawSlices(group, scale));
  return groups.map(({ slices: pieces, fill, owner }) => {
    const outlines = pieces.map((piece) => slicePath(piece, scale)).join("");
    // A stroke closes the seams within one color. With several colors, only the last one would remain in a pixel.
    const seamStroke = owner === undefined ? ` stroke="${fill}" stroke-width="0.5"` : "";
    return outlines === "" ? "" : `<path d="${outlines}" fill="${fill}"${seamStroke}/>`;
  });
}

function drawSlices({ slices: pieces, fill, owner }: SliceGroup, scale: PlaneScale): readonly string[] {
  return pieces.map((piece) => {
    const outline = slicePath(piece, scale);
    if (outline === "") return "";
    const minExtent = Math.min(scale.x(piece.k1) - scale.x(piece.k0), scale.y(piece.q1) - scale.y(piece.q0));
    // A gap shows where slices meet, unless it would hide them. Slices thinner than a pixel are drawn one pixel wide.
    const [color, width] = minExtent < 1 ? [fill, 1 - minExtent] : [theme.paper, Math.min(1, minExtent / 8)];
    const strokeAttributes = `stroke="${color}" stroke-width="${formatCoordinate(width)}"`;
    return tooltip(describeSlice(piece, owner), `<path d="${outline}" fill="${fill}" ${strokeAttributes}/>`);
  });
}

function describeSlice({ q0, q1, k0, k1, type }: Slice, owner: string | undefined): string {
  const kind = owner === undefined ? typeNames[type] : `${owner}, ${typeNames[type]}`;
  return `queries ${q0} to ${q1 - 1}, keys ${k0} to ${k1 - 1}: ${kind}`;
}

/** Returns the border of a slice's visible part, as commands of a path; "" if nothing is visible. */
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

/** Draws round positions and the ends, `gap` pixels outside the plane. */
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

/**
 * Returns round positions from 0, as many as have room, and the length, which replaces a position that is too near to
 * it.
 */
function tickPositions(length: number, maxTicks: number): readonly number[] {
  const step = Math.max(1, tickStep(length / Math.max(1, maxTicks)));
  const multiples = Array.from({ length: Math.floor(length / step) + 1 }, (_, i) => i * step);
  return [...multiples.filter((position) => length - position >= 0.7 * step), length];
}

const groupedNumberFormat = new Intl.NumberFormat("en-US");

/** Formats a count with thousands separators. */
export function formatCount(count: number): string {
  return groupedNumberFormat.format(count);
}
