import type { Slice, Span } from "@mosaic/core";
import { overlapsSpan, isVisible, shardSpans } from "../draw/tile-map-svg.ts";
import type { AttentionRecord, RecordedRank } from "../record.ts";
import type { Band, TileData } from "./data.ts";

/** Maximum number of bands on a side. More spans are sampled at this many positions. */
const MAX_BANDS = 256;
/** Maximum number of ranks that are drawn of those that share the heads of a tile. */
const MAX_LAYERS = 8;

/**
 * Returns the rank of a record that computes each tile in the forward of the first sequence, and at which of its steps.
 */
export function encodeTiles(record: AttentionRecord, maxBands: number = MAX_BANDS): TileData {
  const sides = { queries: createBands(record, "queries", maxBands), keys: createBands(record, "keys", maxBands) };
  const width = sides.keys.length;
  const grid = new TileGrid(sides.queries.length * width);
  const isShown = createVisibilityTest(record.slices, sides);
  const bandLookups = { queries: createBandLookup(sides.queries, record), keys: createBandLookup(sides.keys, record) };
  let steps = 0;
  for (const recordedRank of record.ranks) {
    if (recordedRank.firstSequence !== 0) continue;
    const tiles = listTiles(recordedRank, record.interned.strings);
    steps = Math.max(steps, tiles.length);
    for (const [step, { queryRowsId, keyRowsId }] of tiles.entries()) {
      const columns = bandLookups.keys(keyRowsId);
      for (const row of bandLookups.queries(queryRowsId)) {
        for (const column of columns) {
          const cell = row * width + column;
          if (isShown(row, column)) grid.add(cell, recordedRank.tape.rank, step);
        }
      }
    }
  }
  return { queries: sides.queries.map(toBand), keys: sides.keys.map(toBand), steps, layers: grid.encode() };
}

/** Returns the spans of shards or, if there are too many, bands with single sampled positions at equal distances. */
function createBands(record: AttentionRecord, side: "queries" | "keys", maxBands: number): readonly SampledSpan[] {
  const spans = shardSpans(record, side);
  if (spans.length <= maxBands) return spans.map((span) => ({ ...span, sample: span }));
  const length = side === "queries" ? record.options.tokens : record.options.keyTokens;
  return Array.from({ length: maxBands }, (_, i) => {
    const [start, end] = [Math.floor((i * length) / maxBands), Math.floor(((i + 1) * length) / maxBands)];
    const sample = { start: (start + end) >> 1, length: 1, step: 1 };
    return { start, length: end - start, step: 1, sample };
  });
}

/** A band, and the part of it that is tested. */
interface SampledSpan extends Span {
  readonly sample: Span;
}

function toBand({ start, length, step }: Span): Band {
  return { start, last: start + (length - 1) * step, length };
}

/**
 * Creates a function that returns the indices of the bands that rows overlap. Rows are given by number, and results are
 * cached.
 */
function createBandLookup(bands: readonly SampledSpan[], record: AttentionRecord): (rows: number) => readonly number[] {
  const cachedBandNumbers: (readonly number[] | undefined)[] = [];
  return (rows) =>
    (cachedBandNumbers[rows] ??= bands.flatMap(({ sample }, i) =>
      overlapsSpan(record.interned.rows[rows]!, sample) ? [i] : [],
    ));
}

/** Creates a test of whether the mask shows any part of a cell. */
function createVisibilityTest(
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
  readonly queryRowsId: number;
  readonly keyRowsId: number;
}

/**
 * Returns the tiles that a rank attends to, in order. Consecutive calls for different heads of the same tile are one
 * step.
 */
function listTiles({ tape }: RecordedRank, strings: readonly string[]): readonly TileStep[] {
  const tiles: TileStep[] = [];
  const event = tape.read();
  while (event.next()) {
    if (event.op === "mark" && strings[event.arg(0)] === "backward") break;
    if (event.op !== "attend") continue;
    const [queryRowsId, keyRowsId] = [event.arg(5), event.arg(6)];
    const last = tiles.at(-1);
    if (last?.queryRowsId !== queryRowsId || last.keyRowsId !== keyRowsId) tiles.push({ queryRowsId, keyRowsId });
  }
  return tiles;
}

/** Ranks and steps of cells, in layers. */
class TileGrid {
  readonly #numCells: number;
  readonly #layers: { readonly rank: Int32Array; readonly step: Int32Array }[] = [];

  constructor(numCells: number) {
    this.#numCells = numCells;
  }

  add(cell: number, rank: number, step: number): void {
    for (let i = 0; i < MAX_LAYERS; i++) {
      const layer = (this.#layers[i] ??= {
        rank: new Int32Array(this.#numCells).fill(-1),
        step: new Int32Array(this.#numCells),
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
      for (let start = 0; start < rank.length; ) {
        const change = rank[start + 1] === rank[start] ? step[start + 1]! - step[start]! : 0;
        let end = start + 1;
        while (rank[end] === rank[start] && change === step[end]! - step[end - 1]!) end++;
        runs.push(end - start, rank[start]!, step[start]!, change);
        start = end;
      }
      return runs;
    });
  }
}
