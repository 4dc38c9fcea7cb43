import {
  checkArgument,
  clipQueries,
  defineOptions,
  type Mask,
  OptionError,
  option,
  type OptionsOf,
  resolvePlacement,
  resolveShards,
  resolveSlices,
  visibleKeyRange,
  visibleRows,
  type Slice,
  sliceArea,
  type Span,
} from "@mosaic/core";
import { formatPercent, tickStep } from "./axis.ts";
import { paletteColor } from "./color-scheme.ts";
import { document, formatCoordinate, heading, isText, page, rect, text, theme, tooltip, truncate } from "./svg.ts";

export const drawMaskOptions = defineOptions("drawMask", {
  /** Length of the queries' sequence. */
  queries: option.integer({ min: 1 }),
  /** Length of the keys' sequence. Default: as many as queries. */
  keys: option.integer({ min: 1, optional: true }),
  /** The heading, and the document's title. Default: the mask's name. */
  title: option.custom("a string", isText, { optional: true }),
  /** What stands before the area in the line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
  /** How the queries are cut into shards, which have a color each; needs `shards`. Default: colors by slice type. */
  placement: option.placement({ optional: true }),
  /** How many shards there are. Default: none. */
  shards: option.integer({ min: 1, optional: true }),
});
/** What a picture of a mask shows. */
export type DrawMaskOptions = OptionsOf<typeof drawMaskOptions>;

/** Of the longer sequence; the other one is in proportion, but never a line. */
const SIDE = 640;
const MIN_SIDE = 48;
const TOP = 150;
const LEFT = 150;
const LINE_HEIGHT = 22;
const MAX_ENTRIES = 28;
/** More are one path of each color: without tooltips, and without gaps between them. */
const MAX_TOOLTIPS = 1000;
const MAX_PIECES = 200_000;
/** Rows that are at least as high are drawn as steps; lower ones as a line through their middles. */
const STEP_PIXELS = 4;

/**
 * Draws a mask as an SVG document: queries from the top, keys from the left, each slice a polygon, with the number of visible
 * pairs. With `placement` and `shards` the slices are cut where the queries change their shard, and the legend has each
 * shard's pairs, compared with the mean.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { drawMask } from "@mosaic/planner";
 * const mask = masks.documents([300, 500, 200], masks.slidingWindow(128));
 * drawMask(mask, { queries: 1000 }).includes("103,616 visible pairs"); // => true
 * drawMask(mask, { queries: 1000, placement: "zigzag", shards: 4 }).includes("shard 3"); // => true
 * ```
 * @throws What the mask throws for the lengths; OptionError for one of `placement` and `shards` alone, and for what would be
 *   more than 200 000 polygons.
 */
export function drawMask(mask: Mask, options: DrawMaskOptions): string {
  checkArgument("drawMask", mask, option.mask());
  const { queries, keys = queries, title = mask.name, subtitle, placement, shards } = drawMaskOptions.parse(options);
  if ((placement === undefined) !== (shards === undefined)) {
    const [given, missing] = placement === undefined ? ["shards", "placement"] : ["placement", "shards"];
    throw new OptionError({ where: "drawMask", expected: `${missing} beside ${given}`, received: `${given} alone` });
  }
  const slices = resolveSlices(mask, queries, keys);
  const groups =
    placement === undefined
      ? groupByType(slices)
      : groupByShard(slices, resolveShards(resolvePlacement(placement), shards!, queries));
  const scale = scaleOf(queries, keys);
  const area = slices.reduce((sum, slice) => sum + sliceArea(slice), 0);
  const facts = `${formatCount(area)} visible pairs, ${formatPercent(area / (queries * keys))} of ${formatCount(queries)} × ${formatCount(keys)}`;
  const line = subtitle === "" ? facts : `${subtitle} · ${facts}`;
  const plane = { x: LEFT, y: TOP, width: scale.width, height: scale.height };
  const bottom = Math.max(TOP + scale.height, TOP + Math.min(MAX_ENTRIES + 1, groups.length) * LINE_HEIGHT);
  return document({
    title,
    description: `${line}. ${formatCount(slices.length)} slices.`,
    height: bottom + 36,
    body: [
      // Bold letters are wide.
      heading(truncate(title, 27, page.width - 2 * page.edge), line),
      rect(plane, `fill="${theme.track}"`),
      ...drawGroups(groups, scale),
      rect(plane, `fill="none" stroke="${theme.rule}"`),
      drawAxes({ queries, keys }, scale),
      drawLegend(groups, LEFT + scale.width + 28),
    ],
  });
}

