import type { Slice, Span, Tile } from "@mosaic/core";
import { combineHash, LayoutTable } from "./strided-layout.ts";

/** Lists of so many spans are hashed each time: that takes less than a weak map of hundreds of thousands of them. */
const MAX_HASHED_SPANS = 4;

/** What tapes refer to by number: the same on all ranks, so that equal things need be looked at once. */
export class InternPool {
  readonly rows: (readonly Span[])[] = [];
  readonly masks: (readonly Slice[])[] = [];
  readonly strings: string[] = [];
  readonly layouts: LayoutTable = new LayoutTable();
  readonly #rowIds = new WeakMap<readonly Span[], number>();
  readonly #rows = new InternTable<readonly Span[]>(this.rows, areEqualSpans);
  readonly #masks = new InternTable<readonly Slice[]>(this.masks, areEqualMasks);
  readonly #stringIds = new Map<string, number>();
  readonly #sampleCounts = new Map<number, number>();
  readonly #batchSlices = new WeakMap<readonly (readonly Slice[])[], Map<readonly Slice[], readonly Slice[]>>();
  #lastMask: readonly Slice[] | undefined;
  #lastMaskId = -1;

  rowsId(spans: readonly Span[]): number {
    if (spans.length <= MAX_HASHED_SPANS) return this.#rows.intern(spans, hashSpans(spans));
    // Layouts return the same list for the same coordinate.
    let id = this.#rowIds.get(spans);
    if (id === undefined) this.#rowIds.set(spans, (id = this.#rows.intern(spans, hashSpans(spans))));
    return id;
  }

  maskId(mask: readonly Slice[]): number {
    // Nearly always that of the call before.
    if (mask === this.#lastMask) return this.#lastMaskId;
    let hash = mask.length;
    for (const { q0, q1, k0, k1 } of mask)
      hash = combineHash(combineHash(combineHash(combineHash(hash, q0), q1), k0), k1);
    this.#lastMask = mask;
    this.#lastMaskId = this.#masks.intern(mask, hash);
    return this.#lastMaskId;
  }

  /** The mask of a tile; where samples have masks of their own, that of all samples one after the other. */
  tileMaskId(tile: Pick<Tile, "mask" | "modifiers">): number {
    const sampleMasks = tile.modifiers?.sampleMasks;
    if (!sampleMasks) return this.maskId(tile.mask);
    const maskId = this.maskId(this.tileSlices(tile));
    this.#sampleCounts.set(maskId, sampleMasks.length);
    return maskId;
  }

  /**
   * The slices of a tile: of its mask or, where samples have masks of their own, of all samples. Then each sample is counted, and
   * follows an empty slice with its number: lists are equal only if their samples are, and pairs are those of all samples.
   */
  tileSlices({ mask, modifiers }: Pick<Tile, "mask" | "modifiers">): readonly Slice[] {
    const sampleMasks = modifiers?.sampleMasks;
    if (!sampleMasks) return mask;
    const tileSlicesByMask = this.#batchSlices.get(sampleMasks) ?? new Map<readonly Slice[], readonly Slice[]>();
    this.#batchSlices.set(sampleMasks, tileSlicesByMask);
    let slices = tileSlicesByMask.get(mask);
    if (!slices) {
      slices = sampleMasks.flatMap((sampleSlices, k) => [
        { q0: 0, q1: 0, k0: k, k1: k, type: "full" } as const,
        ...mask,
        ...sampleSlices,
      ]);
      tileSlicesByMask.set(mask, slices);
    }
    return slices;
  }

  /** Of how many samples the slices of a mask are; 1 where all samples have them. */
  sampleCount(mask: number): number {
    return this.#sampleCounts.get(mask) ?? 1;
  }

  stringId(text: string): number {
    let id = this.#stringIds.get(text);
    if (id === undefined) {
      id = this.strings.push(text) - 1;
      this.#stringIds.set(text, id);
    }
    return id;
  }
}

function hashSpans(spans: readonly Span[]): number {
  let hash = spans.length;
  for (const { start, length, step } of spans) hash = combineHash(combineHash(combineHash(hash, start), length), step);
  return hash;
}

/** Numbers values: equal ones have one number. */
class InternTable<T extends object> {
  readonly #values: T[];
  readonly #isEqual: (a: T, b: T) => boolean;
  readonly #idsByHash = new Map<number, number[]>();

  constructor(values: T[], isEqual: (a: T, b: T) => boolean) {
    this.#values = values;
    this.#isEqual = isEqual;
  }

  intern(value: T, hash: number): number {
    let candidates = this.#idsByHash.get(hash);
    if (!candidates) this.#idsByHash.set(hash, (candidates = []));
    for (const candidate of candidates) {
      if (this.#values[candidate] === value || this.#isEqual(this.#values[candidate]!, value)) return candidate;
    }
    const id = this.#values.push(value) - 1;
    candidates.push(id);
    return id;
  }
}

function areEqualSpans(a: readonly Span[], b: readonly Span[]): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) {
    const [spanA, spanB] = [a[i]!, b[i]!];
    if (spanA.start !== spanB.start || spanA.length !== spanB.length || spanA.step !== spanB.step) return false;
  }
  return true;
}

function areEqualMasks(a: readonly Slice[], b: readonly Slice[]): boolean {
  const isEqualSlice = ({ q0, q1, k0, k1, type }: Slice, i: number): boolean => {
    const otherSlice = b[i]!;
    return (
      q0 === otherSlice.q0 &&
      q1 === otherSlice.q1 &&
      k0 === otherSlice.k0 &&
      k1 === otherSlice.k1 &&
      type === otherSlice.type
    );
  };
  return a.length === b.length && a.every(isEqualSlice);
}
