import type { Translations } from "../symmetry/translations.ts";
import type { PositionList, PositionTable } from "./positions.ts";
import type { InternPool } from "../symbolic/intern-pool.ts";
import { formatPositions, type RowSide } from "./values.ts";

/** The attention of a block of queries to a block of keys in one kernel call, and where it was computed. */
export interface Tile {
  readonly rank: number;
  readonly phase: string;
  /** Index among the rank's tiles of the phase, from 1. */
  readonly tileNumber: number;
  readonly q: PositionList;
  readonly k: PositionList;
  /** Number of the mask. */
  readonly mask: number;
  /** Query heads in each KV head's group: [0, H/Hkv) unless groups are split. */
  readonly firstHead: number;
  readonly endHead: number;
  /** Number of visible pairs. */
  readonly pairs: number;
}

const FIELDS_PER_TILE = 8;

/** The tiles of all ranks, by number. A thousand ranks compute millions, so each takes only a few numbers. */
export class TileTable {
  readonly #positions: PositionTable;
  readonly #interned: InternPool;
  #fields = new Int32Array(FIELDS_PER_TILE * 64);
  #pairsByTile = new Float64Array(64);
  #numTiles = 0;
  /** Ids of the position lists of queries and of keys that tiles have, each once. */
  readonly distinctPositionIds: Readonly<Record<RowSide, number[]>> = { queries: [], keys: [] };
  readonly #hasQueries: boolean[] = [];
  readonly #hasKeys: boolean[] = [];

  constructor(positions: PositionTable, interned: InternPool) {
    this.#positions = positions;
    this.#interned = interned;
  }

