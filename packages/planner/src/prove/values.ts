import type { Slice, Span } from "@mosaic/core";

/** Where a tile was computed. */
export interface Place {
  readonly rank: number;
  readonly phase: string;
  /** Tiles of the rank in the phase, from 1 on. */
  readonly number: number;
}

/** A block of queries on a block of keys, as some kernel call computed it. */
export interface Tile {
  readonly q: readonly Span[];
  readonly k: readonly Span[];
  readonly mask: readonly Slice[];
  /** Which query heads of each key head's group: [0, H/Hkv) unless groups are cut. */
  readonly heads: readonly [first: number, end: number];
  /** Visible pairs. */
  readonly pairs: number;
  readonly place: Place;
}

/** Contributions of tiles, never changed: what holds the same sum holds the same object, wherever it was sent. */
export interface Sum {
  readonly left?: Sum;
  readonly right?: Sum;
  readonly tile?: Tile;
}

/** The tiles of a sum, each as often as it was added. */
export function tilesOf(sum: Sum): Tile[] {
  const tiles: Tile[] = [];
  const open: Sum[] = [sum];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    if (next.tile) tiles.push(next.tile);
    if (next.right) open.push(next.right);
    if (next.left) open.push(next.left);
  }
  return tiles.reverse();
}

export type SourceName = "q" | "k" | "v" | "dOut";
/** Sums over keys, by query; and sums over queries, by key. */
export type SumName = "out" | "lse" | "dq" | "dk" | "dv";

/** What memory holds, as far as attention is concerned. `delta`: of the rows of a sum `out`. */
export type Value =
  | { readonly kind: "source"; readonly name: SourceName }
  | { readonly kind: "sum"; readonly name: SumName; readonly sum: Sum }
  | { readonly kind: "delta"; readonly sum: Sum }
  | { readonly kind: "fill"; readonly value: string };

/** A sum's own rows: queries for out, lse and dq, keys for dk and dv. */
export type Side = "queries" | "keys";

/** Which sequences, heads and positions a value's rows belong to: those at the origin, and the step between rows. */
export interface Rows {
  readonly batch: number;
  readonly head: number;
  readonly start: number;
  readonly step: number;
}

/** As messages call it. */
export function describe(value: Value | undefined): string {
  if (!value) return "nothing";
  switch (value.kind) {
    case "fill":
      return `a fill with ${value.value}`;
    case "delta":
      return "delta";
    default:
      return value.name;
  }
}

/** `4..7`, `0,8..56` for positions a step apart. */
export function positionsText(spans: readonly Span[]): string {
  const texts = spans.map(({ start, length, step }) => {
    if (length <= 1) return length === 1 ? `${start}` : "none";
    return step === 1 ? `${start}..${start + length - 1}` : `${start},${start + step}..${start + (length - 1) * step}`;
  });
  return texts.join(" and ") || "none";
}

/** Where a tile was computed, and which. */
export function tileText({ place, q, k }: Pick<Tile, "place" | "q" | "k">): string {
  return `rank ${place.rank}, ${place.phase}, tile ${place.number} (queries ${positionsText(q)}, keys ${positionsText(k)})`;
}
