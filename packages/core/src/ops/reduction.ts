import { defineOp } from "../autograd/define-op.ts";
import { ShapeError } from "../errors.ts";
import type { ReduceKind } from "../kernels.ts";
import { normalizeAxis, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { scale } from "./arithmetic.ts";

/** How reductions shape their result. */
export interface ReduceOptions {
  /** Keep reduced axes with length 1. Default false. */
  readonly keepAxes?: boolean;
}
/** One axis, several, or all if left out; negative ones count from the end. */
export type Axes = number | readonly number[];

/** The shape with reduced axes of length 1, and without them. */
function shapesOf(x: Tensor, axes: Axes | undefined, where: string): { kept: Shape; dropped: Shape } {
  const given = axes === undefined ? x.shape.map((_, axis) => axis) : [axes].flat();
  const reduced = new Set(given.map((axis) => normalizeAxis(axis, x.rank, where)));
  return {
    kept: x.shape.map((length, axis) => (reduced.has(axis) ? 1 : length)),
    dropped: x.shape.filter((_, axis) => !reduced.has(axis)),
  };
}

function reduce(kind: ReduceKind, x: Tensor, shapes: { kept: Shape; shape: Shape }): Tensor {
  using out = x.device.empty(shapes.kept, x.dtype);
  if (x.size === 0) x.device.kernels.fill(out, kind === "sum" ? 0 : -Infinity);
  else if (out.size === x.size) x.device.kernels.copy(out, x);
  else x.device.kernels.reduce(kind, out, x);
  return out.reshape(shapes.shape);
}

const sumOp = defineOp({
  name: "sum",
  forward([x]: [Tensor], shapes: { kept: Shape; shape: Shape }) {
    return { output: reduce("sum", x, shapes), saved: { kept: shapes.kept, from: x.shape } };
  },
  backward({ kept, from }, dOut) {
    using repeated = dOut.reshape(kept);
    const dx = dOut.device.empty(from, dOut.dtype);
    if (dx.size > 0) dOut.device.kernels.copy(dx, repeated);
    return [dx];
  },
});

/**
 * Sum over some axes, or all; float32 accumulation, one rounding.
 *
 * @example
 * ```ts
 * import { fromArray, sum } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using rows = sum(x, -1);
 * Array.from(await rows.read()); // => [3, 7]
 * ```
 * @throws ShapeError for an axis out of range.
 */
export function sum(x: Tensor, axes?: Axes, { keepAxes = false }: ReduceOptions = {}): Tensor {
  x.assertUsable("sum");
  const { kept, dropped } = shapesOf(x, axes, "sum");
  return sumOp([x], { kept, shape: keepAxes ? kept : dropped });
}

/** Mean over some axes, or all. */
export function mean(x: Tensor, axes?: Axes, options: ReduceOptions = {}): Tensor {
  using total = sum(x, axes, options);
  return scale(total, total.size / x.size);
}

/** The largest over some axes, or all. Not differentiable: the result has no history. */
export function max(x: Tensor, axes?: Axes, { keepAxes = false }: ReduceOptions = {}): Tensor {
  x.assertUsable("max");
  const { kept, dropped } = shapesOf(x, axes, "max");
  if (x.size === 0) throw new ShapeError({ where: "max", expected: "at least one element", received: "none" });
  return reduce("max", x, { kept, shape: keepAxes ? kept : dropped });
}
