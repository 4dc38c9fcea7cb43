import { omitAxes } from "@mosaic/core";
import { Shards } from "../symmetry/shards.ts";
import { GroupAction, type Translations } from "../symmetry/translations.ts";
import type { AttentionRecord } from "../record.ts";
import { type Content, toContent, Region } from "./content.ts";
import { mergeAdjacentSpans, type PositionList, type PositionTable } from "./positions.ts";
import type { SumTable } from "./sums.ts";
import {
  isDelta,
  isFill,
  isSum,
  decodeKind,
  decodePayload,
  type Rows,
  type RowSide,
  valueSide,
  type MemoryValue,
  encodeValue,
} from "./values.ts";

/**
 * Translates contents of memory: rows to the translated shards and sequences, and sums to sums over translated tiles.
 * Heads and columns do not change.
 */
export class Relabeling {
  readonly translations: Translations;
  readonly shards: Readonly<Record<RowSide, Shards>>;
  readonly #positions: PositionTable;
  readonly #sums: SumTable;
  readonly #shardAction: GroupAction;
  readonly #sequenceAction: GroupAction;
  /** Number of sequences of a rank. */
  readonly #batchSize: number;
  readonly #cache: Readonly<Record<RowSide, Map<PositionList, Map<number, PositionList>>>>;

  constructor(record: AttentionRecord, positions: PositionTable, sums: SumTable) {
    const { classes, queries, keys, options } = record;
    const { mesh, backend, batch } = options;
    this.translations = classes;
    const shards = new Shards(queries, mesh);
    this.shards = { queries: shards, keys: keys === queries ? shards : new Shards(keys, mesh) };
    this.#positions = positions;
    this.#sums = sums;
    this.#shardAction = new GroupAction(classes, mesh, queries.axes);
    this.#sequenceAction = new GroupAction(classes, mesh, Object.keys(omitAxes(mesh, backend.axes)));
    this.#batchSize = batch;
    this.#cache = { queries: new Map(), keys: new Map() };
  }

  translateContent(content: Content, translation: number): Content {
    if (translation === 0) return content;
    if (content instanceof Region) return this.#translateRegion(content, translation);
    return toContent(content.regions.map((region) => this.#translateRegion(region, translation)));
  }

  #translateRegion({ value, rows, box }: Region, translation: number): Region {
    if (isFill(value)) return new Region(value, rows, box);
    return new Region(
      this.translateValue(value, translation),
      this.translateRows(rows, valueSide(decodeKind(value)), translation),
      box,
    );
  }

  translateValue(value: MemoryValue, translation: number): MemoryValue {
    if (!isSum(value) && !isDelta(value)) return value;
    return encodeValue(decodeKind(value), this.#sums.translateRanks(decodePayload(value), translation));
  }

  translateRows({ batch, head, column, positions }: Rows, side: RowSide, translation: number): Rows {
    const sequence = Math.floor(batch / this.#batchSize);
    const translatedSequence = this.#sequenceAction.apply(translation, sequence);
    return {
      batch: batch + (translatedSequence - sequence) * this.#batchSize,
      head,
      column,
      positions: this.translatePositions(positions, side, translation),
    };
  }

  /** Returns the shard to which a translation maps a shard. */
  translateShard(shard: number, translation: number): number {
    return this.#shardAction.apply(translation, shard);
  }

  translatePositions(positions: PositionList, side: RowSide, translation: number): PositionList {
    if (translation === 0 || positions.length === 0) return positions;
    const sideCache = this.#cache[side];
    let positionsByTranslation = sideCache.get(positions);
    if (!positionsByTranslation) sideCache.set(positions, (positionsByTranslation = new Map<number, PositionList>()));
    let translatedPositions = positionsByTranslation.get(translation);
    if (!translatedPositions)
      positionsByTranslation.set(
        translation,
        (translatedPositions = this.#translatePositions(positions, side, translation)),
      );
    return translatedPositions;
  }

  #translatePositions(positions: PositionList, side: RowSide, translation: number): PositionList {
    const shards = this.shards[side];
    const segments = shards.findSegments(positions.spans);
    if (!segments) throw new RangeError("prove: expected rows within shards, received rows outside all shards");
    const spans = segments.flatMap((segment) =>
      shards.segmentSpans({ ...segment, shard: this.translateShard(segment.shard, translation) }),
    );
    return this.#positions.fromSpans(mergeAdjacentSpans(spans));
  }
}
