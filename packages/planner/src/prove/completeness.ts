import { clipKeys, clipQueries, type Slice, slicesOverlap, type Span } from "@mosaic/core";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { Completeness, CoverageQuery, Verdict, VerifierContext } from "./context.ts";
import { commonPositions, type PositionList } from "./positions.ts";
import { type Tile, describeTile } from "./sums.ts";
import { formatPositions, type RowSide } from "./values.ts";

/** Maximum total number of spans. Beyond it, each sum is checked separately. */
const MAX_SPANS = 10_000;

/**
 * Checks that the tiles of a sum are disjoint. Most sums are over the shards of one layout, each once. Whether the
 * position lists of tiles are pairwise disjoint is determined once for all tiles, so that a sum must only contain no
 * list twice.
 */
class TileDisjointness {
  readonly #context: VerifierContext;
  readonly #checksBySide: Readonly<Record<RowSide, DisjointnessCheck>>;
  #numSums = 0;

  constructor(context: VerifierContext) {
    this.#context = context;
    this.#checksBySide = {
      queries: new DisjointnessCheck(context, "queries"),
      keys: new DisjointnessCheck(context, "keys"),
    };
  }

  /** Whether no two tiles of a sum share a position on the other side. False means that they may. */
  areDisjoint({ tiles: ids, side }: CoverageQuery): boolean {
    const { tiles } = this.#context;
    const isQuerySide = side === "queries";
    const { lastSumByPositionsId: lastSums, isDisjoint } = isQuerySide
      ? this.#checksBySide.keys
      : this.#checksBySide.queries;
    const sumIndex = ++this.#numSums;
    for (const id of ids) {
      const positionsId = isQuerySide ? tiles.keysIdOf(id) : tiles.queriesIdOf(id);
      if (lastSums[positionsId] === sumIndex) return false;
      lastSums[positionsId] = sumIndex;
    }
    return ids.length < 2 || isDisjoint();
  }
}

/** Checks the position lists of tiles on one side. */
class DisjointnessCheck {
  /** For each position list, the last sum that contained it. */
  readonly lastSumByPositionsId: number[] = [];
  readonly #context: VerifierContext;
  readonly #side: RowSide;
  readonly #spans: Span[] = [];
  #numCompared = 0;
  #areDisjoint = true;

  constructor(context: VerifierContext, side: RowSide) {
    this.#context = context;
    this.#side = side;
  }

  /** Whether no two lists share a position. Compares only the lists added since the last call. */
  readonly isDisjoint = (): boolean => {
    const ids = this.#context.tiles.distinctPositionIds[this.#side];
    for (; this.#areDisjoint && this.#numCompared < ids.length; this.#numCompared++) {
      const { sortedSpans: spans } = this.#context.positions.getById(ids[this.#numCompared]!);
      this.#areDisjoint =
        this.#spans.length < MAX_SPANS &&
        !spans.some((span) => this.#spans.some((other) => spansIntersect(other, span)));
      this.#spans.push(...spans);
    }
    return this.#areDisjoint;
  };
}

function spansIntersect(a: Span, b: Span): boolean {
  const first = Math.max(a.start, b.start);
  const last = Math.min(a.start + (a.length - 1) * a.step, b.start + (b.length - 1) * b.step);
  return first <= last && commonPositions(a, b) !== undefined;
}

/** A verdict and the query that it answers. */
interface CachedVerdict {
  readonly side: RowSide;
  readonly rows: PositionList;
  readonly verdict: Verdict;
}

/** Decides whether sums are complete. Verdicts are cached, because many ranks hold the same sum. */
export class SumCompleteness implements Completeness {
  readonly #context: VerifierContext;
  readonly #disjointTiles: TileDisjointness;
  readonly #verdictsBySum = new Map<number, CachedVerdict[]>();
  readonly #queryHeadsPerKvHead: number;
  readonly #allPositions: Readonly<Record<RowSide, PositionList>>;
  /** Number of the call's mask. */
  readonly #mask: number;
  readonly #submaskResults = new Map<number, boolean>();

  constructor(context: VerifierContext) {
    const { record, positions } = context;
    const { queries, keys, options, slices, interned } = record;
    this.#context = context;
    this.#disjointTiles = new TileDisjointness(context);
    this.#queryHeadsPerKvHead = options.numHeads / options.numKvHeads;
    const allPositions = (length: number): PositionList =>
      positions.fromSpans(length > 0 ? [{ start: 0, length, step: 1 }] : []);
    this.#allPositions = { queries: allPositions(queries.length), keys: allPositions(keys.length) };
    this.#mask = interned.maskId(slices);
  }

