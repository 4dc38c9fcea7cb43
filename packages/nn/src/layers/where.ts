import {
  type Context,
  layoutOf,
  normalizeAxis,
  sequenceAxes,
  type Span,
  spansLength,
  ShapeError,
  type Tensor,
  defineOptions,
  option,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "@mosaic/core";

export const whereOptions = defineOptions("Dropout", {
  /** The tensor axis that is the sequence; null: no axis is cut into shards. Default: -2, the one before the embedding, and null for a tensor of one axis. */
  sequenceAxis: option.nullable(option.integer(), { optional: true }),
  /** How the sequence is cut. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Mesh axes along which the sequence is cut, outermost first. Default: all but "dp". */
  axes: option.array(option.string(), { optional: true }),
  /** Rows of the whole sequence; needed if shards are unequal. Default: local rows times shards. */
  sequenceLength: option.integer({ min: 0, optional: true }),
});
/** How this rank's tensors lie in the whole: which axis is cut into shards, and how. The batch is cut along "dp". */
export type WhereOptions = OptionsOf<typeof whereOptions>;
/** The same with its defaults. */
export type Where = ResolvedOptionsOf<typeof whereOptions>;

/** A stretch of a tensor's rows, and where its elements lie in the whole tensor, counted row-major. */
export interface Stretch {
  /** The axis cut into stretches, and the local rows of this one; the whole tensor if undefined. */
  readonly rows?: { readonly axis: number; readonly from: number; readonly to: number };
  /** Index of its first element in the whole. */
  readonly offset: number;
  /** Distance in the whole between neighbours along each axis. */
  readonly strides: readonly number[];
}

/** The stretches of a local tensor: elements of one index are the same element of the whole, on any mesh. */
export function stretchesOf(ctx: Context, x: Tensor, where: Where): readonly Stretch[] {
  const { sequenceAxis = x.rank < 2 ? null : -2 } = where;
  const along = sequenceAxis === null ? undefined : normalizeAxis(sequenceAxis, x.rank, "sequenceAxis");
  const sequence = along === undefined ? undefined : sequenceOf(ctx, x.shape[along]!, where);
  const shards = ctx.mesh.shape.dp ?? 1;
  const batched = x.rank > 0 && along !== 0;
  const whole = x.shape.map((length, axis) => {
    if (axis === along) return sequence!.length;
    return axis === 0 && batched ? length * shards : length;
  });
  const strides = rowMajor(whole);
  const base = batched ? (ctx.mesh.coordinate.dp ?? 0) * x.shape[0]! * strides[0]! : 0;
  if (along === undefined) return [{ offset: base, strides }];
  let from = 0;
  return sequence!.spans.map(({ start, length, step }) => {
    const rows = { axis: along, from, to: (from += length) };
    return { rows, offset: base + start * strides[along]!, strides: strides.with(along, step * strides[along]!) };
  });
}

/** Which global positions this rank's rows are. */
function sequenceOf(
  ctx: Context,
  rows: number,
  { placement, axes = sequenceAxes(ctx.mesh.shape), sequenceLength }: Where,
): { readonly length: number; readonly spans: readonly Span[] } {
  const shards = axes.reduce((product, axis) => product * (ctx.mesh.shape[axis] ?? 1), 1);
  const length = sequenceLength ?? rows * shards;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes, placement, length });
  const spans = layout.spans(ctx.mesh.coordinate);
  if (spansLength(spans) === rows) return { length, spans };
  throw new ShapeError({
    where: `rank ${ctx.rank}`,
    expected: `${spansLength(spans)} rows, this rank's shard of ${length} among ${shards}`,
    received: String(rows),
    remedy: "give sequenceLength, and the axes and placement that the tensor was sharded with",
  });
}

function rowMajor(shape: readonly number[]): number[] {
  const strides = new Array<number>(shape.length);
  let stride = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= shape[axis]!;
  }
  return strides;
}
