import type { Context } from "../context.ts";
import { ShapeError } from "../errors.ts";
import type { Layout } from "../placement/placement.ts";
import { layoutOf } from "../placement/layout.ts";
import { spansLength } from "../placement/span.ts";
import { formatShape, sameShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { HeadNorm, PositionEncoding, ResolvedOptions } from "./attention-options.ts";

// The steps of an attention module around `attention`: flattening axes of an N-D tensor to one sequence, x [..,E] →
// rows [B,S,E], splitting features into heads, and the inverses. To be called in the scope of a module's forward, which
// releases the intermediates.

/** A tensor as a batch of sequences, with the inverse transformation for results with the same number of rows. */
interface SequenceView {
  /** [B,S,E]. */
  readonly rows: Tensor;
  /** Local lengths of the axes that form S, in the order in which they were passed. */
  readonly lengths: readonly number[];
  /** Returns [B,S,F] in the caller's axis order [..,F], contiguous. */
  restore(result: Tensor): Tensor;
}

/**
 * Moves `axes` (outermost first) behind all other axes, and flattens both groups. Copies only if strides cannot
 * represent the result.
 */
export function toSequence(where: string, x: Tensor, axes: readonly number[]): SequenceView {
  const sequenceAxes = axes.map((axis) => normalizeSequenceAxis(where, x, axis));
  if (new Set(sequenceAxes).size < sequenceAxes.length) {
    throw new ShapeError({
      where,
      expected: "two distinct axes",
      received: `axes ${axes.join(" and ")} of ${formatShape(x.shape)}`,
    });
  }
  // [B,S,E], as in most models, is already a batch of sequences.
  if (x.rank === 3 && sequenceAxes[0] === 1 && sequenceAxes.length === 1) {
    return {
      rows: x,
      lengths: [x.shape[1]!],
      restore: (result) => (result.isContiguous ? result : result.contiguous()),
    };
  }
  const embedAxis = x.rank - 1;
  const batchAxes = x.shape.map((_, axis) => axis).filter((axis) => axis !== embedAxis && !sequenceAxes.includes(axis));
  const order = [...batchAxes, ...sequenceAxes, embedAxis];
  const axisLengths = (axisList: readonly number[]) => axisList.map((axis) => x.shape[axis]!);
  const countElements = (each: readonly number[]) => axisLengths(each).reduce((product, length) => product * length, 1);
  return {
    rows: x.permute(order).reshape([countElements(batchAxes), countElements(sequenceAxes), x.shape[embedAxis]!]),
    lengths: axisLengths(sequenceAxes),
    restore(result) {
      const unflattenedResult = result.reshape([...axisLengths([...batchAxes, ...sequenceAxes]), result.shape.at(-1)!]);
      return unflattenedResult.permute(order.map((_, axis) => order.indexOf(axis))).contiguous();
    },
  };
}

function normalizeSequenceAxis(where: string, x: Tensor, axis: number): number {
  if (x.rank < 2) {
    throw new ShapeError({
      where,
      expected: "at least two axes, with the embedding as the last axis",
      received: formatShape(x.shape),
    });
  }
  const normalizedAxis = axis < 0 ? axis + x.rank : axis;
  if (normalizedAxis >= 0 && normalizedAxis < x.rank - 1) return normalizedAxis;
  throw new ShapeError({
    where,
    expected: `an attention axis from 0 to ${x.rank - 2}, or from ${-x.rank} to -2, other than the last axis, the embedding`,
    received: `axis ${axis} of ${formatShape(x.shape)}`,
  });
}

/** Returns heads [first, first + count) of the features: [B,S,n·D] → [B,count,S,D], a view. */
export function splitHeads(x: Tensor, heads: { first: number; count: number; size: number }): Tensor {
  const { first, count, size } = heads;
  const [b, s] = x.shape as [number, number, number];
  return x
    .slice(-1, first * size, (first + count) * size)
    .reshape([b, s, count, size])
    .permute([0, 2, 1, 3]);
}

/** Norm and position encoding that are applied to queries or keys before attention. */
interface HeadEncoding {
  readonly where: string;
  readonly norm: HeadNorm | null;
  readonly positions: PositionEncoding | null;
  readonly layout: Layout;
}

/** Returns x [B,H,S,D] after the norm and the position encoding, if the module has them. */
export function encodeHeads(ctx: Context, x: Tensor, { where, norm, positions, layout }: HeadEncoding): Tensor {
  const heads = norm ? norm.forward(x) : x;
  if (!sameShape(heads.shape, x.shape)) {
    throw new ShapeError({
      where: `${where}: QK-norm`,
      expected: `${formatShape(x.shape)}, the shape of its input`,
      received: formatShape(heads.shape),
    });
  }
  return positions ? positions.encode(heads, layout.spans(ctx.mesh.coordinate), layout.length) : heads;
}

/** Merges heads: [B,H,S,D] → [B,S,H·D]. For the output of `attention`, the result is a view. */
export function mergeHeads(x: Tensor): Tensor {
  const [b, h, s, d] = x.shape as [number, number, number, number];
  return x.permute([0, 2, 1, 3]).reshape([b, s, h * d]);
}

/**
 * Returns the layout of a sequence that is sharded along the backend's axes. The length defaults to that of equal
 * shards.
 *
 * @throws ShapeError unless `rows` is the length of this rank's shard. Thrown before positions and projections are
 * computed.
 */
export function sequenceLayout(
  ctx: Context,
  { name, backend, placement }: Pick<ResolvedOptions, "name" | "backend" | "placement">,
  { rows, length, axisName }: { rows: number; length: number | undefined; axisName: string },
): Layout {
  const mesh = ctx.mesh.shape;
  const shards = backend.axes.reduce((product, axis) => product * (mesh[axis] ?? 1), 1);
  const layout = layoutOf({ mesh, axes: backend.axes, placement, length: length ?? rows * shards });
  const expected = spansLength(layout.spans(ctx.mesh.coordinate));
  if (rows === expected) return layout;
  throw new ShapeError({
    where: `${name}, rank ${ctx.rank}`,
    expected: `${expected} rows along ${axisName}, this rank's shard of ${layout.length} rows`,
    received: String(rows),
    remedy: `pass this rank's shard, from shard(), the placement that it was sharded with, and the length of the whole sequence as ${axisName === "kvAxis" ? "kvSequenceLength" : "sequenceLength"}`,
  });
}
