import { visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import { SumCompleteness } from "./completeness.ts";
import type { Segment, Shards } from "../symmetry/shards.ts";
import type { Completeness, Verdict, VerifierContext } from "./context.ts";
import { mergeAdjacentSpans, type PositionList } from "./positions.ts";
import { type Addend, EMPTY_SUM } from "./sums.ts";
import type { RowSide } from "./values.ts";

/**
 * Maximum number of pairs of spans that are checked rank by rank, if the result for one rank does not imply that for
 * its class.
 */
const MAX_SPAN_PAIRS = 2 ** 24;

/**
 * Decides whether sums over translated tiles are complete: for the rank that has the sum, or for all ranks of its
 * class. Rows of tiles are represented as rows of shards, which translations permute, so that disjoint and missing rows
 * correspond on every rank of the class. If the tiles contain every row of the other side once, nothing more is
 * checked. If rows are missing or duplicated, none of their pairs may be visible. For whole shards, this is checked on
 * the rank itself only, because the number of visible pairs of two shards is the same for the whole class. Otherwise
 * every rank is checked.
 */
export class Coverage implements Completeness {
  readonly #context: VerifierContext;
  readonly #scope: "rank" | "class";
  readonly #mask: number;
  readonly #verdictsBySum = new Map<number, { side: RowSide; rows: PositionList; verdict: Verdict }[]>();
  readonly #segments = new Map<PositionList, Readonly<Partial<Record<RowSide, readonly Segment[]>>>>();
  readonly #sumCompleteness: SumCompleteness;

  constructor(context: VerifierContext, scope: "rank" | "class") {
    const { interned, slices } = context.record;
    this.#context = context;
    this.#scope = scope;
    this.#mask = interned.maskId(slices);
    this.#sumCompleteness = new SumCompleteness(context);
  }

  evaluateSum(sum: number, side: RowSide, rows: PositionList): Verdict {
    const { sums, relabeling } = this.#context;
    const origin = sums.origin(sum);
    if (this.#scope === "class" && origin.translation > 0) {
      // The query is about all ranks of the class, including the one that has the untranslated sum.
      const inverse = relabeling.translations.inverse(origin.translation);
      return this.evaluateSum(origin.sum, side, relabeling.translatePositions(rows, side, inverse));
    }
    let cachedVerdicts = this.#verdictsBySum.get(sum);
    if (!cachedVerdicts) this.#verdictsBySum.set(sum, (cachedVerdicts = []));
    for (const entry of cachedVerdicts) if (entry.side === side && entry.rows === rows) return entry.verdict;
    const verdict = this.#evaluate(sums.listAddends(sum), side, rows);
    cachedVerdicts.push({ side, rows, verdict });
    return verdict;
  }

  isVisible(queries: PositionList, keys: PositionList, mask: number): boolean {
    if (this.#sumCompleteness.isVisible(queries, keys, mask)) return true;
    if (this.#scope === "rank") return false;
    // If no pair of these whole shards is visible, no pair of their translations is, on any rank of the class.
    const areWholeShards =
      this.#areWholeShards(this.#segmentsOf(queries, "queries"), "queries") &&
      this.#areWholeShards(this.#segmentsOf(keys, "keys"), "keys");
    return !areWholeShards || mask !== this.#mask;
  }

  #evaluate(addends: readonly Addend[], side: RowSide, rows: PositionList): Verdict {
    const { tiles } = this.#context;
    const hasFullMask = addends.every(({ tile }) => tiles.maskOf(tile) === this.#mask);
    const irregularSegments = hasFullMask ? this.#rowsNotCoveredOnce(addends, side) : [];
    if (hasFullMask && irregularSegments.length === 0) return undefined;
    const isVisible = this.#hasVisiblePair(rows, side, irregularSegments, 0);
    if (isVisible || !hasFullMask) {
      const verdict = this.#materializedVerdict(addends, side, rows);
      if (verdict || this.#scope === "rank") return verdict;
      return {
        kind: "class",
        message: "tiles have rank-specific masks; verification by equivalence class is not possible",
      };
    }
    if (this.#scope === "rank" || this.#areWholeShards(irregularSegments, oppositeSide(side))) {
      if (this.#scope === "rank" || this.#areWholeShards(this.#segmentsOf(rows, side), side)) return undefined;
    }
    return this.#evaluateAllRanks(addends, side, rows, irregularSegments);
  }

  /** Returns the rows of the other side that no tile has, or more than one, for some heads. */
  #rowsNotCoveredOnce(addends: readonly Addend[], side: RowSide): Segment[] {
    const { tiles, record } = this.#context;
    const shards = this.#context.relabeling.shards[oppositeSide(side)];
    const queryHeadsPerKvHead = side === "keys" ? record.options.numHeads / record.options.numKvHeads : 1;
    const headBounds = new Set([0, queryHeadsPerKvHead]);
    if (side === "keys") {
      for (const { tile } of addends)
        headBounds.add(tiles.firstHeadOf(tile)).add(tiles.firstHeadOf(tile) + tiles.numHeadsOf(tile));
    }
    const firstHeads = [...headBounds].toSorted((a, b) => a - b).slice(0, -1);
    return firstHeads.flatMap((head) => {
      const coversHead = (tile: number): boolean => {
        const headIndex = head - tiles.firstHeadOf(tile);
        return side === "queries" || (headIndex >= 0 && headIndex < tiles.numHeadsOf(tile));
      };
      return this.#segmentsNotCoveredOnce(
        addends.filter(({ tile }) => coversHead(tile)),
        oppositeSide(side),
        shards,
      );
    });
  }

  #segmentsNotCoveredOnce(addends: readonly Addend[], side: RowSide, shards: Shards): Segment[] {
    const { tiles, positions, relabeling } = this.#context;
    const intervals = new RowIntervals(shards);
    for (const { tile, translation } of addends) {
      const rows = positions.getById(side === "keys" ? tiles.keysIdOf(tile) : tiles.queriesIdOf(tile));
      for (const { shard, first, count } of this.#segmentsOf(rows, side)) {
        intervals.add(relabeling.translateShard(shard, translation), first, count);
      }
    }
    return intervals.segmentsNotCoveredOnce();
  }

  #segmentsOf(rows: PositionList, side: RowSide): readonly Segment[] {
    let cachedSegments = this.#segments.get(rows);
    let segments = cachedSegments?.[side];
    if (!segments) {
      segments = this.#context.relabeling.shards[side].findSegments(rows.spans) ?? [];
      cachedSegments = { ...cachedSegments, [side]: segments };
      this.#segments.set(rows, cachedSegments);
    }
    return segments;
  }

  #areWholeShards(segments: readonly Segment[], side: RowSide): boolean {
    const shards = this.#context.relabeling.shards[side];
    return segments.every(({ shard, first, count }) => first === 0 && count === shards.numRows(shard));
  }

  /** Whether any pair of the rows and the irregular segments is visible after a translation of both. */
  // oxlint-disable-next-line max-params -- rows and their side, segments of the other side, and a translation
  #hasVisiblePair(
    rows: PositionList,
    side: RowSide,
    irregularSegments: readonly Segment[],
    translation: number,
  ): boolean {
    const { relabeling, record } = this.#context;
    const shards = relabeling.shards[oppositeSide(side)];
    const translatedSegments = irregularSegments.flatMap((segment) =>
      shards.segmentSpans({ ...segment, shard: relabeling.translateShard(segment.shard, translation) }),
    );
    const spans = mergeAdjacentSpans(translatedSegments.toSorted((a, b) => a.start - b.start));
    const translatedSpans = relabeling.translatePositions(rows, side, translation).sortedSpans;
    return (
      (side === "queries"
        ? visiblePairsUnchecked(translatedSpans, spans, record.slices)
        : visiblePairsUnchecked(spans, translatedSpans, record.slices)) > 0
    );
  }

  /** Evaluates the sum for every rank of the class. */
  // oxlint-disable-next-line max-params -- a sum and its irregular segments
  #evaluateAllRanks(
    addends: readonly Addend[],
    side: RowSide,
    rows: PositionList,
    irregularSegments: readonly Segment[],
  ): Verdict {
    const { translations } = this.#context.relabeling;
    if (translations.order * irregularSegments.length * rows.spans.length > MAX_SPAN_PAIRS) {
      return {
        kind: "class",
        message: "parts of shards are missing; whether the mask hides them is not checked for this many ranks",
      };
    }
    for (const translation of translations.allTranslations()) {
      if (!this.#hasVisiblePair(rows, side, irregularSegments, translation)) continue;
      const { relabeling } = this.#context;
      const translatedAddends = addends.map(({ tile, translation: addendTranslation }) => ({
        tile,
        translation: translations.apply(translation, addendTranslation),
      }));
      return this.#materializedVerdict(translatedAddends, side, relabeling.translatePositions(rows, side, translation));
    }
    return undefined;
  }

  /** Returns the verdict, with its message, for the sum of the translated tiles. */
  #materializedVerdict(addends: readonly Addend[], side: RowSide, rows: PositionList): Verdict {
    const { sums, tiles, relabeling, visibility } = this.#context;
    let sum = EMPTY_SUM;
    for (const { tile, translation } of addends) {
      if (translation === 0) {
        sum = sums.add(sum, tile);
        continue;
      }
      const computedTile = tiles.get(tile);
      const rank = relabeling.translations.apply(translation, computedTile.rank);
      const q = relabeling.translatePositions(computedTile.q, "queries", translation);
      const k = relabeling.translatePositions(computedTile.k, "keys", translation);
      sum = sums.add(
        sum,
        tiles.add({ ...computedTile, rank, q, k, pairs: visibility.countPairs(q, k, computedTile.mask) }),
      );
    }
    return this.#sumCompleteness.evaluateSum(sum, side, rows);
  }
}

