import { clipKeys, clipQueries, type Slice, slicesOverlap, type Span } from "@mosaic/core";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { Completeness, CoverageQuery, Verdict, VerifierContext } from "./context.ts";
import { commonPositions, type PositionSet } from "./positions.ts";
import { type Tile, describeTile } from "./sums.ts";
import { formatPositions, type RowSide } from "./values.ts";

/** Lists with more spans in all are compared sum by sum. */
const MAX_SPANS = 10_000;

/**
 * Sums are mostly over the shards of one layout, each once. Whether the lists of positions that tiles have are pairwise
 * apart is found out once for all tiles; a sum then only has to have none twice.
 */
class DisjointTiles {
  readonly #context: VerifierContext;
  readonly #sides: Readonly<Record<RowSide, DisjointnessCheck>>;
  #sums = 0;

  constructor(context: VerifierContext) {
    this.#context = context;
    this.#sides = { queries: new DisjointnessCheck(context, "queries"), keys: new DisjointnessCheck(context, "keys") };
  }

  /** Whether no two tiles of a sum share a position on the other side; if not, they may. */
  areDisjoint({ tiles: ids, side }: CoverageQuery): boolean {
    const { tiles } = this.#context;
    const keys = side === "queries";
    const { lastSum, isDisjoint } = keys ? this.#sides.keys : this.#sides.queries;
    const sum = ++this.#sums;
    for (const id of ids) {
      const number = keys ? tiles.keysOf(id) : tiles.queriesOf(id);
      if (lastSum[number] === sum) return false;
      lastSum[number] = sum;
    }
    return ids.length < 2 || isDisjoint();
  }
}

/** The positions that tiles have on one side. */
class DisjointnessCheck {
  /** For each list of positions, the last sum that had it. */
  readonly lastSum: number[] = [];
  readonly #context: VerifierContext;
  readonly #side: RowSide;
  readonly #spans: Span[] = [];
  #compared = 0;
  #disjoint = true;

  constructor(context: VerifierContext, side: RowSide) {
    this.#context = context;
    this.#side = side;
  }

  /** Whether no two lists share a position. Compares only those that are new since the last call. */
  readonly isDisjoint = (): boolean => {
    const ids = this.#context.tiles.distinct[this.#side];
    for (; this.#disjoint && this.#compared < ids.length; this.#compared++) {
      const { sorted: spans } = this.#context.positions.byId(ids[this.#compared]!);
      this.#disjoint =
        this.#spans.length < MAX_SPANS && !spans.some((span) => this.#spans.some((known) => intersect(known, span)));
      this.#spans.push(...spans);
    }
    return this.#disjoint;
  };
}

function intersect(a: Span, b: Span): boolean {
  const first = Math.max(a.start, b.start);
  const last = Math.min(a.start + (a.length - 1) * a.step, b.start + (b.length - 1) * b.step);
  return first <= last && commonPositions(a, b) !== undefined;
}

/** A verdict, and the query it answers. */
interface CachedVerdict {
  readonly side: RowSide;
  readonly rows: PositionSet;
  readonly verdict: Verdict;
}

/** Decides whether sums are complete. Many ranks hold the same sum, so verdicts are kept. */
export class SumCompleteness implements Completeness {
  readonly #context: VerifierContext;
  readonly #disjointTiles: DisjointTiles;
  readonly #verdicts = new Map<number, CachedVerdict[]>();
  readonly #group: number;
  readonly #all: Readonly<Record<RowSide, PositionSet>>;
  /** The number of the call's own mask. */
  readonly #mask: number;
  readonly #submasks = new Map<number, boolean>();

  constructor(context: VerifierContext) {
    const { record, positions } = context;
    const { queries, keys, options, slices, interned } = record;
    this.#context = context;
    this.#disjointTiles = new DisjointTiles(context);
    this.#group = options.numHeads / options.numKvHeads;
    const whole = (length: number): PositionSet =>
      positions.fromSpans(length > 0 ? [{ start: 0, length, step: 1 }] : []);
    this.#all = { queries: whole(queries.length), keys: whole(keys.length) };
    this.#mask = interned.maskId(slices);
  }

