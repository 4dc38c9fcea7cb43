import type { Slice, Span, Tile } from "@mosaic/core";
import { combineHash, LayoutTable } from "./strided-layout.ts";

/**
 * Maximum length of a list of spans that is hashed on every lookup. Up to this length, hashing is faster than a weak
 * map with hundreds of thousands of entries.
 */
const MAX_HASHED_SPANS = 4;

/**
 * Values that tapes refer to by number. Numbers are the same on all ranks, so that equal values are analyzed only once.
 */
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
    // Nearly always the mask of the previous call.
    if (mask === this.#lastMask) return this.#lastMaskId;
    let hash = mask.length;
    for (const { q0, q1, k0, k1 } of mask)
      hash = combineHash(combineHash(combineHash(combineHash(hash, q0), q1), k0), k1);
    this.#lastMask = mask;
    this.#lastMaskId = this.#masks.intern(mask, hash);
    return this.#lastMaskId;
  }

  /**
   * Returns the number of a tile's mask. If samples have masks of their own, it is the mask of all samples, one after
   * the other.
   */
  tileMaskId(tile: Pick<Tile, "mask" | "modifiers">): number {
    const sampleMasks = tile.modifiers?.sampleMasks;
    if (!sampleMasks) return this.maskId(tile.mask);
    const maskId = this.maskId(this.tileSlices(tile));
    this.#sampleCounts.set(maskId, sampleMasks.length);
    return maskId;
  }

  /**
   * Returns the slices of a tile: those of its mask or, if samples have masks of their own, those of all samples. In
   * the latter case the slices of each sample follow an empty slice with the sample's index. Two lists are then equal
   * only if their samples are, and visible pairs are counted in each sample.
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

  /** Returns the number of samples whose slices a mask contains; 1 if all samples share the slices. */
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

/** Assigns numbers to values. Equal values have the same number. */
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
