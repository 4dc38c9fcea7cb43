import { checkContext, checkTensor } from "../arguments.ts";
import type { Context } from "../context.ts";
import { checkMeshShape, isDataParallelAxis } from "../data-parallel.ts";
import { ShapeError } from "../errors.ts";
import { releaseOnError } from "../tracking.ts";
import type { Coordinate } from "../mesh.ts";
import { concatenate } from "../ops/concatenate.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { formatShape, normalizeAxis } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { Layout } from "./placement.ts";
import { checkMeshAxes, layoutOf } from "./layout.ts";
import { checkSharding, checkUnsharded, moveSharding, withAxisSharding } from "./sharding.ts";
import { type Span, spansLength } from "./span.ts";

export const shardOptions = defineOptions("shard", {
  /** Placement of the axis. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Mesh axes along which the sequence is sharded, outermost first. Default: all that are not data-parallel. */
  axes: option.array(option.string(), { optional: true }),
  /** Length of the whole axis. Required by `unshard` if shards are unequal. Default: local rows times shards. */
  length: option.integer({ min: 0, optional: true }),
});
/** Options of `shard` and `unshard`, which must be equal for both. */
export type ShardOptions = OptionsOf<typeof shardOptions>;
type ShardSettings = ResolvedOptionsOf<typeof shardOptions>;

/**
 * Returns the mesh axes along which ranks share a sequence: all except the data-parallel ones.
 *
 * @example
 * ```ts
 * import { sequenceAxes } from "@mosaic/core";
 * sequenceAxes({ dp: 2, node: 2, gpu: 4 }); // => ["node", "gpu"]
 * ```
 * @throws OptionError unless `shape` has axis lengths by name.
 */
export function sequenceAxes(shape: Coordinate): string[] {
  checkMeshShape("sequenceAxes", shape);
  return Object.keys(shape).filter((axis) => !isDataParallelAxis(axis));
}

/**
 * Returns this rank's shard of a tensor that every rank holds completely. Differentiable. Does not communicate.
 *
 * @example
 * ```ts
 * import { fromArray, init, shard, unshard } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using full = fromArray(ctx, [1, 2, 3, 4], [2, 2]);
 * using mine = shard(ctx, full, 0, { placement: "zigzag" });
 * using whole = unshard(ctx, mine, 0, { placement: "zigzag" });
 * Array.from(await whole.read()); // => [1, 2, 3, 4]
 * ```
 * The result records its layout (`Tensor.sharding`), to which attention, `unshard` and other calls compare theirs.
 *
 * @throws ShapeError for an axis out of range, and for an axis that is sharded already; OptionError for an unknown mesh
 * axis or placement.
 */
export function shard(ctx: Context, full: Tensor, axis: number, options?: ShardOptions): Tensor {
  checkContext("shard", ctx);
  checkTensor("shard", full);
  const settings = shardOptions.parse(options);
  const normalizedAxis = normalizeAxis(axis, full.rank, "shard");
  const length = full.shape[normalizedAxis]!;
  checkShardAxes("shard", ctx, settings);
  const layout = createShardLayout(ctx, { ...settings, length });
  if (settings.length !== undefined && settings.length !== length) {
    throw new ShapeError({
      where: `shard, rank ${ctx.rank}`,
      expected: `${settings.length} rows along axis ${normalizedAxis}`,
      received: formatShape(full.shape),
    });
  }
  const remedy = "pass the whole tensor, from unshard(); set x.sharding = null to shard a shard once more";
  checkUnsharded(`shard, rank ${ctx.rank}`, full, { axis: normalizedAxis, remedy });
  const out = takeShard(full, normalizedAxis, layout.spans(ctx.mesh.coordinate), length);
  out.sharding = withAxisSharding(full.sharding, { axis: normalizedAxis, layout, mesh: ctx.mesh.shape });
  return out;
}

/** Returns the rows of some spans along an axis, in new memory unless they are all rows. */
// oxlint-disable-next-line max-params -- a tensor, the axis and its rows
function takeShard(full: Tensor, axis: number, spans: readonly Span[], length: number): Tensor {
  if (coversSequence(spans, length)) return full.contiguous();
  // Copies even a single slice, so that a shard does not keep the memory of the whole tensor alive.
  const spanSlices = (spans.length > 0 ? spans : [emptySpan]).map((span) => sliceSpan(full, axis, span));
  try {
    return concatenate(spanSlices, axis);
  } finally {
    for (const spanSlice of spanSlices) spanSlice.dispose();
  }
}

const emptySpan: Span = { start: 0, length: 0, step: 1 };

/**
 * Gathers the whole tensor on every rank from the shards: the inverse of `shard`. Collective along the sharded mesh
 * axes. Not differentiable: the result has no gradient history.
 *
 * @example
 * ```ts ranks=2
 * import { local } from "@mosaic/collectives-local";
 * import { contiguous, full, init, unshard } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), collectives: local() });
 * using mine = full(ctx, [1 + ctx.rank, 2], ctx.rank); // one row on rank 0, two on rank 1
 * using whole = unshard(ctx, mine, 0, { placement: contiguous([1, 2]), length: 3 });
 * Array.from(await whole.read()); // => [0, 0, 1, 1, 1, 1]
 * whole.shape; // => [3, 2]
 * ```
 * @throws ShapeError if the number of rows is not the length of this rank's shard, or if the tensor is known to be
 * sharded differently.
 */
