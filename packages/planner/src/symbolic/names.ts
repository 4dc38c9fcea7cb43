import { isContiguous, type Shape, type Slice, type Span } from "@mosaic/core";

/** How a view lies in its storage, in elements. Equal ones are one object, throughout a world. */
export interface Look {
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
  /** Number of elements. */
  readonly size: number;
  /** Whether elements lie side by side, the last axis first: what messages ask for. */
  readonly dense: boolean;
  /** First and last element touched, the latter exclusive; equal when empty. */
  readonly low: number;
  readonly high: number;
  /** The same as batch × heads × rows × the rest: what attention sees, if it has 3 or 4 axes, else all in the last. */
  readonly box: Box;
}

/** A strided box of elements. */
export interface Box {
  readonly offset: number;
  readonly sizes: readonly number[];
  readonly strides: readonly number[];
  /** First and last element touched, the latter exclusive; equal when empty. */
  readonly low: number;
  readonly high: number;
}

/** What tapes refer to by number: the same on all ranks, so that equal things need be looked at once. */
export class Names {
  readonly rows: (readonly Span[])[] = [];
  readonly masks: (readonly Slice[])[] = [];
  readonly words: string[] = [];
  readonly #rows = new Lists<readonly Span[]>(this.rows, sameRows);
  readonly #masks = new Lists<readonly Slice[]>(this.masks, sameMask);
  readonly #words = new Map<string, number>();
  #mask: readonly Slice[] | undefined;
  #maskNumber = -1;
  readonly #looks = new Map<number, Look[]>();

  rowsOf(spans: readonly Span[]): number {
    let hash = spans.length;
    for (const { start, length, step } of spans) hash = mixed(mixed(mixed(hash, start), length), step);
    return this.#rows.numberOf(spans, hash);
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

  look(shape: Shape, strides: Shape, offset: number): Look {
    let hash = mixed(shape.length, offset);
    for (let i = 0; i < shape.length; i++) hash = mixed(mixed(hash, shape[i]!), strides[i]!);
    let looks = this.#looks.get(hash);
    if (!looks) this.#looks.set(hash, (looks = []));
    for (const look of looks) {
      if (look.offset === offset && sameNumbers(look.shape, shape) && sameNumbers(look.strides, strides)) return look;
    }
    // Copies: whoever made the view may change its lists.
    const look = lookOf([...shape], [...strides], offset);
    looks.push(look);
    return look;
  }
}

function lookOf(shape: Shape, strides: Shape, offset: number): Look {
  const size = shape.reduce((product, length) => product * length, 1);
  const reach = shape.reduce((sum, length, axis) => sum + (length - 1) * strides[axis]!, 1);
  const high = size === 0 ? offset : offset + reach;
  const box = { ...fourAxes({ shape, strides, size }), offset, low: offset, high };
  return { shape, strides, offset, size, dense: isContiguous(shape, strides), low: offset, high, box };
}

/** Whether two lists have the same numbers. */
export function sameNumbers(a: Shape, b: Shape): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
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

/** A hash and one more number, as a hash of both. */
function mixed(hash: number, number: number): number {
  const high = Math.imul(hash ^ (hash >>> 15) ^ (number | 0), 0x2c1b_3c6d);
  return (high ^ (high >>> 13)) >>> 2;
}

function sameRows(a: readonly Span[], b: readonly Span[]): boolean {
  const equal = ({ start, length, step }: Span, i: number): boolean =>
    start === b[i]!.start && length === b[i]!.length && step === b[i]!.step;
  return a.length === b.length && a.every(equal);
}

function sameMask(a: readonly Slice[], b: readonly Slice[]): boolean {
  const equal = ({ q0, q1, k0, k1, type }: Slice, i: number): boolean => {
    const other = b[i]!;
    return q0 === other.q0 && q1 === other.q1 && k0 === other.k0 && k1 === other.k1 && type === other.type;
  };
  return a.length === b.length && a.every(equal);
}

function fourAxes({ shape, strides, size }: Pick<Look, "shape" | "strides" | "size">): Pick<Box, "sizes" | "strides"> {
  if (shape.length === 4) return { sizes: shape, strides };
  if (shape.length === 3) return { sizes: [...shape, 1], strides: [...strides, 1] };
  return { sizes: [1, 1, 1, size], strides: [size, size, size, 1] };
}
