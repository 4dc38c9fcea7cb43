import { formatShards } from "../attention/format.ts";
import { checkNullableTensor, checkTensor } from "../arguments.ts";
import { isDataParallelAxis } from "../data-parallel.ts";
import { expectValue, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { formatShape, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { AxisSharding, Layout, Sharding } from "./placement.ts";
import type { Span } from "./span.ts";
import { coordinatesAlong, findPlacementName } from "./verify.ts";

// What a tensor records about how it was sharded, as a DTensor has placements. `shard` and `attention` record it, and
// operations that keep the rows of an axis pass it on. Calls that are given a layout compare it.

type ShardedTensor = Pick<Tensor, "shape" | "rank" | "sharding">;

/** Returns `sharding` with that of one axis replaced. An axis of which a rank holds all rows is not listed. */
export function withAxisSharding(sharding: Sharding | null, axisSharding: AxisSharding): Sharding | null {
  const otherAxes = sharding?.filter(({ axis }) => axis !== axisSharding.axis) ?? [];
  return toSharding(shardedMeshAxes(axisSharding).length > 0 ? [...otherAxes, axisSharding] : otherAxes);
}

function toSharding(axes: readonly AxisSharding[]): Sharding | null {
  return axes.length > 0 ? axes : null;
}

/** Returns the mesh axes of length > 1 over which an axis is sharded. */
function shardedMeshAxes({ layout, mesh }: Pick<AxisSharding, "layout" | "mesh">): readonly string[] {
  return layout.axes.filter((axis) => (mesh[axis] ?? 1) > 1);
}

/**
 * Throws a ShapeError if a tensor is known to be sharded differently from what a call expects: its rows along the axis
 * have another layout, or another axis is sharded over the same ranks. Layouts are compared on all ranks, so that the
 * error is thrown on all of them. A tensor whose sharding is unknown passes.
 *
 * @example
 * ```ts
 * import { checkSharding, layoutOf, zeros } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = zeros(device, [1, 4, 16]);
 * const mesh = { sp: 2 };
 * x.sharding = [{ axis: 1, layout: layoutOf({ mesh, axes: ["sp"], length: 8 }), mesh }];
 * const layout = layoutOf({ mesh, axes: ["sp"], length: 8, placement: "zigzag" });
 * checkSharding("loss", x, { axis: 1, layout, mesh }); // throws loss: expected 8 rows of axis 1 sharded over sp, zigzag
 * ```
 * @throws OptionError if an argument is not of its type.
 */
export function checkSharding(where: string, x: Tensor, expected: AxisSharding): void {
  checkTensor(where, x);
  const { axis, layout, mesh } = expected ?? {};
  const isAxisSharding = typeof axis === "number" && isLayout(layout) && typeof mesh === "object" && mesh !== null;
  expectValue(where, isAxisSharding, "how an axis is sharded: { axis, layout, mesh }", expected);
  compareSharding(where, x.sharding, expected);
}

const isLayout = option.hasMethods<Layout>("spans");

function compareSharding(where: string, sharding: Sharding | null, expected: AxisSharding): void {
  for (const actual of sharding ?? []) {
    const isCompatible =
      actual.axis === expected.axis ? haveSameLayout(actual, expected) : !shareMeshAxis(actual, expected);
    if (isCompatible) continue;
    throw new ShapeError({
      where,
      expected: formatAxisSharding(expected),
      received: formatAxisSharding(actual),
      remedy:
        "pass the placement, axes and length that the tensor was sharded with; set x.sharding = null if the rows were rearranged",
    });
  }
}

/** Throws a ShapeError if an axis is known to be sharded, for an operation that moves rows along it. */
export function checkUnsharded(
  where: string,
  x: ShardedTensor,
  { axis, remedy }: { axis: number; remedy: string },
): void {
  const sharding = x.sharding?.find((each) => each.axis === axis);
  if (!sharding) return;
  const received = formatAxisSharding(sharding);
  throw new ShapeError({ where, expected: `all rows along axis ${axis} on this rank`, received, remedy });
}

/**
 * Throws a ShapeError if an axis is known to be sharded, unless over data-parallel mesh axes alone, for a mean or an
 * extreme value of all rows. Along these, ranks have samples of their own, and each has the mean of its samples as its
 * loss.
 */
export function checkSequenceUnsharded(where: string, x: ShardedTensor, axis: number): void {
  const sharding = x.sharding?.find((each) => each.axis === axis);
  if (!sharding || shardedMeshAxes(sharding).every(isDataParallelAxis)) return;
  const remedy =
    "call meanOverMesh of @mosaic/nn for a loss, or unshard() for all rows; set x.sharding = null for this rank's rows";
  checkUnsharded(where, x, { axis, remedy });
}

function shareMeshAxis(a: AxisSharding, b: AxisSharding): boolean {
  const meshAxes = shardedMeshAxes(b);
  return shardedMeshAxes(a).some((axis) => meshAxes.includes(axis));
}

/** Layouts that were found to hold the same positions. */
const sameLayouts = new WeakMap<Layout, WeakSet<Layout>>();

/** Returns whether two axes have the same positions on every rank. */
function haveSameLayout({ layout: a, mesh }: AxisSharding, { layout: b }: AxisSharding): boolean {
  if (a === b || sameLayouts.get(a)?.has(b)) return true;
  if (a.length !== b.length) return false;
  const coordinates = coordinatesAlong([...new Set([...a.axes, ...b.axes])], mesh);
  const areSame = coordinates.every((coordinate) => haveSamePositions(a.spans(coordinate), b.spans(coordinate)));
  if (areSame) {
    const layouts = sameLayouts.get(a) ?? new WeakSet<Layout>();
    sameLayouts.set(a, layouts.add(b));
  }
  return areSame;
}

/** Returns whether two lists of spans are the same positions in the same order. Spans of one position have any step. */
function haveSamePositions(a: readonly Span[], b: readonly Span[]): boolean {
  let [indexA, indexB, rowA, rowB] = [0, 0, 0, 0];
  for (;;) {
    while (indexA < a.length && rowA === a[indexA]!.length) [indexA, rowA] = [indexA + 1, 0];
    while (indexB < b.length && rowB === b[indexB]!.length) [indexB, rowB] = [indexB + 1, 0];
    const [spanA, spanB] = [a[indexA], b[indexB]];
    if (!spanA || !spanB) return spanA === spanB;
    if (spanA.start + rowA * spanA.step !== spanB.start + rowB * spanB.step) return false;
    const rows = spanA.step === spanB.step ? Math.min(spanA.length - rowA, spanB.length - rowB) : 1;
    [rowA, rowB] = [rowA + rows, rowB + rows];
  }
}

function formatAxisSharding({ axis, layout, mesh }: AxisSharding): string {
  const meshAxes = shardedMeshAxes({ layout, mesh });
  if (meshAxes.length === 0) return `all ${layout.length} rows of axis ${axis} on every rank`;
  const shards = coordinatesAlong(meshAxes, mesh).map((coordinate) => layout.spans(coordinate));
  const placementName = findPlacementName(layout);
  const description = `${layout.length} rows of axis ${axis} sharded over ${meshAxes.join(",")}`;
  return `${description}${placementName === undefined ? "" : `, ${placementName}`}: ${formatShards(shards)}`;
}

/**
 * Returns the sharding of an elementwise result, whose axes are aligned with the last axes of the inputs. For
 * `OpDefinition.sharding`.
 *
 * @example
 * ```ts
 * import { elementwiseSharding, layoutOf, zeros } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = zeros(device, [3, 4, 16]);
 * using row = zeros(device, [4, 1]);
 * const mesh = { sp: 2 };
 * row.sharding = [{ axis: 0, layout: layoutOf({ mesh, axes: ["sp"], length: 8 }), mesh }];
 * elementwiseSharding("add", [x, row])?.map(({ axis }) => axis); // => [1]
 * ```
 * @throws ShapeError if inputs are sharded differently, because their rows are those of different positions.
 */
export function elementwiseSharding(where: string, inputs: readonly (Tensor | null)[]): Sharding | null {
  checkInputs(where, inputs);
  return mergeSharding(where, inputs);
}

function checkInputs(where: string, inputs: readonly (Tensor | null)[]): void {
  expectValue(where, Array.isArray(inputs), "an array of tensors", inputs);
  for (const input of inputs) checkNullableTensor(where, input);
}

function mergeSharding(where: string, inputs: readonly (ShardedTensor | null)[]): Sharding | null {
  if (inputs.length === 1) return inputs[0]?.sharding ?? null;
  const operands = inputs.filter((x) => x !== null);
  const rank = Math.max(...operands.map((x) => x.rank));
  const merged: AxisSharding[] = [];
  for (const x of operands) {
    const aligned = {
      rank,
      shape: [],
      sharding: (x.sharding ?? []).map((each) => ({ ...each, axis: each.axis + rank - x.rank })),
    };
    for (const axisSharding of merged) compareSharding(where, aligned.sharding, axisSharding);
    for (const axisSharding of aligned.sharding) {
      const fromEnd = rank - axisSharding.axis;
      const isBroadcast = x.shape.at(-fromEnd) === 1 && operands.some((y) => (y.shape.at(-fromEnd) ?? 1) !== 1);
      if (isBroadcast && axisSharding.layout.length > 1) throw createBroadcastError(where, axisSharding, operands);
      if (!isBroadcast && !merged.some(({ axis }) => axis === axisSharding.axis)) merged.push(axisSharding);
    }
  }
  return toSharding(merged);
}

/** Returns the error of an operation that would repeat the only row of this rank for all rows of another operand. */
function createBroadcastError(
  where: string,
  axisSharding: AxisSharding,
  operands: readonly ShardedTensor[],
): ShapeError {
  return new ShapeError({
    where,
    expected: `operands with 1 row along axis ${axisSharding.axis}, the number of rows of this rank`,
    received: `${operands.map(({ shape }) => formatShape(shape)).join(" and ")}; ${formatAxisSharding(axisSharding)}`,
    remedy: "shard the other operand, or call unshard() for all rows; set x.sharding = null to repeat this rank's row",
  });
}

/**
 * Returns the sharding of a result whose rows, along all axes but the last, are those of the first input. For
 * `OpDefinition.sharding`.
 *
 * @example
 * ```ts
 * import { layoutOf, rowSharding, zeros } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = zeros(device, [4, 8]);
 * const mesh = { sp: 2 };
 * const layout = layoutOf({ mesh, axes: ["sp"], length: 8 });
 * x.sharding = [{ axis: 0, layout, mesh }];
 * rowSharding("linear", [x])?.map(({ axis }) => axis); // => [0]
 * x.sharding = [{ axis: 1, layout, mesh }];
 * rowSharding("linear", [x]); // => null
 * ```
 * @throws OptionError if an input is not a tensor or null.
 */
export function rowSharding(where: string, inputs: readonly (Tensor | null)[]): Sharding | null {
  checkInputs(where, inputs);
  const [x] = inputs;
  if (!x?.sharding) return null;
  return toSharding(x.sharding.filter(({ axis }) => axis < x.rank - 1));
}

/**
 * Throws a ShapeError if two tensors are known to be sharded differently along axes of the same number. Their other
 * axes may differ, as those of logits [..,C] and targets [..].
 *
 * @example
 * ```ts
 * import { checkSameSharding, layoutOf, zeros } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using logits = zeros(device, [1, 4, 16]);
 * using targets = zeros(device, [1, 4]);
 * const mesh = { sp: 2 };
 * logits.sharding = [{ axis: 1, layout: layoutOf({ mesh, axes: ["sp"], length: 8, placement: "zigzag" }), mesh }];
 * targets.sharding = [{ axis: 1, layout: layoutOf({ mesh, axes: ["sp"], length: 8 }), mesh }];
 * checkSameSharding("loss: targets", logits, targets); // throws loss: targets: expected 8 rows of axis 1 sharded over sp, zigzag
 * ```
 * @throws OptionError if an argument is not a tensor.
 */
export function checkSameSharding(where: string, x: Tensor, other: Tensor): void {
  for (const tensor of [x, other]) checkTensor(where, tensor);
  for (const axisSharding of x.sharding ?? []) compareSharding(where, other.sharding, axisSharding);
}

/** Returns the sharding of a view that has other axes: `toAxis` returns the new number of an axis, or -1. */
export function moveSharding(sharding: Sharding, toAxis: (axis: number) => number): Sharding | null {
  const movedAxes = sharding.map((each) => ({ ...each, axis: toAxis(each.axis) }));
  return toSharding(movedAxes.filter(({ axis }) => axis >= 0));
}

/** Returns the axis of a reshaped tensor that has exactly the rows of `axis`; -1 if there is none. */
export function reshapedAxis(axis: number, shape: Shape, reshaped: Shape): number {
  const length = shape[axis]!;
  let isPrefixEqual = axis < reshaped.length;
  for (let i = 0; i <= axis && isPrefixEqual; i++) isPrefixEqual = shape[i] === reshaped[i];
  if (isPrefixEqual) return axis;
  // Axes of length 1, and those of an empty tensor, cannot be distinguished.
  if (length <= 1 || shape.includes(0)) return -1;
  const outerSize = shape.slice(0, axis).reduce((product, each) => product * each, 1);
  let size = 1;
  for (const [i, each] of reshaped.entries()) {
    if (size === outerSize && each === length) return i;
    size *= each;
  }
  return -1;
}

/** Returns the sharding of a concatenation along `axis`, where inputs may have any rows. For `OpDefinition.sharding`. */
export function concatenatedSharding(where: string, inputs: readonly Tensor[], axis: number): Sharding | null {
  const keepAxis = (each: number): number => (each === axis ? -1 : each);
  return mergeSharding(
    where,
    inputs.map(({ shape, rank, sharding }) => ({
      shape,
      rank,
      sharding: sharding && moveSharding(sharding, keepAxis),
    })),
  );
}

/** Returns the sharding of a matrix product [..,M,K] · [..,K,N]. For `OpDefinition.sharding`. */
export function matmulSharding(where: string, [a, b]: readonly [Tensor, Tensor]): Sharding | null {
  const withoutInnerAxis = ({ shape, rank, sharding }: Tensor, inner: number): ShardedTensor => ({
    shape: shape.with(inner, 1),
    rank,
    sharding: sharding && moveSharding(sharding, (axis) => (axis === rank + inner ? -1 : axis)),
  });
  return mergeSharding(where, [withoutInnerAxis(a, -1), withoutInnerAxis(b, -2)]);
}