export function unshard(ctx: Context, x: Tensor, axis: number, options?: ShardOptions): Tensor {
  checkContext("unshard", ctx);
  checkTensor("unshard", x);
  const settings = shardOptions.parse(options, "unshard");
  const normalizedAxis = normalizeAxis(axis, x.rank, "unshard");
  const rows = x.shape[normalizedAxis]!;
  checkShardAxes("unshard", ctx, settings);
  const shards = resolveShardCount(ctx, settings);
  const layout = createShardLayout(ctx, { ...settings, length: settings.length ?? rows * shards });
  checkSharding(`unshard, rank ${ctx.rank}`, x, { axis: normalizedAxis, layout, mesh: ctx.mesh.shape });
  const expected = spansLength(layout.spans(ctx.mesh.coordinate));
  if (rows !== expected) {
    throw new ShapeError({
      where: `unshard, rank ${ctx.rank}`,
      expected: `${expected} rows along axis ${normalizedAxis}, this rank's shard of ${layout.length} rows in ${shards} shards`,
      received: formatShape(x.shape),
      remedy: "pass the placement and the length that the tensor was sharded with",
    });
  }
  return releaseOnError(() => {
    using detachedShard = x.detach();
    using rowsFirstView = detachedShard.transpose(0, normalizedAxis);
    using gatheredRows = gatherShards(ctx, rowsFirstView, layout);
    const full = scatterRows(gatheredRows, layout, normalizedAxis);
    full.sharding = x.sharding && moveSharding(x.sharding, (each) => (each === normalizedAxis ? -1 : each));
    return full;
  });
}

function checkShardAxes(where: string, ctx: Context, { axes }: ShardSettings): void {
  if (axes) checkMeshAxes(`${where}: axes`, ctx.mesh.shape, axes);
}

function resolveShardCount(ctx: Context, { axes = sequenceAxes(ctx.mesh.shape) }: ShardSettings): number {
  return axes.reduce((product, axis) => product * (ctx.mesh.shape[axis] ?? 1), 1);
}

function createShardLayout(ctx: Context, settings: ShardSettings & { length: number }): Layout {
  const { placement, axes = sequenceAxes(ctx.mesh.shape), length } = settings;
  return layoutOf({ mesh: ctx.mesh.shape, axes, placement, length });
}

function coversSequence(spans: readonly Span[], length: number): boolean {
  const [firstSpan, ...remainingSpans] = spans;
  return firstSpan !== undefined && remainingSpans.length === 0 && firstSpan.step === 1 && firstSpan.length === length;
}

function sliceSpan(x: Tensor, axis: number, { start, length, step }: Span): Tensor {
  return x.slice(axis, start, start + length * step, step);
}

/**
 * Gathers all shards, concatenated by shard index along axis 0, which has the rows. Gathers along the innermost mesh
 * axis first.
 */
function gatherShards(ctx: Context, rowsFirstShard: Tensor, layout: Layout): Tensor {
  let gatheredRows = rowsFirstShard.contiguous();
  const { coordinate, shape } = ctx.mesh;
  const rowSize = rowsFirstShard.shape.slice(1).reduce((size, length) => size * length, 1);
  let innerCoordinate: Coordinate = coordinate;
  for (const axis of layout.axes.toReversed()) {
    const { [axis]: _, ...outerCoordinate } = innerCoordinate;
    innerCoordinate = outerCoordinate;
    if (shape[axis] === 1) continue;
    const counts = Array.from({ length: shape[axis]! }, (_, i) =>
      spansLength(layout.spans({ ...outerCoordinate, [axis]: i })),
    );
    const total = counts.reduce((sum, count) => sum + count, 0);
    const out = gatheredRows.device.empty([total, ...rowsFirstShard.shape.slice(1)], gatheredRows.dtype);
    const options = { counts: counts.map((count) => count * rowSize), label: "unshard" };
    ctx.mesh.group(axis).allGather(out, gatheredRows, options).wait();
    gatheredRows.dispose();
    gatheredRows = out;
  }
  return gatheredRows;
}

/** Moves gathered rows to their global positions, and the row axis back to its place. */
function scatterRows(gatheredRows: Tensor, layout: Layout, axis: number): Tensor {
  const { device, dtype } = gatheredRows;
  using restoredView = gatheredRows.transpose(0, axis);
  const out = device.empty(restoredView.shape, dtype);
  let row = 0;
  for (const span of layout.spans({})) {
    using sourceRows = restoredView.slice(axis, row, (row += span.length));
    using targetRows = sliceSpan(out, axis, span);
    if (sourceRows.size > 0) device.kernels.copy(targetRows, sourceRows);
  }
  return out;
}
