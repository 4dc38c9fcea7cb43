import {
  checkArgument,
  type Mask,
  option,
  type Placement,
  resolvePlacement,
  resolveShards,
  resolveSlices,
  type Slice,
  type Span,
  visibleKeyRange,
  visibleRows,
} from "@mosaic/core";
import { formatBytes, formatPercent, formatSeconds, tickStep } from "./axis.ts";
import { paletteColor } from "./color-scheme.ts";
import { type DrawDispatchOptions, drawDispatchOptions } from "./dispatch-options.ts";
import {
  contiguousSpans,
  drawGroups,
  drawPlaneAxes,
  formatCount,
  type PlaneLengths,
  planeScale,
  type SliceGroup,
  slicesByShard,
  totalArea,
} from "./mask-plane.ts";
import {
  type Box,
  document,
  footnotes,
  formatCoordinate,
  heading,
  page,
  rect,
  text,
  textWidth,
  theme,
  tooltip,
  truncate,
} from "./svg.ts";

type Placements = DrawDispatchOptions["after"];

/** Layout of the two columns. Drawings begin `PLANE_INSET` right of a column's left edge, after the labels. */
const COLUMN_GAP = 40;
const COLUMN_WIDTH = (page.width - 2 * page.edge - COLUMN_GAP) / 2;
const PLANE_INSET = 86;
const PLOT_SIZE = COLUMN_WIDTH - PLANE_INSET - 8;
/** Top of the columns' titles, and of the mask. */
const MARGIN_TOP = 116;
const PLANE_TOP = 226;
/** Width of the borders that show which rank holds each position. */
const OWNER_BORDER_WIDTH = 9;

/**
 * Draws the effect of a dispatch as an SVG document of two columns, for a placement before and one after. Each column
 * shows the mask with its rows in the color of their rank, and along its borders the ranks that hold queries and
 * keys; the number of key rows that each rank receives from each other rank, which are those visible to its queries,
 * each once, as `flex` moves them; and the visible pairs of every rank relative to the mean, with the rows that it
 * receives and sends. Equal lengths mean equal numbers in both columns.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { drawDispatch } from "@mosaic/planner";
 * const svg = drawDispatch(masks.causal(), { queries: 64, ranks: 2, after: "zigzag" });
 * svg.includes("maximum load 1.49 → 1.00 × the mean"); // => true
 * ```
 * @throws The errors of the mask and the placements for these lengths; OptionError for more than 200 000 polygons.
 */
export function drawDispatch(mask: Mask, options: DrawDispatchOptions): string {
  checkArgument("drawDispatch", mask, option.mask());
  const {
    queries,
    keys = queries,
    ranks,
    before,
    after,
    bytesPerRow,
    times,
    ...titleOptions
  } = drawDispatchOptions.parse(options);
  const { title = `${mask.name} on ${formatCount(ranks)} ${ranks === 1 ? "rank" : "ranks"}`, subtitle } = titleOptions;
  const slices = resolveSlices(mask, queries, keys);
  const computePlacementLoad = (name: string, placement: Placements): PlacementLoad =>
    computeLoad(name, placement, { slices, ranks, lengths: { queries, keys } });
  const columns = [computePlacementLoad("before", before), computePlacementLoad("after", after)] as const;
  const formatRows = (rows: number): string =>
    bytesPerRow === undefined ? formatCount(rows) : formatBytes(rows * bytesPerRow);
  const unit = bytesPerRow === undefined ? " rows" : "";
  const change = formatChange(columns, (rows) => formatRows(rows) + unit);
  const summary = times ? `${formatTimes(times)} · ${change}` : change;
  const subtitleLine = subtitle === "" ? summary : `${subtitle} · ${summary}`;
  const matrixTop = PLANE_TOP + planeScale({ queries, keys }, { left: 0, top: 0, side: PLOT_SIZE }).height + 64;
  const barsTop = matrixTop + matrixCellSize(ranks).height * ranks + 62;
  const bottom = barsTop + rowHeight(ranks) * ranks;
  const maxima = {
    pairs: Math.max(1, ...columns.flatMap(({ pairs }) => pairs)),
    rows: Math.max(1, ...columns.flatMap(({ received, sent }) => [...received, ...sent])),
    transfer: Math.max(1, ...columns.flatMap(({ transfers }) => transfers.map((row) => Math.max(...row)))),
  };
  const notes = [...describeUnits({ queries, keys }, slices, bytesPerRow), ...explainLoad(columns)];
  return document({
    title,
    description: `${subtitleLine}. ${notes.join(" ")}`,
    height: bottom + 40 + notes.length * 20,
    body: [
      heading(truncate(title, 27, page.width - 2 * page.edge), subtitleLine),
      ...columns.flatMap((each, i) => {
        const left = page.edge + i * (COLUMN_WIDTH + COLUMN_GAP);
        const column: PlacementColumn = { ...each, left, maxima, unit, formatRows };
        return [
          drawColumnTitle(column),
          drawPlane(column, { queries, keys }),
          drawMatrix(column, matrixTop),
          drawBars(column, barsTop),
        ];
      }),
      footnotes(notes, bottom + 36),
    ],
  });
}

