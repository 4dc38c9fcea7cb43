import type { Slice, Span } from "@mosaic/core";
import { mixed, StridedLayouts } from "./strided-layout.ts";

/** Lists of so many spans are hashed each time: that takes less than a weak map of hundreds of thousands of them. */
const FEW_SPANS = 4;

/** What tapes refer to by number: the same on all ranks, so that equal things need be looked at once. */
export class Names {
  readonly rows: (readonly Span[])[] = [];
  readonly masks: (readonly Slice[])[] = [];
  readonly words: string[] = [];
  readonly layouts: StridedLayouts = new StridedLayouts();
  readonly #lists = new WeakMap<readonly Span[], number>();
  readonly #rows = new Lists<readonly Span[]>(this.rows, sameRows);
  readonly #masks = new Lists<readonly Slice[]>(this.masks, sameMask);
  readonly #words = new Map<string, number>();
  #mask: readonly Slice[] | undefined;
  #maskNumber = -1;

  rowsOf(spans: readonly Span[]): number {
    if (spans.length <= FEW_SPANS) return this.#rows.numberOf(spans, hashOf(spans));
    // Layouts return the same list for the same coordinate.
    let number = this.#lists.get(spans);
    if (number === undefined) this.#lists.set(spans, (number = this.#rows.numberOf(spans, hashOf(spans))));
    return number;
  }

  maskOf(mask: readonly Slice[]): number {
    // Nearly always that of the call before.
    if (mask === this.#mask) return this.#maskNumber;
    let hash = mask.length;
    for (const { q0, q1, k0, k1 } of mask) hash = mixed(mixed(mixed(mixed(hash, q0), q1), k0), k1);
    this.#mask = mask;
    this.#maskNumber = this.#masks.numberOf(mask, hash);
    return this.#maskNumber;
  }

  word(word: string): number {
    let id = this.#words.get(word);
    if (id === undefined) {
      id = this.words.push(word) - 1;
      this.#words.set(word, id);
    }
    return id;
  }
}

function hashOf(spans: readonly Span[]): number {
  let hash = spans.length;
  for (const { start, length, step } of spans) hash = mixed(mixed(mixed(hash, start), length), step);
  return hash;
}

/** Numbers values: equal ones have one number. */
class Lists<T extends object> {
  readonly #values: T[];
  readonly #same: (a: T, b: T) => boolean;
  readonly #byHash = new Map<number, number[]>();

  constructor(values: T[], same: (a: T, b: T) => boolean) {
    this.#values = values;
    this.#same = same;
  }

  numberOf(value: T, hash: number): number {
    let candidates = this.#byHash.get(hash);
    if (!candidates) this.#byHash.set(hash, (candidates = []));
    for (const number of candidates) {
      if (this.#values[number] === value || this.#same(this.#values[number]!, value)) return number;
    }
    const number = this.#values.push(value) - 1;
    candidates.push(number);
    return number;
  }
}

function sameRows(a: readonly Span[], b: readonly Span[]): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) {
    const [one, two] = [a[i]!, b[i]!];
    if (one.start !== two.start || one.length !== two.length || one.step !== two.step) return false;
  }
  return true;
}

function sameMask(a: readonly Slice[], b: readonly Slice[]): boolean {
  const equal = ({ q0, q1, k0, k1, type }: Slice, i: number): boolean => {
    const other = b[i]!;
    return q0 === other.q0 && q1 === other.q1 && k0 === other.k0 && k1 === other.k1 && type === other.type;
  };
  return a.length === b.length && a.every(equal);
}
