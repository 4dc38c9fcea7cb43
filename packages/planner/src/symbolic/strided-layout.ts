import { type DType, dtypeBytes, isContiguous, type Shape } from "@mosaic/core";

/** Shape, strides and offset of a view in its storage, in elements. Equal layouts are one object throughout a world. */
export interface StridedLayout {
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
  /** Number of elements. */
  readonly size: number;
  /** Whether the elements are contiguous in row-major order, as messages require. */
  readonly isDense: boolean;
  /** Range [low, high) of the elements touched; empty if low equals high. */
  readonly low: number;
  readonly high: number;
  /**
   * The layout as batch × heads × rows × columns, as attention uses it. With 3 axes, there is one column; with other
   * than 3 or 4 axes, all elements are columns of one row.
   */
  readonly box: Box;
}

/** A strided box of elements. */
export interface Box {
  readonly offset: number;
  readonly sizes: readonly number[];
  readonly strides: readonly number[];
  /** Range [low, high) of the elements touched; empty if low equals high. */
  readonly low: number;
  readonly high: number;
}

/** A layout and a data type. Equal views are one object throughout a world. */
export interface View {
  readonly layout: StridedLayout;
  readonly dtype: DType;
  /** Bytes of the memory that the view covers. An element repeated by a broadcast counts once. */
  readonly bytes: number;
}

/** All layouts and views of a world. */
export class LayoutTable {
  readonly #layouts = new Map<number, StridedLayout[]>();
  readonly #views = new Map<StridedLayout, View[]>();

  layout(shape: Shape, strides: Shape, offset: number): StridedLayout {
    let hash = combineHash(shape.length, offset);
    for (let i = 0; i < shape.length; i++) hash = combineHash(combineHash(hash, shape[i]!), strides[i]!);
    let layouts = this.#layouts.get(hash);
    if (!layouts) this.#layouts.set(hash, (layouts = []));
    for (const layout of layouts) if (matchesLayout(layout, shape, strides, offset)) return layout;
    // Copied, because the owner of the view may change its arrays.
    const layout = layoutOfView([...shape], [...strides], offset);
    layouts.push(layout);
    return layout;
  }

  view(layout: StridedLayout, dtype: DType): View {
    let views = this.#views.get(layout);
    if (!views) this.#views.set(layout, (views = []));
    for (const view of views) if (view.dtype === dtype) return view;
    const view = { layout, dtype, bytes: Math.min(layout.size, layout.high - layout.low) * dtypeBytes[dtype] };
    views.push(view);
    return view;
  }
}

/** Whether a layout has this shape, these strides and this offset. */
// oxlint-disable-next-line max-params -- called millions of times, too often to create an object for each call
export function matchesLayout(layout: StridedLayout, shape: Shape, strides: Shape, offset: number): boolean {
  if (layout.offset !== offset || layout.shape.length !== shape.length) return false;
  for (let i = 0; i < shape.length; i++) {
    if (layout.shape[i] !== shape[i] || layout.strides[i] !== strides[i]) return false;
  }
  return true;
}

function layoutOfView(shape: Shape, strides: Shape, offset: number): StridedLayout {
  const size = shape.reduce((product, length) => product * length, 1);
  const extent = shape.reduce((sum, length, axis) => sum + (length - 1) * strides[axis]!, 1);
  const high = size === 0 ? offset : offset + extent;
  const box = { ...padToFourAxes({ shape, strides, size }), offset, low: offset, high };
  return { shape, strides, offset, size, isDense: isContiguous(shape, strides), low: offset, high, box };
}

function padToFourAxes({
  shape,
  strides,
  size,
}: Pick<StridedLayout, "shape" | "strides" | "size">): Pick<Box, "sizes" | "strides"> {
  if (shape.length === 4) return { sizes: shape, strides };
  if (shape.length === 3) return { sizes: [...shape, 1], strides: [...strides, 1] };
  return { sizes: [1, 1, 1, size], strides: [size, size, size, 1] };
}

/** Combines a hash with one more number. */
export function combineHash(hash: number, value: number): number {
  const mixedHash = Math.imul(hash ^ (hash >>> 15) ^ (value | 0), 0x2c1b_3c6d);
  return (mixedHash ^ (mixedHash >>> 13)) >>> 2;
}