/** Load of every rank under a placement. */
interface PlacementLoad {
  /** "before" or "after". */
  readonly name: string;
  readonly placement: string;
  readonly queryShards: readonly (readonly Span[])[];
  readonly keyShards: readonly (readonly Span[])[];
  /** By rank: the slices of its queries. */
  readonly shardSlices: readonly (readonly Slice[])[];
  /** By rank: visible pairs. */
  readonly pairs: readonly number[];
  /** By receiver, by sender: rows of keys. */
  readonly transfers: readonly (readonly number[])[];
  readonly received: readonly number[];
  readonly sent: readonly number[];
}

/** A placement's load, with the position and the units in which it is drawn. */
interface PlacementColumn extends PlacementLoad {
  readonly left: number;
  /** Maxima over both columns. */
  readonly maxima: { readonly pairs: number; readonly rows: number; readonly transfer: number };
  /** Unit of the results of `formatRows` if they do not include one: " rows". */
  readonly unit: string;
  formatRows(rows: number): string;
}

function computeLoad(
  name: string,
  placement: Placements,
  {
    slices,
    ranks,
    lengths,
  }: { readonly slices: readonly Slice[]; readonly ranks: number; readonly lengths: PlaneLengths },
): PlacementLoad {
  const isPair = typeof placement === "object" && !("spans" in placement);
  const [queryPlacement, keyPlacement] = (isPair ? [placement.queries, placement.keys] : [placement, placement]).map(
    (each) => resolvePlacement(each),
  ) as [Placement, Placement];
  const queryShards = resolveShards(queryPlacement, ranks, lengths.queries);
  const keyShards = resolveShards(keyPlacement, ranks, lengths.keys);
  const shardSlices = slicesByShard("drawDispatch", slices, queryShards);
  const transfers = countTransferredRows(shardSlices, keyShards);
  return {
    name,
    placement: isPair ? `queries ${queryPlacement.name}, keys ${keyPlacement.name}` : queryPlacement.name,
    queryShards,
    keyShards,
    shardSlices,
    pairs: shardSlices.map(totalArea),
    transfers,
    received: transfers.map(sum),
    sent: transfers.map((_, sender) => sum(transfers.map((row) => row[sender]!))),
  };
}

type Interval = readonly [start: number, end: number];

/**
 * Returns, by receiver and sender, the number of the sender's keys that are visible to the receiver's queries, each
 * counted once.
 */
function countTransferredRows(
  shardSlices: readonly (readonly Slice[])[],
  keyShards: readonly (readonly Span[])[],
): readonly (readonly number[])[] {
  const ownedIntervals = keyShards
    .flatMap((spans, owner) =>
      spans.flatMap(contiguousSpans).map(({ start, length }) => ({ start, end: start + length, owner })),
    )
    .filter(({ start, end }) => start < end)
    .sort((a, b) => a.start - b.start);
  return shardSlices.map((slices, receiver) => {
    const rowCounts = keyShards.map(() => 0);
    let first = 0;
    for (const [start, end] of mergeIntervals(slices.flatMap(visibleKeyIntervals))) {
      while (first < ownedIntervals.length && ownedIntervals[first]!.end <= start) first++;
      for (let i = first; i < ownedIntervals.length && ownedIntervals[i]!.start < end; i++) {
        const { owner, ...span } = ownedIntervals[i]!;
        if (owner !== receiver) rowCounts[owner]! += Math.min(end, span.end) - Math.max(start, span.start);
      }
    }
    return rowCounts;
  });
}

/**
 * Returns the keys visible in a slice. They are an interval, because its rows are consecutive and its bounds move by
 * one key per row.
 */
function visibleKeyIntervals(slice: Slice): Interval[] {
  const { start, length } = visibleRows({ start: slice.q0, length: slice.q1 - slice.q0, step: 1 }, slice);
  if (length === 0) return [];
  return [[visibleKeyRange(slice, start).start, visibleKeyRange(slice, start + length - 1).end]];
}

