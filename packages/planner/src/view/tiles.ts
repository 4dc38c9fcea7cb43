import type { Slice, Span } from "@mosaic/core";
import { overlapsPiece, isVisible, shardSpans } from "../draw/tile-map-svg.ts";
import type { AttentionRecord, RecordedRank } from "../record.ts";
import type { Band, TileData } from "./data.ts";

/** Of more pieces on a side, so many positions stand for all. */
const MAX_BANDS = 256;
/** Ranks that share the heads of a tile, beyond which they are not drawn. */
const MAX_LAYERS = 8;

/** Which rank of a record computes which tile at which of its steps, forward, for the first sequence. */
export function encodeTiles(record: AttentionRecord, maxBands: number = MAX_BANDS): TileData {
  const sides = { queries: bandsOf(record, "queries", maxBands), keys: bandsOf(record, "keys", maxBands) };
  const width = sides.keys.length;
  const grid = new TileGrid(sides.queries.length * width);
  const isShown = visibility(record.slices, sides);
  const bandsOfRows = { queries: bandNumbers(sides.queries, record), keys: bandNumbers(sides.keys, record) };
  let steps = 0;
  for (const recordedRank of record.ranks) {
    if (recordedRank.firstSequence !== 0) continue;
    const tiles = listTiles(recordedRank, record.interned.strings);
    steps = Math.max(steps, tiles.length);
    for (const [step, { queryRows, keyRows }] of tiles.entries()) {
      const columns = bandsOfRows.keys(keyRows);
      for (const row of bandsOfRows.queries(queryRows)) {
        for (const column of columns) {
          const cell = row * width + column;
          if (isShown(row, column)) grid.add(cell, recordedRank.tape.rank, step);
        }
      }
    }
  }
  return { queries: sides.queries.map(toBand), keys: sides.keys.map(toBand), steps, layers: grid.encode() };
}

/** Pieces that shards are made of, or single positions at equal distances where there are too many. */
function bandsOf(record: AttentionRecord, side: "queries" | "keys", maxBands: number): readonly SampledSpan[] {
  const pieces = shardSpans(record, side);
  if (pieces.length <= maxBands) return pieces.map((span) => ({ ...span, sample: span }));
  const length = side === "queries" ? record.options.tokens : record.options.keyTokens;
  return Array.from({ length: maxBands }, (_, i) => {
    const [start, end] = [Math.floor((i * length) / maxBands), Math.floor(((i + 1) * length) / maxBands)];
    const sample = { start: (start + end) >> 1, length: 1, step: 1 };
    return { start, length: end - start, step: 1, sample };
  });
}

/** A band, and the part of it that is looked at. */
interface SampledSpan extends Span {
  readonly sample: Span;
}

function toBand({ start, length, step }: Span): Band {
  return { start, last: start + (length - 1) * step, length };
}

/** The numbers of the bands that rows have a part of; rows are given by number, and looked up once. */
function bandNumbers(bands: readonly SampledSpan[], record: AttentionRecord): (rows: number) => readonly number[] {
  const cachedNumbers: (readonly number[] | undefined)[] = [];
  return (rows) =>
    (cachedNumbers[rows] ??= bands.flatMap(({ sample }, i) =>
      overlapsPiece(record.interned.rows[rows]!, sample) ? [i] : [],
    ));
}

/** Whether the mask leaves anything of a cell. */
function visibility(
  slices: readonly Slice[],
  { queries, keys }: Readonly<Record<"queries" | "keys", readonly SampledSpan[]>>,
): (row: number, column: number) => boolean {
  const cachedVisibility = new Int8Array(queries.length * keys.length);
  return (row, column) => {
    const cell = row * keys.length + column;
    if (cachedVisibility[cell] === 0) cachedVisibility[cell] = isVisible(slices, queries[row]!, keys[column]!) ? 1 : -1;
    return cachedVisibility[cell] === 1;
  };
}

interface TileStep {
  readonly queryRows: number;
  readonly keyRows: number;
}

/** What a rank attends to, in order; calls for some heads each of the same tile are one step. */
function listTiles({ tape }: RecordedRank, strings: readonly string[]): readonly TileStep[] {
  const tiles: TileStep[] = [];
  const event = tape.read();
  while (event.next()) {
    if (event.op === "mark" && strings[event.arg(0)] === "backward") break;
    if (event.op !== "attend") continue;
    const [queryRows, keyRows] = [event.arg(5), event.arg(6)];
    const last = tiles.at(-1);
    if (last?.queryRows !== queryRows || last.keyRows !== keyRows) tiles.push({ queryRows, keyRows });
  }
  return tiles;
}

/** Ranks and steps of cells, in layers. */
class TileGrid {
  readonly #cells: number;
  readonly #layers: { readonly rank: Int32Array; readonly step: Int32Array }[] = [];

  constructor(cells: number) {
    this.#cells = cells;
  }

  add(cell: number, rank: number, step: number): void {
    for (let i = 0; i < MAX_LAYERS; i++) {
      const layer = (this.#layers[i] ??= {
        rank: new Int32Array(this.#cells).fill(-1),
        step: new Int32Array(this.#cells),
      });
      if (layer.rank[cell] === rank) return;
      if (layer.rank[cell] !== -1) continue;
      layer.rank[cell] = rank;
      layer.step[cell] = step;
      return;
    }
  }

  encode(): readonly (readonly number[])[] {
    return this.#layers.map(({ rank, step }) => {
      const runs: number[] = [];
      for (let from = 0; from < rank.length; ) {
        const change = rank[from + 1] === rank[from] ? step[from + 1]! - step[from]! : 0;
        let to = from + 1;
        while (rank[to] === rank[from] && change === step[to]! - step[to - 1]!) to++;
        runs.push(to - from, rank[from]!, step[from]!, change);
        from = to;
      }
      return runs;
    });
  }
}