/** Slices of one color. */
interface Group {
  readonly name: string;
  readonly fill: string;
  readonly pieces: readonly Slice[];
}

const typeNames = {
  full: "full",
  causal: "causal",
  inverseCausal: "inverse causal",
  bidirectionalCausal: "bidirectional causal",
} as const;

function groupByType(slices: readonly Slice[]): readonly Group[] {
  return Object.entries(typeNames).flatMap(([type, name], i) => {
    const pieces = slices.filter((slice) => slice.type === type);
    if (pieces.length === 0) return [];
    const counted = `${name}: ${formatCount(pieces.length)} ${pieces.length === 1 ? "slice" : "slices"}`;
    return [{ name: counted, fill: paletteColor(i), pieces }];
  });
}

function groupByShard(slices: readonly Slice[], shards: readonly (readonly Span[])[]): readonly Group[] {
  checkPieces(shards.flat().reduce((sum, { length, step }) => sum + (step === 1 ? 1 : length), 0));
  const clipped = shards.map((spans) => spans.flatMap(contiguousSpans).flatMap((span) => clipTo(slices, span)));
  checkPieces(clipped.reduce((sum, pieces) => sum + pieces.length, 0));
  const areas = clipped.map((pieces) => pieces.reduce((sum, piece) => sum + sliceArea(piece), 0));
  const mean = areas.reduce((sum, area) => sum + area, 0) / areas.length;
  return clipped.map((pieces, i) => {
    const load = mean === 0 ? "no pairs" : `${(areas[i]! / mean).toFixed(2)} × the mean`;
    return { name: `shard ${i}: ${load}`, fill: paletteColor(i), pieces };
  });
}

function checkPieces(count: number): void {
  if (count <= MAX_PIECES) return;
  throw new OptionError({
    where: "drawMask",
    expected: `at most ${formatCount(MAX_PIECES)} pieces`,
    received: formatCount(count),
    remedy: "draw fewer queries, or a placement of longer spans",
  });
}

/** A strided span is as many spans as it has positions. */
function contiguousSpans(span: Span): readonly Span[] {
  if (span.step === 1) return [span];
  return Array.from({ length: span.length }, (_, i) => ({ start: span.start + i * span.step, length: 1, step: 1 }));
}

function clipTo(slices: readonly Slice[], { start, length }: Span): readonly Slice[] {
  const end = start + length;
  return slices.flatMap((slice) => {
    if (slice.q1 <= start || end <= slice.q0) return [];
    return [clipQueries(slice, start, end)!];
  });
}

interface Scale {
  readonly width: number;
  readonly height: number;
  x(key: number): number;
  y(query: number): number;
}

function scaleOf(queries: number, keys: number): Scale {
  const longer = Math.max(queries, keys);
  const width = Math.max(MIN_SIDE, (keys / longer) * SIDE);
  const height = Math.max(MIN_SIDE, (queries / longer) * SIDE);
  return {
    width,
    height,
    x: (key) => LEFT + (key / keys) * width,
    y: (query) => TOP + (query / queries) * height,
  };
}

function drawGroups(groups: readonly Group[], scale: Scale): readonly string[] {
  const count = groups.reduce((sum, { pieces }) => sum + pieces.length, 0);
  if (count <= MAX_TOOLTIPS) return groups.flatMap((group) => drawPieces(group, scale));
  return groups.map(({ pieces, fill }) => {
    const outlines = pieces.map((piece) => outlineOf(piece, scale)).join("");
    return outlines === "" ? "" : `<path d="${outlines}" fill="${fill}" stroke="${fill}" stroke-width="0.5"/>`;
  });
}

function drawPieces({ pieces, fill, name }: Group, scale: Scale): readonly string[] {
  return pieces.map((piece) => {
    const outline = outlineOf(piece, scale);
    if (outline === "") return "";
    const smaller = Math.min(scale.x(piece.k1) - scale.x(piece.k0), scale.y(piece.q1) - scale.y(piece.q0));
    // A gap shows where slices meet, unless it would hide them; of what is thinner than a pixel one is drawn.
    const [color, width] = smaller < 1 ? [fill, 1 - smaller] : [theme.paper, Math.min(1, smaller / 8)];
    const stroke = `stroke="${color}" stroke-width="${formatCoordinate(width)}"`;
    return tooltip(describe(piece, name), `<path d="${outline}" fill="${fill}" ${stroke}/>`);
  });
}