function oppositeSide(side: RowSide): RowSide {
  return side === "queries" ? "keys" : "queries";
}

/** Rows of shards that tiles have, as intervals of the concatenated rows of all shards. */
class RowIntervals {
  readonly #shards: Shards;
  /** First row of each shard in the concatenation. */
  readonly #offsets: Float64Array;
  readonly #intervals: (readonly [first: number, end: number])[] = [];

  constructor(shards: Shards) {
    this.#shards = shards;
    this.#offsets = new Float64Array(shards.count + 1);
    for (let shard = 0; shard < shards.count; shard++) {
      this.#offsets[shard + 1] = this.#offsets[shard]! + shards.numRows(shard);
    }
  }

  add(shard: number, first: number, count: number): void {
    const begin = this.#offsets[shard]! + first;
    this.#intervals.push([begin, begin + count]);
  }

  /** Returns the rows that no interval covers, or more than one. */
  segmentsNotCoveredOnce(): Segment[] {
    const segments: Segment[] = [];
    let end = 0;
    for (const [first, intervalEnd] of this.#intervals.toSorted((a, b) => a[0] - b[0])) {
      if (first !== end)
        this.#appendSegments(segments, Math.min(first, end), first > end ? first : Math.min(end, intervalEnd));
      end = Math.max(end, intervalEnd);
    }
    this.#appendSegments(segments, end, this.#offsets.at(-1)!);
    return segments;
  }

  #appendSegments(segments: Segment[], startRow: number, end: number): void {
    let shard = this.#shardAt(startRow);
    for (let row = startRow; row < end; shard++) {
      const begin = this.#offsets[shard]!;
      const count = Math.min(end, this.#offsets[shard + 1]!) - row;
      if (count > 0) segments.push({ shard, first: row - begin, count });
      row += Math.max(0, count);
    }
  }

  #shardAt(row: number): number {
    let [low, high] = [0, this.#shards.count];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.#offsets[middle]! <= row) low = middle;
      else high = middle;
    }
    return low;
  }
}
