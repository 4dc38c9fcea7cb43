import {
  checkArgument,
  checkContext,
  checkSharding,
  checkTensor,
  type Context,
  contiguousStrides,
  dataParallelRank,
  dataParallelSize,
  defineOp,
  defineOptions,
  elementwiseSharding,
  layoutOf,
  Module,
  normalizeAxis,
  option,
  type OptionsOf,
  type ResolvedOptionsOf,
  sequenceAxes,
  ShapeError,
  type Span,
  spansLength,
  type Tensor,
} from "@mosaic/core";

export const shardingOptions = defineOptions("Dropout", {
  /**
   * The tensor axis of the sequence; null: no axis is sharded. Default: -2, the axis before the embedding, and null for
   * a tensor with fewer than two axes.
   */
  sequenceAxis: option.nullable(option.integer(), { optional: true }),
  /** Placement of the sequence: how it is divided into shards. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Mesh axes along which the sequence is sharded, outermost first. Default: all that are not data-parallel. */
  axes: option.array(option.string(), { optional: true }),
  /** Length of the whole sequence over all shards. Required if shards are unequal. Default: local rows times shards. */
  sequenceLength: option.integer({ min: 0, optional: true }),
});
/**
 * How tensors are sharded over the ranks: along which tensor axis, and how. The batch is divided equally over the
 * data-parallel ranks.
 */
export type ShardingOptions = OptionsOf<typeof shardingOptions>;
/** ShardingOptions with the defaults applied. */
type ResolvedSharding = ResolvedOptionsOf<typeof shardingOptions>;

export const dropoutForwardOptions = defineOptions("Dropout.forward", {
  /** Placement of the sequence in this call, such as the result of `dispatch` for its mask. Default: the module's. */
  placement: option.placement({ optional: true }),
  /** Length of the whole sequence in this call. Default: the module's. */
  sequenceLength: option.integer({ min: 0, optional: true }),
});
/** Options of one call, for sequences with a new placement at every step. */
export type DropoutForwardOptions = OptionsOf<typeof dropoutForwardOptions>;

/** A range of a tensor's rows, and the row-major indices of its elements in the global tensor. */
interface GlobalRange {
  /** The axis of the ranges, and the local rows of this range; undefined: the range is the whole local tensor. */
  readonly rows?: { readonly axis: number; readonly start: number; readonly end: number };
  /** Index of the range's first element in the global tensor. */
  readonly offset: number;
  /** Distance in the global tensor between neighbors along each axis. */
  readonly strides: readonly number[];
}

/** Returns the ranges of a local tensor. An index identifies the same element of the global tensor on any mesh. */
function globalRanges(ctx: Context, x: Tensor, sharding: ResolvedSharding): readonly GlobalRange[] {
  const { sequenceAxis = x.rank < 2 ? null : -2 } = sharding;
  const normalizedAxis = sequenceAxis === null ? undefined : normalizeAxis(sequenceAxis, x.rank, "sequenceAxis");
  const sequence = normalizedAxis === undefined ? undefined : sequenceSpans(ctx, x, normalizedAxis, sharding);
  const shards = dataParallelSize(ctx.mesh);
  const isBatched = x.rank > 0 && normalizedAxis !== 0;
  const globalShape = x.shape.map((length, axis) => {
    if (axis === normalizedAxis) return sequence!.length;
    return axis === 0 && isBatched ? length * shards : length;
  });
  const strides = contiguousStrides(globalShape);
  const batchOffset = isBatched ? dataParallelRank(ctx.mesh) * x.shape[0]! * strides[0]! : 0;
  if (normalizedAxis === undefined) return [{ offset: batchOffset, strides }];
  let rangeStart = 0;
  return sequence!.spans.map(({ start, length, step }) => {
    const rows = { axis: normalizedAxis, start: rangeStart, end: (rangeStart += length) };
    return {
      rows,
      offset: batchOffset + start * strides[normalizedAxis]!,
      strides: strides.with(normalizedAxis, step * strides[normalizedAxis]!),
    };
  });
}