function describe({ q0, q1, k0, k1, type }: Slice, group: string): string {
  const kind = group.startsWith("shard") ? `${group.split(":")[0]}, ${typeNames[type]}` : typeNames[type];
  return `queries ${q0} to ${q1 - 1}, keys ${k0} to ${k1 - 1}: ${kind}`;
}

/** The border of what a slice shows, as commands of a path; nothing for a slice that shows nothing. */
function outlineOf(slice: Slice, { x, y }: Scale): string {
  const rows = visibleRows({ start: slice.q0, length: slice.q1 - slice.q0, step: 1 }, slice);
  if (rows.length === 0) return "";
  const [first, last] = [rows.start, rows.start + rows.length - 1];
  const inSteps = y(1) - y(0) >= STEP_PIXELS;
  const border = (side: "start" | "end"): (readonly [key: number, query: number])[] => {
    const [from, to] = [visibleKeyRange(slice, first)[side], visibleKeyRange(slice, last)[side]];
    if (from === to || !inSteps) {
      const half = from === to ? 0 : 0.5;
      return [
        [from - half, first],
        [to + half, last + 1],
      ];
    }
    return Array.from({ length: rows.length }, (_, i) => first + i).flatMap((q) => [
      [visibleKeyRange(slice, q)[side], q] as const,
      [visibleKeyRange(slice, q)[side], q + 1] as const,
    ]);
  };
  const corners = [...border("end"), ...border("start").toReversed()];
  const points = corners.map(([key, query]) => `${formatCoordinate(x(key))} ${formatCoordinate(y(query))}`);
  return `M${points.join("L")}Z`;
}

/** Positions at round numbers, and the ends. */
function drawAxes({ queries, keys }: { queries: number; keys: number }, { x, y, width, height }: Scale): string {
  const faint = `font-size="12" fill="${theme.faint}"`;
  const columns = ticksOf(keys, width / 80).map((key) => {
    const at = formatCoordinate(x(key));
    const line = `<line x1="${at}" x2="${at}" y1="${TOP - 5}" y2="${TOP}" stroke="${theme.faint}"/>`;
    return line + text(x(key), TOP - 10, formatCount(key), `text-anchor="middle" ${faint}`);
  });
  const rows = ticksOf(queries, height / 40).map((query) => {
    const at = formatCoordinate(y(query));
    const line = `<line x1="${LEFT - 5}" x2="${LEFT}" y1="${at}" y2="${at}" stroke="${theme.faint}"/>`;
    return line + text(LEFT - 10, y(query) + 4, formatCount(query), `text-anchor="end" ${faint}`);
  });
  return [
    text(LEFT + width / 2, TOP - 34, "keys →", `text-anchor="middle" font-size="13" fill="${theme.faint}"`),
    text(LEFT - 10, TOP - 34, "queries ↓", `text-anchor="end" font-size="13" fill="${theme.faint}"`),
    ...columns,
    ...rows,
  ].join("\n");
}

/** Round positions from 0, as many as have room, and the length, which displaces one that is too near to it. */
function ticksOf(length: number, most: number): readonly number[] {
  const step = Math.max(1, tickStep(length / Math.max(1, most)));
  const round = Array.from({ length: Math.floor(length / step) + 1 }, (_, i) => i * step);
  return [...round.filter((position) => length - position >= 0.7 * step), length];
}

function drawLegend(groups: readonly Group[], left: number): string {
  const entry = (words: string, fill: string, i: number): string => {
    const y = TOP + 12 + i * LINE_HEIGHT;
    const square = rect({ x: left, y: y - 11, width: 13, height: 13 }, `fill="${fill}" rx="3"`);
    return square + text(left + 20, y, truncate(words, 13, page.width - left - 24), `font-size="13"`);
  };
  const shown = groups.slice(0, MAX_ENTRIES).map(({ name, fill }, i) => entry(name, fill, i));
  const others = groups.length - shown.length;
  return [...shown, ...(others > 0 ? [entry(`and ${others} more`, theme.rule, shown.length)] : [])].join("\n");
}

const grouped = new Intl.NumberFormat("en-US");

function formatCount(count: number): string {
  return grouped.format(count);
}
