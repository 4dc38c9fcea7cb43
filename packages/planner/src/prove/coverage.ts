import { visiblePairs } from "@mosaic/core";
import { SumCompleteness } from "./complete.ts";
import type { Segment, Shards } from "../classes/shards.ts";
import type { Completeness, Verdict, VerifierContext } from "./context.ts";
import { neighboursJoined, type Positions } from "./positions.ts";
import { type Addend, nothing } from "./sums.ts";
import type { Side } from "./values.ts";

/** Pairs of spans that are looked at, rank by rank, where it does not follow from one that all ranks of a class see nothing. */
const MOST_LOOKS = 2 ** 24;

/**
 * Decides whether sums over translated tiles are complete: for the rank that has the sum, or for all ranks of its class.
 * Rows of tiles are followed as rows of shards, which translations permute: what is disjoint, and what is left out,
 * is so for every rank of the class. Where tiles have every row of the other side once, no more needs to be asked. Of rows that
 * are left out, or there twice, no pair may be visible: of whole shards it is enough that the rank itself sees none, for how
 * many pairs of two shards are visible is the same for all; else each rank is asked.
 */
export class Coverage implements Completeness {
  readonly #context: VerifierContext;
  readonly #whom: "rank" | "class";
  readonly #mask: number;
  readonly #known = new Map<number, { side: Side; rows: Positions; verdict: Verdict }[]>();
  readonly #segments = new Map<Positions, Readonly<Partial<Record<Side, readonly Segment[]>>>>();
  readonly #plain: SumCompleteness;

  constructor(context: VerifierContext, whom: "rank" | "class") {
    const { names, slices } = context.record;
    this.#context = context;
    this.#whom = whom;
    this.#mask = names.maskOf(slices);
    this.#plain = new SumCompleteness(context);
  }

  of(sum: number, side: Side, rows: Positions): Verdict {
    const { sums, relabelling } = this.#context;
    const origin = sums.origin(sum);
    if (this.#whom === "class" && origin.translation > 0) {
      // Asked of all ranks of the class, so of that whose sum it is a translation of.
      const back = relabelling.translations.inverse(origin.translation);
      return this.of(origin.sum, side, relabelling.positions(rows, side, back));
    }
    let known = this.#known.get(sum);
    if (!known) this.#known.set(sum, (known = []));
    for (const each of known) if (each.side === side && each.rows === rows) return each.verdict;
    const verdict = this.#judge(sums.addendsOf(sum), side, rows);
    known.push({ side, rows, verdict });
    return verdict;
  }

  sees(queries: Positions, keys: Positions, mask: number): boolean {
    if (this.#plain.sees(queries, keys, mask)) return true;
    if (this.#whom === "rank") return false;
    // Of whole shards that none of this rank's sees, no other rank of the class sees any.
    const whole =
      this.#areWhole(this.#segmentsOf(queries, "queries"), "queries") &&
      this.#areWhole(this.#segmentsOf(keys, "keys"), "keys");
    return !whole || mask !== this.#mask;
  }

  #judge(addends: readonly Addend[], side: Side, rows: Positions): Verdict {
    const { tiles } = this.#context;
    const whole = addends.every(({ tile }) => tiles.maskOf(tile) === this.#mask);
    const odd = whole ? this.#oddRows(addends, side) : [];
    if (whole && odd.length === 0) return undefined;
    const own = this.#sees(rows, side, odd, 0);
    if (own || !whole) {
      const verdict = this.#plainVerdict(addends, side, rows);
      if (verdict || this.#whom === "rank") return verdict;
      return {
        kind: "class",
        message: "tiles are cut by masks of their own: nothing follows for other ranks of the class",
      };
    }
    if (this.#whom === "rank" || this.#areWhole(odd, other(side))) {
      if (this.#whom === "rank" || this.#areWhole(this.#segmentsOf(rows, side), side)) return undefined;
    }
    return this.#elsewhere(addends, side, rows, odd);
  }

  /** The rows of the other side that no tile has, or more than one, for some heads. */
  #oddRows(addends: readonly Addend[], side: Side): Segment[] {
    const { tiles, record } = this.#context;
    const shards = this.#context.relabelling.shards[other(side)];
    const group = side === "keys" ? record.options.numHeads / record.options.numKvHeads : 1;
    const bounds = new Set([0, group]);
    if (side === "keys") {
      for (const { tile } of addends)
        bounds.add(tiles.firstHeadOf(tile)).add(tiles.firstHeadOf(tile) + tiles.headsOf(tile));
    }
    const heads = [...bounds].toSorted((a, b) => a - b).slice(0, -1);
    return heads.flatMap((head) => {
      const has = (tile: number): boolean => {
        const from = head - tiles.firstHeadOf(tile);
        return side === "queries" || (from >= 0 && from < tiles.headsOf(tile));
      };
      return this.#uneven(
        addends.filter(({ tile }) => has(tile)),
        other(side),
        shards,
      );
    });
  }

  #uneven(addends: readonly Addend[], side: Side, shards: Shards): Segment[] {
    const { tiles, positions, relabelling } = this.#context;
    const cover = new Cover(shards);
    for (const { tile, translation } of addends) {
      const rows = positions.at(side === "keys" ? tiles.keysOf(tile) : tiles.queriesOf(tile));
      for (const { shard, first, count } of this.#segmentsOf(rows, side)) {
        cover.add(relabelling.shard(shard, translation), first, count);
      }
    }
    return cover.uneven();
  }

  #segmentsOf(rows: Positions, side: Side): readonly Segment[] {
    let known = this.#segments.get(rows);
    let found = known?.[side];
    if (!found) {
      found = this.#context.relabelling.shards[side].segments(rows.spans) ?? [];
      known = { ...known, [side]: found };
      this.#segments.set(rows, known);
    }
    return found;
  }

