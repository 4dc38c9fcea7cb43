import { type Slice, sliceIntersects, type Span } from "@mosaic/core";
import type { AttentionRecord } from "../record.ts";

/** Which ranks computed which tiles of the (query, key) plane, forward, for the first sequence. */
export interface TileMap {
  /** Pieces that shards are made of, in the order of the sequence: the rows and columns of the map. */
  readonly queries: readonly Span[];
  readonly keys: readonly Span[];
  /** Ranks that computed some heads of a tile, by query piece and key piece: none where the mask leaves nothing of it. */
  ranksOf(query: number, key: number): readonly number[];
}

/** Reads from a record's tapes who computed what. */
export function tileMap(record: AttentionRecord): TileMap {
  const queries = shardSpans(record, "queries");
  const keys = shardSpans(record, "keys");
  const tiles = new Map<number, number[]>();
  const covered = { queries: new Map<number, readonly number[]>(), keys: new Map<number, readonly number[]>() };
  const within = (side: "queries" | "keys", rows: number): readonly number[] => {
    const known = covered[side].get(rows);
    if (known) return known;
    const pieces = side === "queries" ? queries : keys;
    const found = pieces.flatMap((piece, i) => (includesSample(record.names.rows[rows]!, piece) ? [i] : []));
    covered[side].set(rows, found);
    return found;
  };
  for (const { tape, firstSequence } of record.ranks) {
    if (firstSequence !== 0) continue;
    const event = tape.read();
    while (event.next()) {
      if (event.op === "mark" && record.names.words[event.arg(0)] === "backward") break;
      if (event.op !== "attend") continue;
      const columns = within("keys", event.arg(6));
      for (const row of within("queries", event.arg(5))) {
        for (const column of columns) {
          const place = row * keys.length + column;
          const ranks = tiles.get(place);
          if (ranks && ranks.at(-1) !== tape.rank) ranks.push(tape.rank);
          else if (!ranks && isVisible(record.slices, queries[row]!, keys[column]!)) tiles.set(place, [tape.rank]);
        }
      }
    }
  }
  return { queries, keys, ranksOf: (query, key) => tiles.get(query * keys.length + key) ?? [] };
}

/** Whether the mask leaves anything of a tile; of strided pieces, of what lies between their ends. */
function isVisible(slices: readonly Slice[], query: Span, key: Span): boolean {
  const [q0, q1] = hull(query);
  const [k0, k1] = hull(key);
  return slices.some((slice) => sliceIntersects(slice, { q0, q1, k0, k1 }));
}

function hull({ start, length, step }: Span): readonly [number, number] {
  return [start, start + (length - 1) * step + 1];
}

function shardSpans(record: AttentionRecord, side: "queries" | "keys"): readonly Span[] {
  const spans = record.ranks
    .filter(({ firstSequence }) => firstSequence === 0)
    .flatMap(({ at }) => record[side].spans(at))
    .filter(({ length }) => length > 0);
  const distinct = new Map(spans.map((span) => [`${span.start} ${span.length} ${span.step}`, span]));
  return [...distinct.values()].toSorted((a, b) => a.start - b.start);
}

/** Whether a tile's rows have a part of a piece: its first, middle or last position. Tiles are made of pieces or more. */
function includesSample(rows: readonly Span[], { start, length, step }: Span): boolean {
  const samples = [0, length >> 1, length - 1].map((i) => start + i * step);
  return samples.some((position) =>
    rows.some((span) => {
      const offset = position - span.start;
      return offset >= 0 && offset < span.length * span.step && offset % span.step === 0;
    }),
  );
}
