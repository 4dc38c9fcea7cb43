import {
  defineOptions,
  option,
  OptionError,
  type OptionsOf,
  type Slice,
  sliceIntersects,
  type Span,
  spansLength,
} from "@mosaic/core";
import { type AttentionRecord, checkRecord, maxRecordedRanks } from "../record.ts";
import { contrastColor, paletteColor } from "./color-scheme.ts";
import { type Box, document, footnotes, heading, isText, page, rect, text, theme, tooltip, truncate } from "./svg.ts";

export const tileMapSvgOptions = defineOptions("tileMapSvg", {
  /** Heading and title of the document. Default "Tiles by rank". */
  title: option.custom("a string", isText, { default: "Tiles by rank" }),
  /** A line below the heading. Default "". */
  subtitle: option.custom("a string", isText, { default: "" }),
  /** Ranks that are colored; others are gray. Default: all of up to 28 ranks; of more, eight. */
  ranks: option.array(option.integer({ min: 0 }), { optional: true }),
});
/** Options of `tileMapSvg`. */
export type TileMapSvgOptions = OptionsOf<typeof tileMapSvgOptions>;

const MAX_RANKS_SHOWN = 28;
const NUM_SAMPLED_RANKS = 8;
const MAP_SIZE = 640;
const MARGIN_TOP = 130;
const MARGIN_LEFT = 120;
/** Distance between the lines of the legend. */
const LINE_HEIGHT = 22;
const OTHER_RANKS_COLOR = "#c3cad4";

/**
 * Draws which rank computes each tile of the (query, key) plane in a record's forward pass, as an SVG document:
 * queries from the top and keys from the left, in sequence order, with a tile for each pair of spans of shards. Tiles
 * that the mask hides are empty. A tile whose heads are split among ranks has a stripe for each of them. Of ranks
 * that differ only along axes without attention, and so do the same, one is drawn.
 *
 * @example
 * ```ts
 * import { local, masks } from "@mosaic/core";
 * import { record, tileMapSvg } from "@mosaic/planner";
 * const run = record({ backend: local(), mesh: { dp: 1 }, tokens: 8, numHeads: 1, headDim: 4, mask: masks.causal() });
 * tileMapSvg(run).includes("computed by rank 0"); // => true
 * ```
 * @throws OptionError for a value that is not a record, and for a record of `recordRepresentatives` that does not
 * contain all ranks.
 */
export function tileMapSvg(record: AttentionRecord, options?: TileMapSvgOptions): string {
  checkRecord("tileMapSvg", record);
  checkAllRanks(record);
  const { title, subtitle, ranks } = tileMapSvgOptions.parse(options);
  const map = tileMap(record);
  const counts = tileCounts(map);
  const coloredRanks = selectRanks([...counts.keys()], ranks);
  const colors = new Map(coloredRanks.map((rank, i) => [rank, paletteColor(i)]));
  const [rows, columns] = [edgePositions(map.queries, MARGIN_TOP), edgePositions(map.keys, MARGIN_LEFT)];
  const cells = map.queries.flatMap((_, query) =>
    cellRuns(map, query, colors).map(({ firstKey: from, endKey: to, ranks }) => {
      const box = {
        x: columns[from]!,
        y: rows[query]!,
        width: columns[to]! - columns[from]!,
        height: rows[query + 1]! - rows[query]!,
      };
      return drawCell(ranks, box, { colors, name: cellTitle(map, query, from, to - 1) });
    }),
  );
  const notes = drawNotes(map, counts.size - coloredRanks.length);
  const summary = `${map.queries.length} × ${map.keys.length} tiles of queries and keys, ${record.ranks.length} ranks.`;
  const labelAttributes = `font-size="13" fill="${theme.faint}"`;
  const mapRectangle = { x: MARGIN_LEFT, y: MARGIN_TOP, width: MAP_SIZE, height: MAP_SIZE };
  // With many selected ranks, their list may be longer than the map.
  const bottom = Math.max(MARGIN_TOP + MAP_SIZE, MARGIN_TOP + 12 + (coloredRanks.length + 1) * LINE_HEIGHT);
  return document({
    title,
    description: [subtitle, summary, ...notes].filter((words) => words !== "").join(" "),
    height: bottom + 36 + notes.length * 20,
    body: [
      heading(title, subtitle),
      text(MARGIN_LEFT + MAP_SIZE / 2, MARGIN_TOP - 14, "keys →", `text-anchor="middle" ${labelAttributes}`),
      text(MARGIN_LEFT - 14, MARGIN_TOP + MAP_SIZE / 2, "queries ↓", `text-anchor="end" ${labelAttributes}`),
      rect(mapRectangle, `fill="${theme.track}"`),
      `<g shape-rendering="crispEdges">`,
      ...cells,
      "</g>",
      rect(mapRectangle, `fill="none" stroke="${theme.rule}"`),
      drawLegend(record, counts, colors),
      footnotes(notes, bottom + 32),
    ],
  });
}