  #areWhole(segments: readonly Segment[], side: Side): boolean {
    const shards = this.#context.relabelling.shards[side];
    return segments.every(({ shard, first, count }) => first === 0 && count === shards.rows(shard));
  }

  /** Whether any pair of rows and odd ones is visible, where a translation takes both. */
  // oxlint-disable-next-line max-params -- which rows of which side, which of the other, and where
  #sees(rows: Positions, side: Side, odd: readonly Segment[], translation: number): boolean {
    const { relabelling, record } = this.#context;
    const shards = relabelling.shards[other(side)];
    const moved = odd.flatMap((segment) =>
      shards.positions({ ...segment, shard: relabelling.shard(segment.shard, translation) }),
    );
    const spans = neighboursJoined(moved.toSorted((a, b) => a.start - b.start));
    const own = relabelling.positions(rows, side, translation).sorted;
    return (side === "queries" ? visiblePairs(own, spans, record.slices) : visiblePairs(spans, own, record.slices)) > 0;
  }

  /** Asks every rank of the class. */
  // oxlint-disable-next-line max-params -- a sum, and what of it is odd
  #elsewhere(addends: readonly Addend[], side: Side, rows: Positions, odd: readonly Segment[]): Verdict {
    const { translations } = this.#context.relabelling;
    if (translations.order * odd.length * rows.spans.length > MOST_LOOKS) {
      return { kind: "class", message: "parts of shards are left out: too many ranks to see whether they may be" };
    }
    for (const translation of translations.all()) {
      if (!this.#sees(rows, side, odd, translation)) continue;
      const { relabelling } = this.#context;
      const there = addends.map(({ tile, translation: from }) => ({
        tile,
        translation: translations.apply(translation, from),
      }));
      return this.#plainVerdict(there, side, relabelling.positions(rows, side, translation));
    }
    return undefined;
  }

  /** The verdict, and its text, of a sum whose tiles are written down where translations take them. */
  #plainVerdict(addends: readonly Addend[], side: Side, rows: Positions): Verdict {
    const { sums, tiles, relabelling, visibility } = this.#context;
    let sum = nothing;
    for (const { tile, translation } of addends) {
      if (translation === 0) {
        sum = sums.add(sum, tile);
        continue;
      }
      const known = tiles.at(tile);
      const rank = relabelling.translations.apply(translation, known.rank);
      const q = relabelling.positions(known.q, "queries", translation);
      const k = relabelling.positions(known.k, "keys", translation);
      sum = sums.add(sum, tiles.add({ ...known, rank, q, k, pairs: visibility.pairs(q, k, known.mask) }));
    }
    return this.#plain.of(sum, side, rows);
  }
}

function other(side: Side): Side {
  return side === "queries" ? "keys" : "queries";
}

/** Rows of shards that tiles have: intervals of the rows of all shards, one shard after the other. */
class Cover {
  readonly #shards: Shards;
  /** Where each shard begins. */
  readonly #begins: Float64Array;
  readonly #intervals: (readonly [first: number, end: number])[] = [];

  constructor(shards: Shards) {
    this.#shards = shards;
    this.#begins = new Float64Array(shards.count + 1);
    for (let shard = 0; shard < shards.count; shard++) {
      this.#begins[shard + 1] = this.#begins[shard]! + shards.rows(shard);
    }
  }

  add(shard: number, first: number, count: number): void {
    const begin = this.#begins[shard]! + first;
    this.#intervals.push([begin, begin + count]);
  }

  /** What no interval covers, and what more than one do. */
  uneven(): Segment[] {
    const found: Segment[] = [];
    let end = 0;
    for (const [first, last] of this.#intervals.toSorted((a, b) => a[0] - b[0])) {
      if (first !== end) this.#cut(found, Math.min(first, end), first > end ? first : Math.min(end, last));
      end = Math.max(end, last);
    }
    this.#cut(found, end, this.#begins.at(-1)!);
    return found;
  }

  #cut(found: Segment[], from: number, end: number): void {
    let shard = this.#shardAt(from);
    for (let row = from; row < end; shard++) {
      const begin = this.#begins[shard]!;
      const count = Math.min(end, this.#begins[shard + 1]!) - row;
      if (count > 0) found.push({ shard, first: row - begin, count });
      row += Math.max(0, count);
    }
  }

  #shardAt(row: number): number {
    let [low, high] = [0, this.#shards.count];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.#begins[middle]! <= row) low = middle;
      else high = middle;
    }
    return low;
  }
}
