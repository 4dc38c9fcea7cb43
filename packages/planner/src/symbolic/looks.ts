import { type DType, dtypeBytes, isContiguous, type Shape } from "@mosaic/core";
import { mixed } from "./mixed.ts";

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

/** What some memory is seen as. Equal ones are one object, throughout a world. */
export interface View {
  readonly look: Look;
  readonly dtype: DType;
  /** All that it shows. */
  readonly bytes: number;
}

/** All looks and views of a world. */
export class Looks {
  readonly #looks = new Map<number, Look[]>();
  readonly #views = new Map<Look, View[]>();

  look(shape: Shape, strides: Shape, offset: number): Look {
    let hash = mixed(shape.length, offset);
    for (let i = 0; i < shape.length; i++) hash = mixed(mixed(hash, shape[i]!), strides[i]!);
    let looks = this.#looks.get(hash);
    if (!looks) this.#looks.set(hash, (looks = []));
    for (const look of looks) if (isLook(look, shape, strides, offset)) return look;
    // Copies: whoever made the view may change its lists.
    const look = lookOf([...shape], [...strides], offset);
    looks.push(look);
    return look;
  }

  view(look: Look, dtype: DType): View {
    let views = this.#views.get(look);
    if (!views) this.#views.set(look, (views = []));
    for (const view of views) if (view.dtype === dtype) return view;
    const view = { look, dtype, bytes: look.size * dtypeBytes[dtype] };
    views.push(view);
    return view;
  }
}

/** Whether a look is this one. */
// oxlint-disable-next-line max-params -- asked millions of times, for which an object each would be made
export function isLook(look: Look, shape: Shape, strides: Shape, offset: number): boolean {
  if (look.offset !== offset || look.shape.length !== shape.length) return false;
  for (let i = 0; i < shape.length; i++) {
    if (look.shape[i] !== shape[i] || look.strides[i] !== strides[i]) return false;
  }
  return true;
}

function lookOf(shape: Shape, strides: Shape, offset: number): Look {
  const size = shape.reduce((product, length) => product * length, 1);
  const reach = shape.reduce((sum, length, axis) => sum + (length - 1) * strides[axis]!, 1);
  const high = size === 0 ? offset : offset + reach;
  const box = { ...fourAxes({ shape, strides, size }), offset, low: offset, high };
  return { shape, strides, offset, size, dense: isContiguous(shape, strides), low: offset, high, box };
}

function fourAxes({ shape, strides, size }: Pick<Look, "shape" | "strides" | "size">): Pick<Box, "sizes" | "strides"> {
  if (shape.length === 4) return { sizes: shape, strides };
  if (shape.length === 3) return { sizes: [...shape, 1], strides: [...strides, 1] };
  return { sizes: [1, 1, 1, size], strides: [size, size, size, 1] };
}
