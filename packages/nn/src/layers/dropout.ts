import {
  checkArgument,
  checkContext,
  checkTensor,
  type Context,
  contiguousStrides,
  defineOp,
  defineOptions,
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
  /** The tensor axis that is the sequence; null: no axis is cut into shards. Default: -2, the one before the embedding, and null for a tensor of one axis. */
  sequenceAxis: option.nullable(option.integer(), { optional: true }),
  /** How the sequence is cut. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Mesh axes along which the sequence is cut, outermost first. Default: all but "dp". */
  axes: option.array(option.string(), { optional: true }),
  /** Rows of the whole sequence; needed if shards are unequal. Default: local rows times shards. */
  sequenceLength: option.integer({ min: 0, optional: true }),
});
/** How this rank's tensors lie in the whole: which axis is cut into shards, and how. The batch is cut along "dp", in equal parts. */
export type ShardingOptions = OptionsOf<typeof shardingOptions>;
/** The same with its defaults. */
type ResolvedSharding = ResolvedOptionsOf<typeof shardingOptions>;

export const dropoutForwardOptions = defineOptions("Dropout.forward", {
  /** How the sequence is cut in this call: what `dispatch` returned for its mask. Default: the module's. */
  placement: option.placement({ optional: true }),
  /** Rows of the whole sequence in this call. Default: the module's. */
  sequenceLength: option.integer({ min: 0, optional: true }),
});
/** What one call may change, for sequences that are placed anew at every step. */
export type DropoutForwardOptions = OptionsOf<typeof dropoutForwardOptions>;

/** A stretch of a tensor's rows, and where its elements lie in the whole tensor, counted row-major. */
interface GlobalRange {
  /** The axis cut into stretches, and the local rows of this one; the whole tensor if undefined. */
  readonly rows?: { readonly axis: number; readonly start: number; readonly end: number };
  /** Index of its first element in the whole. */
  readonly offset: number;
  /** Distance in the whole between neighbours along each axis. */
  readonly strides: readonly number[];
}

/** The stretches of a local tensor: elements of one index are the same element of the whole, on any mesh. */
function globalRanges(ctx: Context, x: Tensor, sharding: ResolvedSharding): readonly GlobalRange[] {
  const { sequenceAxis = x.rank < 2 ? null : -2 } = sharding;
  const normalizedAxis = sequenceAxis === null ? undefined : normalizeAxis(sequenceAxis, x.rank, "sequenceAxis");
  const sequence = normalizedAxis === undefined ? undefined : sequenceSpans(ctx, x.shape[normalizedAxis]!, sharding);
  const shards = ctx.mesh.shape.dp ?? 1;
  const isBatched = x.rank > 0 && normalizedAxis !== 0;
  const globalShape = x.shape.map((length, axis) => {
    if (axis === normalizedAxis) return sequence!.length;
    return axis === 0 && isBatched ? length * shards : length;
  });
  const strides = contiguousStrides(globalShape);
  const batchOffset = isBatched ? (ctx.mesh.coordinate.dp ?? 0) * x.shape[0]! * strides[0]! : 0;
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

/** Which global positions this rank's rows are. */
function sequenceSpans(
  ctx: Context,
  rows: number,
  { placement, axes = sequenceAxes(ctx.mesh.shape), sequenceLength }: ResolvedSharding,
): { readonly length: number; readonly spans: readonly Span[] } {
  const shards = axes.reduce((product, axis) => product * (ctx.mesh.shape[axis] ?? 1), 1);
  const length = sequenceLength ?? rows * shards;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes, placement, length });
  const spans = layout.spans(ctx.mesh.coordinate);
  if (spansLength(spans) === rows) return { length, spans };
  throw new ShapeError({
    where: `Dropout, rank ${ctx.rank}`,
    expected: `${spansLength(spans)} rows along the sequence axis, this rank's shard of ${length} rows in ${shards} shards`,
    received: String(rows),
    remedy: "pass sequenceLength, and the axes and placement that the tensor was sharded with",
  });
}

/** Of an element to become 0. */
export const dropoutProbabilityOption = option.number({ min: 0, below: 1, default: 0 });

interface DropoutSpec {
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  readonly ranges: readonly GlobalRange[];
}

/** x with its zeros, in memory of its own. The mask is drawn, never kept: the backward draws the same again. */
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
  forward([x]: [Tensor], dropout: DropoutSpec) {
    return { output: applyDropout(x, dropout), saved: { draw: dropout } };
  },
  backward: ({ draw }, dOut) => [applyDropout(dOut, draw)],
});

/**
 * While training, makes each element 0 with the given probability and divides the others by what remains (Srivastava et
 * al. 2014); does nothing after `eval()`.
 *
 * Which elements become 0 depends on the context's seed, the number of the call, and where the element lies in the *whole*
 * tensor: the same on one rank, on four and on any placement, if the options state how the tensor is cut: by default axis -2,
 * contiguously over all axes of the mesh but "dp", which cuts axis 0. For a tensor that ranks of a sequence hold whole,
 * pass `sequenceAxis: null`. Nothing is kept for the backward.
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
    // A handle of its own in any case: what a layer returns is the caller's to dispose.
    if (!this.training || this.probability === 0) return x.reshape(x.shape);
    const ctx = this.#ctx;
    const { placement = this.#sharding.placement, sequenceLength = this.#sharding.sequenceLength } = call;
    const ranges = globalRanges(ctx, x, { ...this.#sharding, placement, sequenceLength });
    const { probability } = this;
    return dropoutOp([x], { probability, seed: ctx.seed, stream: ctx.nextRandomStream(), ranges });
  }
}