  verdictOf(sum: number, side: RowSide, rows: PositionSet): Verdict {
    let known = this.#verdicts.get(sum);
    if (!known) this.#verdicts.set(sum, (known = []));
    for (const each of known) if (each.side === side && each.rows === rows) return each.verdict;
    const verdict = this.#evaluate({ tiles: this.#context.sums.tilesOf(sum), side, rows });
    known.push({ side, rows, verdict });
    return verdict;
  }

  isVisible(queries: PositionSet, keys: PositionSet, mask: number): boolean {
    return this.#context.visibility.pairs(queries, keys, mask) > 0;
  }

  #evaluate(query: CoverageQuery): Verdict {
    const { side, rows, tiles: ids } = query;
    const { tiles } = this.#context;
    const foreign = ids.find((id) => !this.#isSubmask(tiles.maskOf(id)));
    if (foreign !== undefined) {
      return {
        kind: "data",
        message: `${describeTile(tiles.at(foreign))} has a mask that is not a subset of the call's mask`,
      };
    }
    const duplicate = this.#disjointTiles.areDisjoint(query) ? undefined : findDuplicate(this.#context, query);
    if (duplicate) {
      return {
        kind: "duplicate",
        message: `${describeTile(tiles.at(duplicate[1]))} duplicates pairs of ${describeTile(tiles.at(duplicate[0]))}`,
      };
    }
    const expected = this.#expectedPairs(rows, side) * (side === "keys" ? this.#group : 1);
    let found = 0;
    for (const id of ids) found += this.#pairsOfTile(id, side, rows);
    if (found === expected) return undefined;
    const missingPairs = expected - found;
    return { kind: "missing", message: describeMissing(this.#context, query, { missingPairs, mask: this.#mask }) };
  }

  #expectedPairs(rows: PositionSet, side: RowSide): number {
    const { visibility } = this.#context;
    return side === "queries"
      ? visibility.pairs(rows, this.#all.keys, this.#mask)
      : visibility.pairs(this.#all.queries, rows, this.#mask);
  }

  /** Pairs of a tile in these rows, counted once for every query head of a KV head's group where rows are keys. */
  #pairsOfTile(id: number, side: RowSide, rows: PositionSet): number {
    const { tiles, positions, visibility } = this.#context;
    const queries = side === "queries";
    const heads = queries ? 1 : tiles.headsOf(id);
    if ((queries ? tiles.queriesOf(id) : tiles.keysOf(id)) === rows.id) return heads * tiles.pairsOf(id);
    const others = positions.byId(queries ? tiles.keysOf(id) : tiles.queriesOf(id));
    const [q, k] = queries ? [rows, others] : [others, rows];
    return heads * visibility.pairs(q, k, tiles.maskOf(id));
  }

  /** Whether every slice of a tile's mask is a slice of the call's, cut to some queries and keys. */
  #isSubmask(mask: number): boolean {
    if (mask === this.#mask) return true;
    let isPart = this.#submasks.get(mask);
    if (isPart === undefined)
      this.#submasks.set(mask, (isPart = isSubmask(this.#context.record.interned, mask, this.#mask)));
    return isPart;
  }
}

function isSubmask({ masks }: InternPool, mask: number, whole: number): boolean {
  const equal = (a: Slice, b: Slice): boolean =>
    a.q0 === b.q0 && a.q1 === b.q1 && a.k0 === b.k0 && a.k1 === b.k1 && a.type === b.type;
  return masks[mask]!.every((part) =>
    masks[whole]!.some((slice) => {
      const rows = clipQueries(slice, part.q0, part.q1);
      return rows !== undefined && clipKeys(rows, part.k0, part.k1).some((cut) => equal(cut, part));
    }),
  );
}

interface TileSpan {
  readonly span: Span;
  readonly end: number;
  readonly id: number;
  readonly tile: Tile;
}

/** The first two tiles of a sum that compute some pair of its rows both, if any: by their numbers. */
function findDuplicate(context: VerifierContext, query: CoverageQuery): readonly [number, number] | undefined {
  const spansOfTiles: TileSpan[] = query.tiles.flatMap((id) => {
    const tile = context.tiles.at(id);
    const { sorted: spans } = query.side === "queries" ? tile.k : tile.q;
    const filled = spans.filter(({ length }) => length > 0);
    return filled.map((span) => ({ span, end: span.start + (span.length - 1) * span.step + 1, id, tile }));
  });
  // From left to right; the sort keeps the order in which tiles were added where they begin at the same position.
  let open: TileSpan[] = [];
  for (const next of spansOfTiles.toSorted((a, b) => a.span.start - b.span.start)) {
    open = open.filter(({ end }) => end > next.span.start);
    const duplicate = open.find((other) => overlapInPairs(context, query, other, next));
    if (duplicate) return [duplicate.id, next.id];
    open.push(next);
  }
  return undefined;
}

/** Whether two tiles compute some pair of the sum's rows and the positions that these spans share. */
// oxlint-disable-next-line max-params -- of what sum, and what with what
function overlapInPairs(
  { record, positions, visibility }: VerifierContext,
  { side, rows }: CoverageQuery,
  a: TileSpan,
  b: TileSpan,
): boolean {
  const heads = side === "queries" || (a.tile.firstHead < b.tile.endHead && b.tile.firstHead < a.tile.endHead);
  const common = heads ? commonPositions(a.span, b.span) : undefined;
  if (!common) return false;
  const others = positions.fromSpans([common]);
  const [q, k] = side === "queries" ? [rows, others] : [others, rows];
  if (visibility.pairs(q, k, a.tile.mask) === 0) return false;
  if (a.tile.mask === b.tile.mask) return true;
  const { masks } = record.interned;
  return masks[a.tile.mask]!.some((one) => masks[b.tile.mask]!.some((two) => slicesOverlap(one, two)));
}

/** Names the shards whose pairs with some rows are missing. */
function describeMissing(
  context: VerifierContext,
  query: CoverageQuery,
  { missingPairs, mask }: { readonly missingPairs: number; readonly mask: number },
): string {
  const { record, tiles, relabeling } = context;
  const { side } = query;
  const other = side === "queries" ? "keys" : "queries";
  const group = side === "keys" ? record.options.numHeads / record.options.numKvHeads : 1;
  const shards = relabeling.shards[other];
  const spans = Array.from({ length: shards.count }, (_, shard) => shards.spans(shard)).flat();
  const missing = spans.filter((span) => {
    let found = 0;
    for (const id of query.tiles) {
      const own = (side === "queries" ? tiles.at(id).k : tiles.at(id).q).sorted;
      const common = own.map((each) => commonPositions(each, span)).filter((each) => each !== undefined);
      found += (side === "keys" ? tiles.headsOf(id) : 1) * countPairs(context, query, common, tiles.maskOf(id));
    }
    return found < group * countPairs(context, query, [span], mask);
  });
  const rows = formatPositions(query.rows.spans);
  return `${side} ${rows}, ${other} ${formatPositions(missing)}: ${missingPairs} visible pairs are missing`;
}

// oxlint-disable-next-line max-params -- of what sum, and what with what
function countPairs(
  { positions, visibility }: VerifierContext,
  query: CoverageQuery,
  others: readonly Span[],
  mask: number,
): number {
  const all = positions.fromSpans(others);
  const { side, rows } = query as { side: RowSide; rows: typeof all };
  return side === "queries" ? visibility.pairs(rows, all, mask) : visibility.pairs(all, rows, mask);
}
