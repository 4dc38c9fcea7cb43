import { clipKeys, clipQueries, type Slice, slicesOverlap, type Span } from "@mosaic/core";
import type { AttentionRecord } from "../record.ts";
import { commonPositions, visiblePairs } from "./area.ts";
import type { Fault } from "./fault.ts";
import { findDoubles } from "./doubles.ts";
import { positionsText, type Side, type Sum, type Tile, tileText, tilesOf } from "./values.ts";

/** What is wrong with a sum; undefined if every visible pair of its rows is in it once. */
export type Verdict = Pick<Fault, "kind" | "message"> | undefined;

/** Says of sums whether they are complete. Many ranks hold the same sum, so verdicts are kept. */
export class Completeness {
  readonly #record: AttentionRecord;
  readonly #known = new WeakMap<Sum, Map<string, Verdict>>();
  readonly #group: number;
  readonly #all: Readonly<Record<Side, readonly Span[]>>;

  constructor(record: AttentionRecord) {
    const { queries, keys, options } = record;
    this.#record = record;
    this.#group = options.heads / options.kvHeads;
    const whole = (length: number): Span[] => [{ start: 0, length, step: 1 }];
    this.#all = { queries: whole(queries.length), keys: whole(keys.length) };
  }

  of(sum: Sum, side: Side, rows: Span): Verdict {
    let verdicts = this.#known.get(sum);
    if (!verdicts) this.#known.set(sum, (verdicts = new Map()));
    const name = `${side},${rows.start},${rows.length},${rows.step}`;
    if (!verdicts.has(name)) verdicts.set(name, this.#judge(tilesOf(sum), side, rows));
    return verdicts.get(name);
  }

  #judge(tiles: readonly Tile[], side: Side, rows: Span): Verdict {
    const foreign = tiles.find(({ mask }) => !this.#isPart(mask));
    if (foreign) return { kind: "data", message: `${tileText(foreign)} has a mask that is no part of the call's` };
    const double = findDoubles(tiles, side, (a, b) => this.#collide({ a, b, side, rows }));
    if (double) {
      return { kind: "twice", message: `${tileText(double[1])} repeats pairs of ${tileText(double[0])}` };
    }
    const expected = this.#pairs(this.#all[other(side)], side, rows) * (side === "keys" ? this.#group : 1);
    const found = tiles.reduce((sum, tile) => sum + this.#share(tile, side, rows), 0);
    return found === expected ? undefined : this.#missing(tiles, side, rows, expected - found);
  }

  #pairs(others: readonly Span[], side: Side, rows: Span, mask: readonly Slice[] = this.#record.slices): number {
    return side === "queries" ? visiblePairs([rows], others, mask) : visiblePairs(others, [rows], mask);
  }

  /** Pairs of a tile in these rows, counted once for every query head of a key head's group where rows are keys. */
  #share(tile: Tile, side: Side, rows: Span): number {
    const [own, others] = side === "queries" ? [tile.q, tile.k] : [tile.k, tile.q];
    const heads = side === "keys" ? tile.heads[1] - tile.heads[0] : 1;
    const [only] = own;
    const alike = only!.start === rows.start && only!.length === rows.length;
    const same = own.length === 1 && alike && (only!.step === rows.step || rows.length === 1);
    return heads * (same ? tile.pairs : this.#pairs(others, side, rows, tile.mask));
  }

  /** Whether both tiles compute some pair of these rows and the positions they share. */
  #collide({ a, b, side, rows }: Collision): boolean {
    const heads = side === "queries" || (a.heads[0] < b.heads[1] && b.heads[0] < a.heads[1]);
    if (!heads) return false;
    return spansOf(a, other(side)).some((x) =>
      spansOf(b, other(side)).some((y) => {
        const common = commonPositions(x, y);
        if (!common || this.#pairs([common], side, rows, a.mask) === 0) return false;
        return a.mask === b.mask || a.mask.some((one) => b.mask.some((two) => slicesOverlap(one, two)));
      }),
    );
  }

  /** Whether every slice of a tile's mask is a slice of the call's, cut to some queries and keys. */
  #isPart(mask: readonly Slice[]): boolean {
    const { slices } = this.#record;
    if (mask === slices) return true;
    const equal = (a: Slice, b: Slice): boolean =>
      a.q0 === b.q0 && a.q1 === b.q1 && a.k0 === b.k0 && a.k1 === b.k1 && a.type === b.type;
    return mask.every((part) =>
      slices.some((slice) => {
        const rows = clipQueries(slice, part.q0, part.q1);
        return rows !== undefined && clipKeys(rows, part.k0, part.k1).some((cut) => equal(cut, part));
      }),
    );
  }

  /** Names the shards whose pairs are missing. */
  // oxlint-disable-next-line max-params -- as the sum was judged, and by how much it fell short
  #missing(tiles: readonly Tile[], side: Side, rows: Span, short: number): Verdict {
    const layout = this.#record[other(side)];
    const shards = new Set(this.#record.ranks.map(({ at }) => layout.spans(at)));
    const missing: Span[] = [];
    for (const span of [...shards].flat()) {
      const wanted = this.#pairs([span], side, rows) * (side === "keys" ? this.#group : 1);
      const found = tiles.reduce((sum, tile) => sum + this.#shared(tile, side, rows, span), 0);
      if (found < wanted) missing.push(span);
    }
    const [own, others] = side === "queries" ? ["queries", "keys"] : ["keys", "queries"];
    return {
      kind: "missing",
      message: `${own} ${positionsText([rows])} and ${others} ${positionsText(missing)} do not meet: ${short} pairs are missing`,
    };
  }

  // oxlint-disable-next-line max-params -- a tile's part of a span, as rows see it
  #shared(tile: Tile, side: Side, rows: Span, span: Span): number {
    const common = spansOf(tile, other(side))
      .map((each) => commonPositions(each, span))
      .filter((each) => each !== undefined);
    const heads = side === "keys" ? tile.heads[1] - tile.heads[0] : 1;
    return heads * this.#pairs(common, side, rows, tile.mask);
  }
}

interface Collision {
  readonly a: Tile;
  readonly b: Tile;
  readonly side: Side;
  readonly rows: Span;
}

function other(side: Side): Side {
  return side === "queries" ? "keys" : "queries";
}

function spansOf(tile: Tile, side: Side): readonly Span[] {
  return side === "queries" ? tile.q : tile.k;
}
