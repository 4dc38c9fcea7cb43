import { clipKeys, clipQueries, type Slice } from "@mosaic/core";
import type { Names } from "../symbolic/names.ts";
import { Families } from "./families.ts";
import { findDuplicate } from "./duplicates.ts";
import type { Completeness, Query, Verdict, VerifierContext } from "./context.ts";
import { missingText } from "./missing.ts";
import type { Positions } from "./positions.ts";
import { tileText } from "./sums.ts";
import type { Side } from "./values.ts";

/** A verdict, and what it was asked of. */
interface Known {
  readonly side: Side;
  readonly rows: Positions;
  readonly verdict: Verdict;
}

/** Decides whether sums are complete. Many ranks hold the same sum, so verdicts are kept. */
export class SumCompleteness implements Completeness {
  readonly #context: VerifierContext;
  readonly #families: Families;
  readonly #known = new Map<number, Known[]>();
  readonly #group: number;
  readonly #all: Readonly<Record<Side, Positions>>;
  /** The number of the call's own mask. */
  readonly #mask: number;
  readonly #parts = new Map<number, boolean>();

  constructor(context: VerifierContext) {
    const { record, positions } = context;
    const { queries, keys, options, slices, names } = record;
    this.#context = context;
    this.#families = new Families(context);
    this.#group = options.numHeads / options.numKvHeads;
    const whole = (length: number): Positions => positions.of(length > 0 ? [{ start: 0, length, step: 1 }] : []);
    this.#all = { queries: whole(queries.length), keys: whole(keys.length) };
    this.#mask = names.maskOf(slices);
  }

  of(sum: number, side: Side, rows: Positions): Verdict {
    let known = this.#known.get(sum);
    if (!known) this.#known.set(sum, (known = []));
    for (const each of known) if (each.side === side && each.rows === rows) return each.verdict;
    const verdict = this.#judge({ tiles: this.#context.sums.tilesOf(sum), side, rows });
    known.push({ side, rows, verdict });
    return verdict;
  }

  sees(queries: Positions, keys: Positions, mask: number): boolean {
    return this.#context.visibility.pairs(queries, keys, mask) > 0;
  }

  #judge(query: Query): Verdict {
    const { side, rows, tiles: ids } = query;
    const { tiles } = this.#context;
    const foreign = ids.find((id) => !this.#isPart(tiles.maskOf(id)));
    if (foreign !== undefined) {
      return { kind: "data", message: `${tileText(tiles.at(foreign))} has a mask that is no part of the call's` };
    }
    const double = this.#families.areApart(query) ? undefined : findDuplicate(this.#context, query);
    if (double) {
      return {
        kind: "duplicate",
        message: `${tileText(tiles.at(double[1]))} repeats pairs of ${tileText(tiles.at(double[0]))}`,
      };
    }
    const expected = this.#pairs(rows, side) * (side === "keys" ? this.#group : 1);
    let found = 0;
    for (const id of ids) found += this.#share(id, side, rows);
    if (found === expected) return undefined;
    const short = expected - found;
    return { kind: "missing", message: missingText(this.#context, query, { short, mask: this.#mask }) };
  }

  #pairs(rows: Positions, side: Side): number {
    const { visibility } = this.#context;
    return side === "queries"
      ? visibility.pairs(rows, this.#all.keys, this.#mask)
      : visibility.pairs(this.#all.queries, rows, this.#mask);
  }

  /** Pairs of a tile in these rows, counted once for every query head of a key head's group where rows are keys. */
  #share(id: number, side: Side, rows: Positions): number {
    const { tiles, positions, visibility } = this.#context;
    const queries = side === "queries";
    const heads = queries ? 1 : tiles.headsOf(id);
    if ((queries ? tiles.queriesOf(id) : tiles.keysOf(id)) === rows.id) return heads * tiles.pairsOf(id);
    const others = positions.at(queries ? tiles.keysOf(id) : tiles.queriesOf(id));
    const [q, k] = queries ? [rows, others] : [others, rows];
    return heads * visibility.pairs(q, k, tiles.maskOf(id));
  }

  /** Whether every slice of a tile's mask is a slice of the call's, cut to some queries and keys. */
  #isPart(mask: number): boolean {
    if (mask === this.#mask) return true;
    let isPart = this.#parts.get(mask);
    if (isPart === undefined) this.#parts.set(mask, (isPart = isPartOf(this.#context.record.names, mask, this.#mask)));
    return isPart;
  }
}

function isPartOf({ masks }: Names, mask: number, whole: number): boolean {
  const equal = (a: Slice, b: Slice): boolean =>
    a.q0 === b.q0 && a.q1 === b.q1 && a.k0 === b.k0 && a.k1 === b.k1 && a.type === b.type;
  return masks[mask]!.every((part) =>
    masks[whole]!.some((slice) => {
      const rows = clipQueries(slice, part.q0, part.q1);
      return rows !== undefined && clipKeys(rows, part.k0, part.k1).some((cut) => equal(cut, part));
    }),
  );
}
