import {
  type AttentionBackend,
  type Context,
  type Coordinate,
  defineOptions,
  describeBackend,
  local,
  option,
  OptionError,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "@mosaic/core";
import { LayoutCache, type Validator, validator } from "@mosaic/core/context-parallel";
import { FusedExecutor } from "./fused.ts";
import { OverlappedExecutor } from "./overlapped.ts";
import type { Pass, Tile } from "./pass.ts";
import { chooseSchedule, ScheduleCache, type ScheduleName } from "./schedule.ts";
import type { Grid, TileCache } from "./tile.ts";
import { type CreateExecutor, TiledAttention, type TiledAttentionSettings } from "./tiled-attention.ts";

export const mesh2dOptions = defineOptions("mesh2d", {
  /** The mesh axis whose ranks form the grid. Default "sp". */
  axis: option.string({ default: "sp" }),
  /**
   * [rows, columns] of the grid, row-major along the axis. Their product must be the length of the axis. Each rank
   * computes on the queries of its row (`columns` chunks) and the keys of its column (`rows` chunks). Default: the grid
   * that sends least.
   */
  shape: option.pair(option.integer({ min: 1 }), {
    expected: "two integers > 0, [rows, columns]",
    optional: true,
  }),
  /**
   * "overlapped": computes block by block, in a greedy order that overlaps transfers with computation; suits chunks
   * that are large enough to keep a kernel busy. "fused": gathers all chunks in one batch, computes them in one kernel
   * call, and returns all sums in a second batch; suits smaller chunks. "auto": the one with the lower time predicted
   * from `computeToTransfer` and `halfSpeedRows`. Default "auto".
   */
  schedule: option.oneOf(["auto", "fused", "overlapped"], { default: "auto" }),
  /**
   * Number of transfers that an overlapped schedule has in flight at a time. 1: rows and columns share their links. 2:
   * they have separate links, as when rows lie within nodes; one transfer along each then forms a batch. Default 1.
   */
  channels: option.oneOf([1, 2], { default: 1 }),
  /** The backend that computes each tile. It must not communicate. Default: the device's own kernel. */
  inner: option.backend({ optional: true }),
  /**
   * Ratio of the time to compute a whole tile to the time of all its transfers in sequence. This option and the two
   * below must be equal on all ranks; if they are measured, measure them on one rank. Default 1.
   */
  computeToTransfer: option.number({ above: 0, expected: "a ratio > 0", default: 1 }),
  /** Transfer time per byte along a row and along a column, in any common unit. Default [1, 1]. */
  links: option.pair(option.number({ above: 0 }), {
    expected: "two transfer times > 0, [row, column]",
    default: [1, 1],
  }),
  /**
   * Number of rows at which a kernel call runs at half the speed of a large one. The default suits CPUs. Default 24.
   */
  halfSpeedRows: option.number({ min: 0, expected: "a number of rows ≥ 0", default: 24 }),
});
/** Options of `mesh2d`. */
export type Mesh2DOptions = OptionsOf<typeof mesh2dOptions>;
type ParsedOptions = ResolvedOptionsOf<typeof mesh2dOptions>;

/** Formats the options that must be equal on all ranks: `mesh2d(sp, shape 2×4, schedule auto, …)`. */
function describeOptions(options: ParsedOptions): string {
  const { axis, shape, schedule, channels, inner, computeToTransfer, links, halfSpeedRows } = options;
  const descriptions = [axis, ...(shape ? [`shape ${shape.join("×")}`] : []), `schedule ${schedule}`];
  if (schedule !== "fused") descriptions.push(`channels ${channels}`, `compute-to-transfer ratio ${computeToTransfer}`);
  if (schedule !== "fused") descriptions.push(`links ${links.join(":")}`);
  if (schedule === "auto") descriptions.push(`half-speed rows ${halfSpeedRows}`);
  if (inner && inner.name !== "local") descriptions.push(describeBackend(inner));
  return `mesh2d(${descriptions.join(", ")})`;
}

/**
 * Checks that the inner backend does not communicate. A rank holds all keys of its tile, so communication is never
 * needed.
 */
function checkInner(where: string, inner: AttentionBackend): void {
  if (inner.axes.length === 0) return;
  throw new OptionError({
    where,
    expected: "an inner backend without communication, such as local()",
    received: `${inner.name} along ${inner.axes.join(", ")}`,
    remedy: "swap the nesting: pass mesh2d as the inner backend of that backend",
  });
}

/** Checks that the grid has exactly `size` ranks. */
export function checkGrid(where: string, { rows, columns }: Grid, size: number): void {
  if (rows * columns === size) return;
  throw new OptionError({
    where,
    expected: `a grid of ${size} ranks`,
    received: `[${rows}, ${columns}], ${rows * columns} ranks`,
    remedy: "choose rows and columns such that rows · columns is the length of the axis",
  });
}

/**
 * Creates a backend for attention in two dimensions: the ranks of a mesh axis form a grid. Queries are sent along its
 * rows, keys and values along its columns, and each rank computes one tile. The states over parts of the keys are
 * returned to the rank of the queries and merged there, in float32. In backward, dq is returned along rows, dk and dv
 * along columns. With p ranks in a square, each rank sends O(√p) chunks where a ring sends O(p). `mesh2dTraffic`
 * computes the bytes for any mask, placement and grid.
 *
 * Blocks without visible pairs are neither computed nor sent. Chunks are sent directly from their owner to the ranks
 * that compute on them, and sums directly back. Sums are added in a fixed order. `shape: [p, 1]` gathers only keys,
 * like a ring; `shape: [1, p]` gathers only queries.
 *
 * As the inner backend of one that provides keys in parts, it sends queries once for all parts, and returns the sums
 * over queries once: `ring({ axis: "node", inner: mesh2d({ axis: "gpu" }) })` moves only keys at each step.
 *
 * `schedule` selects when it communicates. "fused" gathers, computes in one call and returns sums. "overlapped"
 * computes block by block and overlaps transfers with computation, one transfer at a time or, with `channels: 2`, one
 * along the row and one along the column. "auto" selects the faster one. All send the same bytes, and their results
 * differ only by rounding.
 *
 * Throws an OptionError if the mesh lacks the axis, the shape does not match its length, or a sequence is not sharded
 * along it, and a ShapeError or DTypeError if the tensors do not match their layouts. All are checked before anything
 * is sent.
 *
 * Source: Elango, "Attention2D", 2025 (arXiv 2503.15758), for the fused schedule; "Mesh-Attention", 2025 (arXiv
 * 2512.20968), for tiles of any shape and the overlapped schedule.
 *
 * @example
 * ```ts
 * import { mesh2d } from "@mosaic/backend-mesh2d";
 * mesh2d({ shape: [4, 2] }).axes; // => ["sp"]
 * mesh2d({ axis: "gpu", shape: [8, 32], schedule: "overlapped", channels: 2 }).name; // => "mesh2d"
 * ```
 */
export function mesh2d(options?: Mesh2DOptions): AttentionBackend {
  const parsedOptions = mesh2dOptions.parse(options);
  const { axis, shape, inner = local() } = parsedOptions;
  const label = `mesh2d(${axis})`;
  checkInner(label, inner);
  const grid = shape && { rows: shape[0], columns: shape[1] };
  const validate = createValidator({ label, axis, inner, grid });
  const tiles = new LayoutCache<TileCache>([axis]);
  const settings = { label, axis, inner, grid, validate, tiles, createExecutor: createExecutorFactory(parsedOptions) };
  const blockwise = (coordinates: readonly Coordinate[]) => new TiledAttention(settings, coordinates);
  return {
    name: "mesh2d",
    description: describeOptions(parsedOptions),
    axes: [axis],
    check: (ctx, layouts) => validate.context(ctx, layouts),
    withShape: (other) => mesh2d({ ...options, shape: other }),
    blockwise,

    attend(ctx, call, state, kv) {
      using attention = blockwise([kv.from]);
      attention.attend(ctx, call, state, kv);
    },

    attendBackward(ctx, call, grads, kv) {
      using attention = blockwise([kv.from]);
      attention.attendBackward(ctx, call, grads, kv);
    },
  };
}

/** Returns the checks of calls. They include that a given grid matches the number of ranks along the axis. */
function createValidator({
  label,
  axis,
  inner,
  grid,
}: Pick<TiledAttentionSettings, "label" | "axis" | "inner" | "grid">): Validator {
  const validate = validator({ name: "mesh2d", axis, inner, sharded: ["queries", "keys"] });
  const checkContextGrid = ({ mesh, rank }: Context): void => {
    if (grid) checkGrid(`${label}, rank ${rank}`, grid, mesh.shape[axis]!);
  };
  return {
    context(ctx, layouts) {
      validate.context(ctx, layouts);
      checkContextGrid(ctx);
    },
    attend(ctx, call, state, kv) {
      validate.attend(ctx, call, state, kv);
      checkContextGrid(ctx);
    },
    attendBackward(ctx, call, grads, kv) {
      validate.attendBackward(ctx, call, grads, kv);
      checkContextGrid(ctx);
    },
  };
}

/**
 * Returns a function that creates the executor of a pass, by the schedule of the options. "auto" selects the schedule
 * with the lower predicted time for a tile on its own, which is the same on every rank.
 */
function createExecutorFactory({ schedule, halfSpeedRows, ...settings }: ParsedOptions): CreateExecutor {
  const schedules = new ScheduleCache(settings);
  const selectSchedule = (pass: Pass, tile: Tile): ScheduleName =>
    chooseSchedule({
      schedule: schedules.get(pass, { ...tile, isFirst: true, isLast: true }),
      queries: { chunks: pass.grid.columns, rows: pass.queries.meanRows },
      keys: { chunks: pass.grid.rows, rows: tile.keys.meanRows },
      halfSpeedRows,
    });
  return (pass, tile) =>
    (schedule === "auto" ? selectSchedule(pass, tile) : schedule) === "fused"
      ? new FusedExecutor(pass)
      : new OverlappedExecutor(pass, (each) => schedules.get(pass, each));
}
