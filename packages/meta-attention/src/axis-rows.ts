import { formatShape, normalizeAxis, type Shape, ShapeError, type Tensor } from "@mosaic/core";

/** A tensor seen as a batch of sequences along one axis, and the way back. */
export interface AxisRows {
  /** [B,S,E]. */
  readonly rows: Tensor;
  /** The axes that B stands for, row-major. */
  readonly batchShape: Shape;
  /** [B,S,F] in the caller's axis order, [..,F], dense. */
  restore(result: Tensor): Tensor;
}

/** Moves an axis of x [..,E] behind all others but the embedding, and flattens those. Copies only if strides cannot show it. */
export function rowsAlong(where: string, x: Tensor, axis: number): AxisRows {
  x.assertUsable(where);
  const along = x.rank < 2 ? x.rank : normalizeAxis(axis, x.rank, where);
  const embed = x.rank - 1;
  if (along >= embed) {
    throw new ShapeError({
      where,
      expected: "an axis before the last, which is the embedding",
      received: `${axis} of ${formatShape(x.shape)}`,
    });
  }
  const others = x.shape.map((_, each) => each).filter((each) => each !== along && each !== embed);
  const order = [...others, along, embed];
  const batchShape = others.map((each) => x.shape[each]!);
  using moved = x.permute(order);
  return {
    rows: moved.reshape([batchShape.reduce((a, b) => a * b, 1), x.shape[along]!, x.shape[embed]!]),
    batchShape,
    restore(result) {
      using apart = result.reshape([...batchShape, ...result.shape.slice(1)]);
      using back = apart.permute(order.map((_, each) => order.indexOf(each)));
      return back.contiguous();
    },
  };
}