/** Returns the global positions of this rank's rows along the sequence axis. */
// oxlint-disable-next-line max-params -- a tensor, one of its axes, and how it is sharded
function sequenceSpans(
  ctx: Context,
  x: Tensor,
  axis: number,
  { placement, axes = sequenceAxes(ctx.mesh.shape), sequenceLength }: ResolvedSharding,
): { readonly length: number; readonly spans: readonly Span[] } {
  const rows = x.shape[axis]!;
  const shards = axes.reduce((product, meshAxis) => product * (ctx.mesh.shape[meshAxis] ?? 1), 1);
  const length = sequenceLength ?? rows * shards;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes, placement, length });
  checkSharding(`Dropout, rank ${ctx.rank}`, x, { axis, layout, mesh: ctx.mesh.shape });
  const spans = layout.spans(ctx.mesh.coordinate);
  if (spansLength(spans) === rows) return { length, spans };
  throw new ShapeError({
    where: `Dropout, rank ${ctx.rank}`,
    expected: `${spansLength(spans)} rows along the sequence axis, this rank's shard of ${length} rows in ${shards} shards`,
    received: String(rows),
    remedy: "pass sequenceLength, and the axes and placement that the tensor was sharded with",
  });
}

/** The option for the probability of zeroing an element. */
export const dropoutProbabilityOption = option.number({ min: 0, below: 1, default: 0 });

interface DropoutSpec {
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  readonly ranges: readonly GlobalRange[];
}

/** Applies dropout to x, into new memory. The mask is not stored; the backward generates it again. */
function applyDropout(x: Tensor, { ranges, ...randomSpec }: DropoutSpec): Tensor {
  const out = x.device.empty(x.shape, x.dtype);
  for (const { rows, offset, strides } of ranges) {
    using outputRange = rows ? out.slice(rows.axis, rows.start, rows.end) : out.detach();
    using inputRange = rows ? x.slice(rows.axis, rows.start, rows.end) : x.detach();
    if (outputRange.size > 0) x.device.kernels.dropout(outputRange, inputRange, { ...randomSpec, offset, strides });
  }
  return out;
}

const dropoutOp = defineOp({
  name: "dropout",
  sharding: elementwiseSharding,
  forward([x]: [Tensor], dropout: DropoutSpec) {
    return { output: applyDropout(x, dropout), saved: { draw: dropout } };
  },
  backward: ({ draw }, dOut) => [applyDropout(dOut, draw)],
});

/**
 * During training, zeroes each element with the given probability p and divides the others by 1 − p (Srivastava et al.
 * 2014). After `eval()`, returns its input unchanged.
 *
 * Which elements are zeroed depends on the context's seed, the number of the call, and the index of the element in the
 * *global* tensor. The result is therefore the same on any number of ranks and with any placement, if the options
 * describe how the tensor is sharded. By default, axis -2 is sharded contiguously over all mesh axes but the
 * data-parallel ones, which shard axis 0. For a tensor that is replicated on the ranks of a sequence, pass
 * `sequenceAxis: null`. Nothing is saved for the backward.
 *
 * @example
 * ```ts
 * import { init, ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { Dropout } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const drop = new Dropout(ctx, 0.5);
 * using x = ones(ctx, [1, 2, 4]);
 * using y = drop.forward(x);
 * Array.from(new Set(await y.read())).toSorted(); // => [0, 2]
 * using same = drop.eval().forward(x);
 * Array.from(await same.read()); // => [1, 1, 1, 1, 1, 1, 1, 1]
 * ```
 * @throws OptionError for a probability outside [0, 1).
 */
export class Dropout extends Module {
  readonly probability: number;
  readonly #ctx: Context;
  readonly #sharding: ResolvedSharding;

  constructor(ctx: Context, probability = 0.5, options?: ShardingOptions) {
    super();
    checkContext("Dropout", ctx);
    checkArgument("Dropout: probability", probability, dropoutProbabilityOption);
    this.#ctx = ctx;
    this.#sharding = shardingOptions.parse(options);
    this.probability = probability;
  }

  /** x [..] → the same shape. */
  forward(x: Tensor, options?: DropoutForwardOptions): Tensor {
    checkTensor("Dropout", x);
    const call = dropoutForwardOptions.parse(options);
    // Always returns a new handle, because the caller disposes the output of a layer.
    if (!this.training || this.probability === 0) return x.reshape(x.shape);
    const ctx = this.#ctx;
    const { placement = this.#sharding.placement, sequenceLength = this.#sharding.sequenceLength } = call;
    const ranges = globalRanges(ctx, x, { ...this.#sharding, placement, sequenceLength });
    const { probability } = this;
    return dropoutOp([x], { probability, seed: ctx.seed, stream: ctx.nextRandomStream(), ranges });
  }
}