  evaluateSum(sum: number, side: RowSide, rows: PositionList): Verdict {
    let cachedVerdicts = this.#verdictsBySum.get(sum);
    if (!cachedVerdicts) this.#verdictsBySum.set(sum, (cachedVerdicts = []));
    for (const entry of cachedVerdicts) if (entry.side === side && entry.rows === rows) return entry.verdict;
    const verdict = this.#evaluate({ tiles: this.#context.sums.listTiles(sum), side, rows });
    cachedVerdicts.push({ side, rows, verdict });
    return verdict;
  }

  isVisible(queries: PositionList, keys: PositionList, mask: number): boolean {
    return this.#context.visibility.countPairs(queries, keys, mask) > 0;
  }

  #evaluate(query: CoverageQuery): Verdict {
    const { side, rows, tiles: ids } = query;
    const { tiles } = this.#context;
    const tileOutsideMask = ids.find((id) => !this.#isSubmask(tiles.maskOf(id)));
    if (tileOutsideMask !== undefined) {
      return {
        kind: "data",
        message: `${describeTile(tiles.get(tileOutsideMask))} has a mask that is not a subset of the call's mask`,
      };
    }
    const duplicate = this.#disjointTiles.areDisjoint(query) ? undefined : findDuplicate(this.#context, query);
    if (duplicate) {
      return {
        kind: "duplicate",
        message: `${describeTile(tiles.get(duplicate[1]))} duplicates pairs of ${describeTile(tiles.get(duplicate[0]))}`,
      };
    }
    const expected = this.#expectedPairs(rows, side) * (side === "keys" ? this.#queryHeadsPerKvHead : 1);
    let numPairs = 0;
    for (const id of ids) numPairs += this.#pairsOfTile(id, side, rows);
    if (numPairs === expected) return undefined;
    const numMissingPairs = expected - numPairs;
    return { kind: "missing", message: describeMissing(this.#context, query, { numMissingPairs, mask: this.#mask }) };
  }

  #expectedPairs(rows: PositionList, side: RowSide): number {
    const { visibility } = this.#context;
    return side === "queries"
      ? visibility.countPairs(rows, this.#allPositions.keys, this.#mask)
      : visibility.countPairs(this.#allPositions.queries, rows, this.#mask);
  }

  /**
   * Counts the visible pairs of a tile in these rows. If the rows are keys, each pair counts once for every query head
   * of the tile.
   */
  #pairsOfTile(id: number, side: RowSide, rows: PositionList): number {
    const { tiles, positions, visibility } = this.#context;
    const isQuerySide = side === "queries";
    const heads = isQuerySide ? 1 : tiles.numHeadsOf(id);
    if ((isQuerySide ? tiles.queriesIdOf(id) : tiles.keysIdOf(id)) === rows.id) return heads * tiles.numPairsOf(id);
    const oppositePositions = positions.getById(isQuerySide ? tiles.keysIdOf(id) : tiles.queriesIdOf(id));
    const [q, k] = isQuerySide ? [rows, oppositePositions] : [oppositePositions, rows];
    return heads * visibility.countPairs(q, k, tiles.maskOf(id));
  }

  /** Whether every slice of a tile's mask is a slice of the call's mask, clipped to some queries and keys. */
  #isSubmask(mask: number): boolean {
    if (mask === this.#mask) return true;
    let isSubset = this.#submaskResults.get(mask);
    if (isSubset === undefined)
      this.#submaskResults.set(mask, (isSubset = isSubmask(this.#context.record.interned, mask, this.#mask)));
    return isSubset;
  }
}

function isSubmask({ masks }: InternPool, mask: number, fullMask: number): boolean {
  const areEqualSlices = (a: Slice, b: Slice): boolean =>
    a.q0 === b.q0 && a.q1 === b.q1 && a.k0 === b.k0 && a.k1 === b.k1 && a.type === b.type;
  return masks[mask]!.every((partSlice) =>
    masks[fullMask]!.some((slice) => {
      const rows = clipQueries(slice, partSlice.q0, partSlice.q1);
      return (
        rows !== undefined &&
        clipKeys(rows, partSlice.k0, partSlice.k1).some((clippedSlice) => areEqualSlices(clippedSlice, partSlice))
      );
    }),
  );
}

interface TileSpan {
  readonly span: Span;
  readonly end: number;
  readonly id: number;
  readonly tile: Tile;
}

/** Returns the numbers of the first two tiles of a sum that both compute a pair of its rows, if any. */
function findDuplicate(context: VerifierContext, query: CoverageQuery): readonly [number, number] | undefined {
  const tileSpans: TileSpan[] = query.tiles.flatMap((id) => {
    const tile = context.tiles.get(id);
    const { sortedSpans: spans } = query.side === "queries" ? tile.k : tile.q;
    const nonEmptySpans = spans.filter(({ length }) => length > 0);
    return nonEmptySpans.map((span) => ({ span, end: span.start + (span.length - 1) * span.step + 1, id, tile }));
  });
  // From left to right. The sort is stable, so that tiles that begin at the same position stay in the order of
  // addition.
  let activeSpans: TileSpan[] = [];
  for (const next of tileSpans.toSorted((a, b) => a.span.start - b.span.start)) {
    activeSpans = activeSpans.filter(({ end }) => end > next.span.start);
    const duplicate = activeSpans.find((other) => haveCommonPairs(context, query, other, next));
    if (duplicate) return [duplicate.id, next.id];
    activeSpans.push(next);
  }
  return undefined;
}

/** Whether two tiles both compute a pair of the sum's rows and the positions that these spans share. */
// oxlint-disable-next-line max-params -- a sum and two of its tiles
function haveCommonPairs(
  { record, positions, visibility }: VerifierContext,
  { side, rows }: CoverageQuery,
  a: TileSpan,
  b: TileSpan,
): boolean {
  const haveCommonHeads =
    side === "queries" || (a.tile.firstHead < b.tile.endHead && b.tile.firstHead < a.tile.endHead);
  const commonSpan = haveCommonHeads ? commonPositions(a.span, b.span) : undefined;
  if (!commonSpan) return false;
  const sharedPositions = positions.fromSpans([commonSpan]);
  const [q, k] = side === "queries" ? [rows, sharedPositions] : [sharedPositions, rows];
  if (visibility.countPairs(q, k, a.tile.mask) === 0) return false;
  if (a.tile.mask === b.tile.mask) return true;
  const { masks } = record.interned;
  return masks[a.tile.mask]!.some((sliceA) => masks[b.tile.mask]!.some((sliceB) => slicesOverlap(sliceA, sliceB)));
}

/** Describes the shards whose pairs with some rows are missing. */
function describeMissing(
  context: VerifierContext,
  query: CoverageQuery,
  { numMissingPairs, mask }: { readonly numMissingPairs: number; readonly mask: number },
): string {
  const { record, tiles, relabeling } = context;
  const { side } = query;
  const otherSide = side === "queries" ? "keys" : "queries";
  const queryHeadsPerKvHead = side === "keys" ? record.options.numHeads / record.options.numKvHeads : 1;
  const shards = relabeling.shards[otherSide];
  const spans = Array.from({ length: shards.count }, (_, shard) => shards.spans(shard)).flat();
  const missingSpans = spans.filter((span) => {
    let numPairs = 0;
    for (const id of query.tiles) {
      const tileSpans = (side === "queries" ? tiles.get(id).k : tiles.get(id).q).sortedSpans;
      const commonSpans = tileSpans.map((each) => commonPositions(each, span)).filter((each) => each !== undefined);
      numPairs +=
        (side === "keys" ? tiles.numHeadsOf(id) : 1) * countPairs(context, query, commonSpans, tiles.maskOf(id));
    }
    return numPairs < queryHeadsPerKvHead * countPairs(context, query, [span], mask);
  });
  const rows = formatPositions(query.rows.spans);
  return `${side} ${rows}, ${otherSide} ${formatPositions(missingSpans)}: ${numMissingPairs} visible pairs are missing`;
}

// oxlint-disable-next-line max-params -- a sum, and spans under a mask
function countPairs(
  { positions, visibility }: VerifierContext,
  query: CoverageQuery,
  spans: readonly Span[],
  mask: number,
): number {
  const countedPositions = positions.fromSpans(spans);
  const { side, rows } = query as { side: RowSide; rows: typeof countedPositions };
  return side === "queries"
    ? visibility.countPairs(rows, countedPositions, mask)
    : visibility.countPairs(countedPositions, rows, mask);
}