/** Throws an OptionError for a record of one rank of each class, which has no complete tile map. */
function checkAllRanks({ ranks, classes }: AttentionRecord): void {
  if (classes.isIdentity) return;
  throw new OptionError({
    where: "tileMapSvg",
    expected: "a record of every rank",
    received: `a record of ${ranks.length} of ${classes.ranks} ranks, one of each class`,
    remedy: `call record() with a mesh of at most ${maxRecordedRanks} ranks`,
  });
}

/** Returns the number of tiles that each rank computes, by rank. */
function tileCounts(map: TileMap): ReadonlyMap<number, number> {
  const counts = new Map<number, number>();
  for (const query of map.queries.keys()) {
    for (const key of map.keys.keys()) {
      for (const rank of map.computingRanks(query, key)) counts.set(rank, (counts.get(rank) ?? 0) + 1);
    }
  }
  return new Map([...counts].toSorted(([a], [b]) => a - b));
}

function selectRanks(
  recordedRanks: readonly number[],
  requestedRanks: readonly number[] | undefined,
): readonly number[] {
  if (requestedRanks) return requestedRanks.filter((rank) => recordedRanks.includes(rank));
  if (recordedRanks.length <= MAX_RANKS_SHOWN) return recordedRanks;
  return Array.from(
    { length: NUM_SAMPLED_RANKS },
    (_, i) => recordedRanks[Math.round((i * (recordedRanks.length - 1)) / (NUM_SAMPLED_RANKS - 1))]!,
  );
}

/** Returns the positions where spans begin and the last one ends. Widths are in proportion to lengths. */
function edgePositions(spans: readonly Span[], start: number): readonly number[] {
  const totalLength = Math.max(1, spansLength(spans));
  let end = start;
  return [start, ...spans.map(({ length }) => (end += (length / totalLength) * MAP_SIZE))];
}

interface CellRun {
  readonly firstKey: number;
  readonly endKey: number;
  readonly ranks: readonly number[];
}

/** Merges adjacent cells of a row that the same ranks compute, or only ranks without a color. */
function cellRuns(map: TileMap, query: number, colors: ReadonlyMap<number, string>): readonly CellRun[] {
  const runs: CellRun[] = [];
  for (const key of map.keys.keys()) {
    const cellRanks = map.computingRanks(query, key);
    const ranks = cellRanks.filter((rank) => colors.has(rank));
    const last = runs.at(-1);
    if (cellRanks.length === 0) continue;
    if (last && last.endKey === key && String(last.ranks) === String(ranks))
      runs[runs.length - 1] = { ...last, endKey: key + 1 };
    else runs.push({ firstKey: key, endKey: key + 1, ranks });
  }
  return runs;
}

interface CellStyle {
  readonly colors: ReadonlyMap<number, string>;
  readonly name: string;
}