function mergeIntervals(intervals: Interval[]): Interval[] {
  const merged: [number, number][] = [];
  for (const [start, end] of intervals.sort((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  return merged;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, each) => total + each, 0);
}

/** Returns the pairs of the most loaded rank relative to the mean; 1 if there are none. */
function loadImbalance({ pairs }: PlacementLoad): number {
  const total = sum(pairs);
  return total === 0 ? 1 : (Math.max(...pairs) * pairs.length) / total;
}

function formatChange(
  [before, after]: readonly [PlacementLoad, PlacementLoad],
  formatRows: (rows: number) => string,
): string {
  return [
    `maximum load ${loadImbalance(before).toFixed(2)} → ${loadImbalance(after).toFixed(2)} × the mean`,
    `received in total ${formatRows(sum(before.received))} → ${formatRows(sum(after.received))}`,
    `maximum received per rank ${formatRows(Math.max(...before.received))} → ${formatRows(Math.max(...after.received))}`,
  ].join(" · ");
}

function formatTimes({ before, after }: NonNullable<DrawDispatchOptions["times"]>): string {
  return `predicted step ${formatSeconds(before)} → ${formatSeconds(after)}`;
}

/** Explains a maximum load that `dispatch` increased. */
function explainLoad([before, after]: readonly [PlacementLoad, PlacementLoad]): string[] {
  if (after.placement !== "dispatch" || loadImbalance(after) <= loadImbalance(before)) return [];
  return [
    "The maximum load is higher after, because dispatch minimizes the predicted step time for its `cost`, which includes transfers.",
  ];
}

function describeUnits(
  { queries, keys }: PlaneLengths,
  slices: readonly Slice[],
  bytesPerRow: number | undefined,
): string[] {
  const area = totalArea(slices);
  const unit = bytesPerRow === undefined ? "" : ` A row of k and v is ${formatBytes(bytesPerRow)}.`;
  return [
    `${formatCount(area)} visible pairs, ${formatPercent(area / (queries * keys))} of ${formatCount(queries)} × ${formatCount(keys)}. Load: visible pairs of a rank, relative to the mean over all ranks.`,
    `Received: rows of k and v required from other ranks, each once, in the forward pass; sent: required by others.${unit}`,
  ];
}

function drawColumnTitle(column: PlacementColumn): string {
  const { left, name, placement, received, formatRows, unit } = column;
  const line = `maximum load ${loadImbalance(column).toFixed(2)} × the mean, ${formatRows(sum(received))}${unit} received in total`;
  return [
    text(left, MARGIN_TOP, truncate(`${name}: ${placement}`, 17, COLUMN_WIDTH), `font-size="16" font-weight="600"`),
    text(left, MARGIN_TOP + 22, truncate(line, 13, COLUMN_WIDTH), `font-size="13" fill="${theme.faint}"`),
  ].join("\n");
}

/** Draws the mask in the colors of the queries' ranks, with the owners of keys above it and of queries beside it. */
function drawPlane(
  { left, shardSlices: slicesByRank, queryShards, keyShards }: PlacementColumn,
  lengths: PlaneLengths,
): string {
  const scale = planeScale(lengths, { left: left + PLANE_INSET, top: PLANE_TOP, side: PLOT_SIZE });
  const plane: Box = { x: scale.left, y: scale.top, width: scale.width, height: scale.height };
  const groups = slicesByRank.map((each, rank): SliceGroup => {
    return { name: `rank ${rank}`, owner: `rank ${rank}`, fill: paletteColor(rank), slices: each };
  });
  const borderOffset = OWNER_BORDER_WIDTH + 3;
  const borders = queryShards.flatMap((_, rank) => [
    drawBorder(queryShards[rank]!, rank, ({ start, length }) => {
      const y = scale.y(start);
      return { x: scale.left - borderOffset, y, width: OWNER_BORDER_WIDTH, height: scale.y(start + length) - y };
    }),
    drawBorder(keyShards[rank]!, rank, ({ start, length }) => {
      const x = scale.x(start);
      return { x, y: scale.top - borderOffset, width: scale.x(start + length) - x, height: OWNER_BORDER_WIDTH };
    }),
  ]);
  return [
    rect(plane, `fill="${theme.track}"`),
    ...drawGroups(groups, scale),
    rect(plane, `fill="none" stroke="${theme.rule}"`),
    ...borders,
    drawPlaneAxes(lengths, scale, borderOffset + 1),
  ].join("\n");
}

/** Draws the positions of one rank along a border, as one path. */
function drawBorder(spans: readonly Span[], rank: number, toBox: (span: Span) => Box): string {
  const outlines = spans.flatMap(contiguousSpans).map((span) => borderPath(toBox(span)));
  if (outlines.length === 0) return "";
  return tooltip(`held by rank ${rank}`, `<path d="${outlines.join("")}" fill="${paletteColor(rank)}"/>`);
}

function borderPath({ x, y, width, height }: Box): string {
  const [w, h] = [width, height].map(formatCoordinate) as [string, string];
  return `M${formatCoordinate(x)} ${formatCoordinate(y)}h${w}v${h}h-${w}Z`;
}

/** Returns the size of a cell. With few ranks there is room for numbers. */
function matrixCellSize(ranks: number): { readonly width: number; readonly height: number } {
  return { width: Math.min(64, PLOT_SIZE / ranks), height: Math.min(26, PLOT_SIZE / ranks) };
}

const MATRIX_FONT_SIZE = 11;
/** Number of shades, from almost nothing to the maximum of both columns. */
const NUM_SHADES = 10;
/** Maximum number of cells with tooltips. More are drawn as one path per shade. */
const MAX_CELLS = 1024;

/** Draws the rows sent between each pair of ranks: senders from the left, receivers from the top. Darker means more. */
function drawMatrix({ left, transfers, maxima, formatRows, unit }: PlacementColumn, top: number): string {
  const ranks = transfers.length;
  const { width, height } = matrixCellSize(ranks);
  const x = (sender: number): number => left + PLANE_INSET + sender * width;
  const y = (receiver: number): number => top + receiver * height;
  const label = `font-size="12" fill="${theme.faint}"`;
  const computeShade = (rows: number): number =>
    rows === 0 ? 0 : Math.max(1, Math.round((rows / maxima.transfer) * NUM_SHADES));
  const drawCell = (rows: number, sender: number, receiver: number): string => {
    if (rows === 0) return "";
    const box = { x: x(sender), y: y(receiver), width, height };
    const shade = computeShade(rows);
    const rowsText = formatRows(rows);
    const isLabelShown = textWidth(rowsText, MATRIX_FONT_SIZE) < width && height >= MATRIX_FONT_SIZE + 4;
    const textAttributes = `text-anchor="middle" font-size="${MATRIX_FONT_SIZE}" fill="${shade > NUM_SHADES / 2 ? "#ffffff" : theme.text}"`;
    const numberLabel = isLabelShown ? text(box.x + width / 2, box.y + height / 2 + 4, rowsText, textAttributes) : "";
    return tooltip(
      `rank ${sender} sends ${rowsText}${unit} to rank ${receiver}`,
      rect(box, shadeColor(shade)) + numberLabel,
    );
  };
  const cells =
    ranks * ranks <= MAX_CELLS
      ? transfers.flatMap((row, receiver) => row.map((rows, sender) => drawCell(rows, sender, receiver)))
      : drawShades(
          transfers.map((row) => row.map(computeShade)),
          ({ row, startColumn: from, endColumn: to }) =>
            borderPath({ x: x(from), y: y(row), width: (to - from) * width, height }),
        );
  const grid = { x: x(0), y: y(0), width: ranks * width, height: ranks * height };
  return [
    text(left, top - 34, `transfers per rank pair${unit && ","}${unit}`, `font-size="13" font-weight="600"`),
    text(left + PLANE_INSET + PLOT_SIZE, top - 34, "from →, to ↓", `text-anchor="end" ${label}`),
    rect(grid, `fill="${theme.track}"`),
    ...cells,
    // The diagonal: a rank requires nothing from itself.
    `<path d="${transfers.map((_, rank) => borderPath({ x: x(rank), y: y(rank), width, height })).join("")}" fill="${theme.rule}"/>`,
    rect(grid, `fill="none" stroke="${theme.rule}"`),
    ...labeledRanks(ranks, width, textWidth(String(ranks), 12) + 4).map((rank) =>
      text(x(rank) + width / 2, top - 9, String(rank), `text-anchor="middle" ${label}`),
    ),
    ...labeledRanks(ranks, height, LABEL_HEIGHT).map((rank) =>
      text(x(0) - 10, y(rank) + height / 2 + 4, String(rank), `text-anchor="end" ${label}`),
    ),
  ].join("\n");
}

/** Adjacent cells of a row, [startColumn, endColumn). */
interface CellRun {
  readonly row: number;
  readonly startColumn: number;
  readonly endColumn: number;
}

/** Draws one path for each shade but 0. Adjacent cells of one shade are one piece of it. */
function drawShades(shades: readonly (readonly number[])[], outline: (run: CellRun) => string): readonly string[] {
  const outlines: string[] = Array.from({ length: NUM_SHADES + 1 }, () => "");
  for (const [row, values] of shades.entries()) {
    for (let startColumn = 0, endColumn = 1; startColumn < values.length; startColumn = endColumn, endColumn++) {
      while (endColumn < values.length && values[endColumn] === values[startColumn]) endColumn++;
      outlines[values[startColumn]!] += outline({ row, startColumn, endColumn });
    }
  }
  return outlines.flatMap((each, shade) =>
    shade > 0 && each !== "" ? [`<path d="${each}" ${shadeColor(shade)}/>`] : [],
  );
}

function shadeColor(shade: number): string {
  return `fill="#0072b2" fill-opacity="${formatCoordinate(0.1 + (0.9 * shade) / NUM_SHADES)}"`;
}

const LABEL_HEIGHT = 14;

/** Returns the ranks that have a label: every one, or in round steps if a rank has less room than its label needs. */
function labeledRanks(ranks: number, width: number, labelWidth: number): readonly number[] {
  const labelStep = width >= labelWidth ? 1 : tickStep(labelWidth / width);
  return Array.from({ length: Math.ceil(ranks / labelStep) }, (_, i) => i * labelStep);
}

function rowHeight(ranks: number): number {
  return Math.min(22, Math.max(2, PLOT_SIZE / ranks));
}

/** Width of the number to the right of each bar. Both take a third of the column. */
const NUMBER_LABEL_WIDTH = 62;

/** Draws load, received and sent of every rank. */
function drawBars({ left, pairs, received, sent, maxima, formatRows, unit }: PlacementColumn, top: number): string {
  const ranks = pairs.length;
  const [step, columnWidth] = [rowHeight(ranks), PLOT_SIZE / 3];
  const meanPairs = sum(pairs) / ranks;
  const formatLoad = (value: number): string => (meanPairs === 0 ? "0" : (value / meanPairs).toFixed(2));
  const metrics = [
    { name: "load", unit: " × the mean", values: pairs, largest: maxima.pairs, formatValue: formatLoad },
    { name: "received", unit, values: received, largest: maxima.rows, formatValue: formatRows },
    { name: "sent", unit, values: sent, largest: maxima.rows, formatValue: formatRows },
  ];
  const label = `font-size="12" fill="${theme.faint}"`;
  const [barHeight, width] = [Math.max(1, step - 6 * Math.min(1, step / 22)), columnWidth - NUMBER_LABEL_WIDTH - 8];
  const bars = metrics.flatMap(({ name, unit: unitText, values, largest: maxValue, formatValue }, i) => {
    const x = left + PLANE_INSET + i * columnWidth;
    return values.map((value, rank) => {
      const box = { x, y: top + rank * step, width: (value / maxValue) * width, height: barHeight };
      const valueLabel =
        step < 14
          ? ""
          : text(x + width + 6, box.y + barHeight - 4, formatValue(value), `font-size="${MATRIX_FONT_SIZE}"`);
      const bar = rect({ ...box, width }, `fill="${theme.track}"`) + rect(box, `fill="${paletteColor(rank)}"`);
      return tooltip(`rank ${rank}: ${name} ${formatValue(value)}${unitText}`, bar + valueLabel);
    });
  });
  const meanX = formatCoordinate(left + PLANE_INSET + (meanPairs / maxima.pairs) * width);
  return [
    text(left, top - 14, "per rank", `font-size="13" font-weight="600"`),
    ...metrics.map(({ name, unit: unitText }, i) =>
      text(left + PLANE_INSET + i * columnWidth, top - 14, `${name}${unitText && `,${unitText}`}`, label),
    ),
    ...bars,
    `<line x1="${meanX}" x2="${meanX}" y1="${top - 5}" y2="${formatCoordinate(top + ranks * step)}" stroke="${theme.text}" stroke-dasharray="3 2"/>`,
    ...labeledRanks(ranks, step, LABEL_HEIGHT).map((rank) =>
      text(
        left + PLANE_INSET - 10,
        top + rank * step + barHeight / 2 + 4,
        `rank ${rank}`,
        `text-anchor="end" ${label}`,
      ),
    ),
  ].join("\n");
}
