import { ShapeError } from "../errors.ts";
import { formatShape, normalizeAxis } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

// Any axes of an N-D tensor become one sequence: x [..,E] → rows [B,S,E] and back. For the scope of a module's forward.

/** A tensor seen as a batch of sequences, and the way back for what has as many rows. */
export interface Sequence {
  /** [B,S,E]. */
  readonly rows: Tensor;
  /** Local lengths of the axes that S is made of, in the order given. */
  readonly lengths: readonly number[];
  /** [B,S,F] in the caller's axis order [..,F], dense. */
  restore(result: Tensor): Tensor;
}

/** Moves `axes` (outermost first) behind all others and flattens both. Copies only if strides cannot show it. */
export function toSequence(where: string, x: Tensor, axes: readonly number[]): Sequence {
  const chosen = axes.map((axis) => sequenceAxis(where, x, axis));
  if (new Set(chosen).size < chosen.length) {
    throw new ShapeError({
      where,
      expected: "two axes that differ",
      received: `${axes.join(" and ")} of ${formatShape(x.shape)}`,
    });
  }
  const embed = x.rank - 1;
  const others = x.shape.map((_, axis) => axis).filter((axis) => axis !== embed && !chosen.includes(axis));
  const order = [...others, ...chosen, embed];
  const lengthsOf = (each: readonly number[]) => each.map((axis) => x.shape[axis]!);
  const size = (each: readonly number[]) => lengthsOf(each).reduce((product, length) => product * length, 1);
  return {
    rows: x.permute(order).reshape([size(others), size(chosen), x.shape[embed]!]),
    lengths: lengthsOf(chosen),
    restore(result) {
      const unflat = result.reshape([...lengthsOf([...others, ...chosen]), result.shape.at(-1)!]);
      return unflat.permute(order.map((_, axis) => order.indexOf(axis))).contiguous();
    },
  };
}

function sequenceAxis(where: string, x: Tensor, axis: number): number {
  if (x.rank < 2) {
    throw new ShapeError({
      where,
      expected: "at least two axes, the last the embedding",
      received: formatShape(x.shape),
    });
  }
  const normal = normalizeAxis(axis, x.rank, where);
  if (normal < x.rank - 1) return normal;
  throw new ShapeError({
    where,
    expected: "an axis before the last, which is the embedding",
    received: `${axis} of ${formatShape(x.shape)}`,
  });
}