function drawCell(ranks: readonly number[], { x, y, width, height }: Box, { colors, name }: CellStyle): string {
  const gapWidth = Math.min(width, height) < 6 ? 0 : 1;
  if (ranks.length === 0) return rect({ x, y, width, height }, `fill="${OTHER_RANKS_COLOR}"`);
  const barHeight = (height - gapWidth) / ranks.length;
  const bars = ranks.map((rank, i) => {
    const bar = { x, y: y + i * barHeight, width: width - gapWidth, height: barHeight };
    const label = barHeight >= 16 && width >= 20 ? drawLabel(rank, bar, colors.get(rank)!) : "";
    return rect(bar, `fill="${colors.get(rank)}"`) + label;
  });
  const ranksText =
    ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${ranks.join(", ")}, each for its share of the heads`;
  return tooltip(`${name}: computed by ${ranksText}`, bars.join(""));
}

function drawLabel(rank: number, { x, y, width, height }: Box, color: string): string {
  const size = Math.min(13, height * 0.6);
  const textAttributes = `text-anchor="middle" font-size="${size.toFixed(1)}"`;
  return text(
    x + width / 2,
    y + height / 2 + size * 0.36,
    String(rank),
    `${textAttributes} fill="${contrastColor(color)}"`,
  );
}

function cellTitle(map: TileMap, query: number, firstKey: number, lastKey: number): string {
  const [q, a, b] = [map.queries[query]!, map.keys[firstKey]!, map.keys[lastKey]!];
  const lastPosition = ({ start, length, step }: Span): number => start + (length - 1) * step;
  return `queries ${q.start} to ${lastPosition(q)}, keys ${a.start} to ${lastPosition(b)}`;
}

/** Draws ranks, their colors and the number of tiles that each computes, beside the map. */
function drawLegend(
  record: AttentionRecord,
  counts: ReadonlyMap<number, number>,
  colors: ReadonlyMap<number, string>,
): string {
  const left = MARGIN_LEFT + MAP_SIZE + 28;
  const drawEntry = (label: string, fill: string, i: number): string => {
    const y = MARGIN_TOP + 12 + i * LINE_HEIGHT;
    return (
      rect({ x: left, y: y - 11, width: 13, height: 13 }, `fill="${fill}" rx="3"`) +
      text(left + 20, y, truncate(label, 13, page.width - left - 24), `font-size="13"`)
    );
  };
  const shownEntries = [...colors].map(([rank, fill], i) => {
    const coordinateTexts = Object.entries(record.ranks[rank]!.at).map(([axis, index]) => `${axis} ${index}`);
    return drawEntry(`rank ${rank} (${coordinateTexts.join(" · ")}): ${counts.get(rank)} tiles`, fill, i);
  });
  const numHiddenRanks = counts.size - colors.size;
  return [
    ...shownEntries,
    ...(numHiddenRanks > 0 ? [drawEntry(`${numHiddenRanks} other ranks`, OTHER_RANKS_COLOR, colors.size)] : []),
  ].join("\n");
}

function drawNotes(map: TileMap, numUncoloredRanks: number): readonly string[] {
  const hasSharedCells = map.queries.some((_, query) =>
    map.keys.some((__, key) => map.computingRanks(query, key).length > 1),
  );
  return [
    ...(hasSharedCells ? ["Several ranks compute a tile, each for its share of the heads."] : []),
    ...(numUncoloredRanks > 0 ? ["Ranks without an assigned color are gray."] : []),
  ];
}

/** The ranks that computed each tile of the (query, key) plane in the forward of the first sequence. */
interface TileMap {
  /** Spans of shards, in sequence order: the rows and columns of the map. */
  readonly queries: readonly Span[];
  readonly keys: readonly Span[];
  /**
   * Returns the ranks that computed heads of a tile, by indices of its query and key span; none if the mask hides the
   * tile.
   */
  computingRanks(query: number, key: number): readonly number[];
}

/** Reads from a record's tapes which rank computed each tile. */
export function tileMap(record: AttentionRecord): TileMap {
  const queries = shardSpans(record, "queries");
  const keys = shardSpans(record, "keys");
  const tiles = new Map<number, number[]>();
  const bandsBySide = { queries: new Map<number, readonly number[]>(), keys: new Map<number, readonly number[]>() };
  const findBands = (side: "queries" | "keys", rows: number): readonly number[] => {
    const cachedBands = bandsBySide[side].get(rows);
    if (cachedBands) return cachedBands;
    const spans = side === "queries" ? queries : keys;
    const bands = spans.flatMap((piece, i) => (overlapsSpan(record.interned.rows[rows]!, piece) ? [i] : []));
    bandsBySide[side].set(rows, bands);
    return bands;
  };
  for (const { tape, firstSequence } of record.ranks) {
    if (firstSequence !== 0) continue;
    const event = tape.read();
    while (event.next()) {
      if (event.op === "mark" && record.interned.strings[event.arg(0)] === "backward") break;
      if (event.op !== "attend") continue;
      const columns = findBands("keys", event.arg(6));
      for (const row of findBands("queries", event.arg(5))) {
        for (const column of columns) {
          const cellIndex = row * keys.length + column;
          const ranks = tiles.get(cellIndex);
          if (ranks && ranks.at(-1) !== tape.rank) ranks.push(tape.rank);
          else if (!ranks && isVisible(record.slices, queries[row]!, keys[column]!)) tiles.set(cellIndex, [tape.rank]);
        }
      }
    }
  }
  return { queries, keys, computingRanks: (query, key) => tiles.get(query * keys.length + key) ?? [] };
}

/** Whether the mask shows any part of a tile. For strided spans, the whole range between their ends is tested. */
export function isVisible(slices: readonly Slice[], query: Span, key: Span): boolean {
  const [q0, q1] = spanBounds(query);
  const [k0, k1] = spanBounds(key);
  return slices.some((slice) => sliceIntersects(slice, { q0, q1, k0, k1 }));
}

function spanBounds({ start, length, step }: Span): readonly [number, number] {
  return [start, start + (length - 1) * step + 1];
}

export function shardSpans(record: AttentionRecord, side: "queries" | "keys"): readonly Span[] {
  const spans = record.ranks
    .filter(({ firstSequence }) => firstSequence === 0)
    .flatMap(({ at }) => record[side].spans(at))
    .filter(({ length }) => length > 0);
  const uniqueSpans = new Map(spans.map((span) => [`${span.start} ${span.length} ${span.step}`, span]));
  return [...uniqueSpans.values()].toSorted((a, b) => a.start - b.start);
}

/**
 * Whether a tile's rows contain part of a span: its first, middle or last position. Tiles consist of one or more spans.
 */
export function overlapsSpan(rows: readonly Span[], { start, length, step }: Span): boolean {
  const samples = [0, length >> 1, length - 1].map((i) => start + i * step);
  return samples.some((position) =>
    rows.some((span) => {
      const offset = position - span.start;
      return offset >= 0 && offset < span.length * span.step && offset % span.step === 0;
    }),
  );
}