  add({ rank, phase, tileNumber, q, k, mask, firstHead, endHead, pairs }: Tile): number {
    const id = this.#numTiles++;
    if (id === this.#pairsByTile.length) {
      this.#fields = growCapacity(this.#fields);
      this.#pairsByTile = growCapacity(this.#pairsByTile);
    }
    const offset = id * FIELDS_PER_TILE;
    const fields = this.#fields;
    fields[offset] = rank;
    fields[offset + 1] = this.#interned.stringId(phase);
    fields[offset + 2] = tileNumber;
    fields[offset + 3] = q.id;
    fields[offset + 4] = k.id;
    fields[offset + 5] = mask;
    fields[offset + 6] = firstHead;
    fields[offset + 7] = endHead;
    this.#pairsByTile[id] = pairs;
    if (!this.#hasQueries[q.id]) this.distinctPositionIds.queries.push(q.id);
    if (!this.#hasKeys[k.id]) this.distinctPositionIds.keys.push(k.id);
    this.#hasQueries[q.id] = true;
    this.#hasKeys[k.id] = true;
    return id;
  }

  get(id: number): Tile {
    const field = (i: number): number => this.#fields[id * FIELDS_PER_TILE + i]!;
    return {
      rank: field(0),
      phase: this.#interned.strings[field(1)]!,
      tileNumber: field(2),
      q: this.#positions.getById(field(3)),
      k: this.#positions.getById(field(4)),
      mask: field(5),
      firstHead: field(6),
      endHead: field(7),
      pairs: this.#pairsByTile[id]!,
    };
  }

  queriesIdOf(id: number): number {
    return this.#fields[id * FIELDS_PER_TILE + 3]!;
  }

  keysIdOf(id: number): number {
    return this.#fields[id * FIELDS_PER_TILE + 4]!;
  }

  maskOf(id: number): number {
    return this.#fields[id * FIELDS_PER_TILE + 5]!;
  }

  firstHeadOf(id: number): number {
    return this.#fields[id * FIELDS_PER_TILE + 6]!;
  }

  numHeadsOf(id: number): number {
    return this.#fields[id * FIELDS_PER_TILE + 7]! - this.#fields[id * FIELDS_PER_TILE + 6]!;
  }

  numPairsOf(id: number): number {
    return this.#pairsByTile[id]!;
  }
}

/** Describes a tile and where it was computed. */
export function describeTile({
  rank,
  phase,
  tileNumber: number,
  q,
  k,
}: Omit<Tile, "mask" | "firstHead" | "endHead" | "pairs">): string {
  const tileRanges = `(queries ${formatPositions(q.spans)}, keys ${formatPositions(k.spans)})`;
  return `rank ${rank}, ${phase}, tile ${number} ${tileRanges}`;
}

/** The empty sum. */
export const EMPTY_SUM = 0;

/** Maximum number of sums. The other bits of a value are for its kind. */
const MAX_SUMS = 2 ** 27;

/** Number of slots in which recently created sums are found again, by a hash of their operands. */
const CACHE_SIZE = 2 ** 14;

/** A tile of a sum, and the translation applied to the rank that computed it. */
export interface Addend {
  readonly tile: number;
  readonly translation: number;
}

/**
 * Sums of tiles, by number. Sum 0 is empty. Any other is the sum of a sum and a tile, of two sums, or a translation of
 * a sum. The same sum created again soon after mostly has the same number; `areEqualSums` decides whether different
 * numbers represent the same sum.
 */
export class SumTable {
  readonly #translations: Translations;
  /**
   * For each sum, the sum that it was made from, then its second operand: a sum, −1 − x for tile x, or 0 for a
   * translation.
   */
  #operands = new Int32Array(128);
  #numSums = 1;
  readonly #recentMerges = new Int32Array(CACHE_SIZE);
  /** Translations of translated sums, by number of the sum. */
  readonly #translationBySum = new Map<number, number>();
  readonly #translationCache = new Map<number, number>();

  constructor(translations: Translations) {
    this.#translations = translations;
  }

  add(sum: number, tile: number): number {
    return this.#intern(sum, -1 - tile);
  }

  join(a: number, b: number): number {
    if (a === EMPTY_SUM) return b;
    if (b === EMPTY_SUM) return a;
    return this.#intern(a, b);
  }

  /** Returns the sum of the translated tiles. */
  translateRanks(sum: number, translation: number): number {
    if (sum === EMPTY_SUM || translation === 0) return sum;
    const origin = this.origin(sum);
    const shift = this.#translations.apply(translation, origin.translation);
    if (shift === 0) return origin.sum;
    const key = origin.sum * this.#translations.ranks + shift;
    let translatedSum = this.#translationCache.get(key);
    if (translatedSum === undefined) {
      translatedSum = this.#push(origin.sum, EMPTY_SUM);
      this.#translationBySum.set(translatedSum, shift);
      this.#translationCache.set(key, translatedSum);
    }
    return translatedSum;
  }

  /** Returns the sum of which another is a translation, and the translation; the sum itself if it is not translated. */
  origin(sum: number): { readonly sum: number; readonly translation: number } {
    const translation = this.#translationBySum.get(sum);
    return translation === undefined ? { sum, translation: 0 } : { sum: this.#operands[2 * sum]!, translation };
  }

  /** Returns the operands of a sum: a sum and a tile, or two sums; undefined for the empty sum and for translations. */
  lastAddition(sum: number): { readonly left: number; readonly right?: number; readonly tile?: number } | undefined {
    const [left, right] = [this.#operands[2 * sum]!, this.#operands[2 * sum + 1]!];
    if (sum === EMPTY_SUM || right === EMPTY_SUM) return undefined;
    return right < 0 ? { left, tile: -1 - right } : { left, right };
  }

  /** Whether two sums have the same tiles, added in the same order. */
  areEqualSums(a: number, b: number): boolean {
    if (a === b) return true;
    const [addendsA, addendsB] = [this.listAddends(a), this.listAddends(b)];
    const isEqualAddend = ({ tile, translation }: Addend, i: number): boolean =>
      tile === addendsB[i]!.tile && translation === addendsB[i]!.translation;
    return addendsA.length === addendsB.length && addendsA.every(isEqualAddend);
  }

  /** Returns the tiles of a sum without translations, in the order of addition, repeated ones included. */
  listTiles(sum: number): number[] {
    return this.listAddends(sum).map(({ tile }) => tile);
  }

  /** Returns the tiles of a sum in the order of addition, repeated ones included. */
  listAddends(sum: number): Addend[] {
    const addends: Addend[] = [];
    const pendingSums = [{ sum, translation: 0 }];
    for (let next = pendingSums.pop(); next !== undefined; next = pendingSums.pop()) {
      // Right operands first, and chains of left operands without a stack, because most sums are chains of tiles.
      let { sum: partialSum, translation } = next;
      while (partialSum !== EMPTY_SUM) {
        const left = this.#operands[2 * partialSum]!;
        const right = this.#operands[2 * partialSum + 1]!;
        if (right === EMPTY_SUM)
          translation = this.#translations.apply(translation, this.#translationBySum.get(partialSum)!);
        else if (right > 0) pendingSums.push({ sum: left, translation });
        else addends.push({ tile: -1 - right, translation });
        partialSum = right > 0 ? right : left;
      }
    }
    return addends.reverse();
  }

  #intern(left: number, right: number): number {
    const hash = Math.imul(Math.imul(left, 0x9e37_79b1) ^ right, 0x85eb_ca6b);
    const slot = (hash ^ (hash >>> 15)) & (CACHE_SIZE - 1);
    const cachedSum = this.#recentMerges[slot]!;
    if (cachedSum !== 0 && this.#operands[2 * cachedSum] === left && this.#operands[2 * cachedSum + 1] === right)
      return cachedSum;
    const id = this.#push(left, right);
    this.#recentMerges[slot] = id;
    return id;
  }

  #push(left: number, right: number): number {
    const id = this.#numSums++;
    if (id >= MAX_SUMS)
      throw new RangeError(
        `prove: expected at most ${MAX_SUMS} partial sums, received ${id + 1}; use fewer ranks or tiles`,
      );
    if (2 * id === this.#operands.length) this.#operands = growCapacity(this.#operands);
    this.#operands[2 * id] = left;
    this.#operands[2 * id + 1] = right;
    return id;
  }
}

function growCapacity<T extends Int32Array | Float64Array>(array: T): T {
  const largerArray = new (array.constructor as new (length: number) => T)(2 * array.length);
  largerArray.set(array);
  return largerArray;
}
