import type { Shape, Slice, Span } from "@mosaic/core";

/** How a view lies in its storage, in elements. Equal ones are one object, throughout a world. */
export interface Look {
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
  /** Number of elements. */
  readonly size: number;
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
}

/** What tapes refer to by number: the same on all ranks, so that equal things need be looked at once. */
export class Names {
  readonly rows: (readonly Span[])[] = [];
  readonly masks: (readonly Slice[])[] = [];
  readonly words: string[] = [];
  readonly #byIdentity = new Map<object, number>();
  readonly #byValue = new Map<string, number>();
  readonly #looks = new Map<string, Look>();

  rowsOf(spans: readonly Span[]): number {
    return this.#number(spans, this.rows, () => `r${spans.map(({ start, length, step }) => [start, length, step])}`);
  }

  maskOf(mask: readonly Slice[]): number {
    return this.#number(mask, this.masks, () => `m${mask.map(({ q0, q1, k0, k1, type }) => [q0, q1, k0, k1, type])}`);
  }

  word(word: string): number {
    return this.#add(`w${word}`, word, this.words);
  }

  look(shape: Shape, strides: Shape, offset: number): Look {
    const name = `${shape}/${strides}/${offset}`;
    let look = this.#looks.get(name);
    if (!look) {
      const size = shape.reduce((product, length) => product * length, 1);
      const reach = shape.reduce((sum, length, axis) => sum + (length - 1) * strides[axis]!, 1);
      const box = boxOf({ shape, strides, offset, size });
      look = { shape, strides, offset, size, low: offset, high: size === 0 ? offset : offset + reach, box };
      this.#looks.set(name, look);
    }
    return look;
  }

  /** Layouts hand out the same list again and again: known by identity, it need not be compared. */
  #number<T extends object>(value: T, list: T[], nameOf: () => string): number {
    let id = this.#byIdentity.get(value);
    if (id === undefined) {
      id = this.#add(nameOf(), value, list);
      this.#byIdentity.set(value, id);
    }
    return id;
  }

  #add<T>(name: string, value: T, list: T[]): number {
    let id = this.#byValue.get(name);
    if (id === undefined) {
      id = list.push(value) - 1;
      this.#byValue.set(name, id);
    }
    return id;
  }
}

function boxOf({ shape, strides, offset, size }: Pick<Look, "shape" | "strides" | "offset" | "size">): Box {
  if (shape.length === 4) return { offset, sizes: shape, strides };
  if (shape.length === 3) return { offset, sizes: [...shape, 1], strides: [...strides, 1] };
  return { offset, sizes: [1, 1, 1, size], strides: [size, size, size, 1] };
}
