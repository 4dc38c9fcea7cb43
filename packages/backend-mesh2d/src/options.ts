import {
  type AttentionBackend,
  defineOptions,
  describeBackend,
  option,
  OptionError,
  type OptionsOf,
} from "@mosaic/core";
import type { Grid } from "./tile.ts";

export const mesh2dOptions = defineOptions("mesh2d", {
  /** The mesh axis whose ranks form the grid. Default "sp". */
  axis: option.string({ default: "sp" }),
  /**
   * [rows, columns] of the grid, row-major along the axis; their product is its length. Each rank computes on the queries
   * of its row, `columns` chunks, and the keys of its column, `rows` chunks. Default: the grid that sends least.
   */
  shape: option.pair(option.integer({ min: 1 }), {
    expected: "two integers > 0, [rows, columns]",
    optional: true,
  }),
  /**
   * "overlapped": block by block in a greedy order that hides transfers behind compute, for chunks that keep a kernel busy.
   * "fused": all chunks in one batch, one kernel call, all sums back in another, for chunks that do not. "auto": whichever
   * takes less time by `computeToTransfer` and `halfSpeedRows`. Default "auto".
   */
  schedule: option.oneOf(["auto", "fused", "overlapped"], { default: "auto" }),
  /**
   * Transfers that an overlapped schedule has under way at a time. 1: a row's and a column's share their links. 2: they have
   * links of their own, as when rows lie within nodes; one along each then travels in one batch. Default 1.
   */
  channels: option.oneOf([1, 2], { default: 1 }),
  /** What attends to each tile; it must not communicate. Default: the device's own kernel. */
  inner: option.backend({ optional: true }),
  /**
   * The time to compute a whole tile over the time of its transfers one after the other. This and the two below are ratios,
   * measured, if at all, on one rank: all ranks must be given the same ones. Default 1.
   */
  computeToTransfer: option.number({ above: 0, expected: "a ratio > 0", default: 1 }),
  /** The time that a byte takes along a row and along a column, in any one unit. Default [1, 1]. */
  links: option.pair(option.number({ above: 0 }), { expected: "two times > 0, [row, column]", default: [1, 1] }),
  /** Rows of a kernel call that runs at half the speed of large ones; the default fits CPUs. Default 24. */
  halfSpeedRows: option.number({ min: 0, expected: "a number of rows ≥ 0", default: 24 }),
});
/** What `mesh2d` takes. */
export type Mesh2DOptions = OptionsOf<typeof mesh2dOptions>;

/** What all ranks must be given alike: `mesh2d(sp, shape 2×4, schedule auto, …)`. */
export function describeOptions(options: ReturnType<typeof mesh2dOptions.parse>): string {
  const { axis, shape, schedule, channels, inner, computeToTransfer, links, halfSpeedRows } = options;
  const parts = [axis, ...(shape ? [`shape ${shape.join("×")}`] : []), `schedule ${schedule}`];
  if (schedule !== "fused") parts.push(`channels ${channels}`, `compute to transfer ${computeToTransfer}`);
  if (schedule !== "fused") parts.push(`links ${links.join(":")}`);
  if (schedule === "auto") parts.push(`half-speed rows ${halfSpeedRows}`);
  if (inner && inner.name !== "local") parts.push(describeBackend(inner));
  return `mesh2d(${parts.join(", ")})`;
}

/** Keys come to a tile whole, so that what attends to it need not communicate. */
export function checkInner(where: string, inner: AttentionBackend): void {
  if (inner.axes.length === 0) return;
  throw new OptionError({
    where,
    expected: "an inner backend that communicates with nobody",
    received: `${inner.name} along ${inner.axes.join(", ")}`,
    remedy: "nest the other way round: give mesh2d to the other backend as its inner",
  });
}

/** The grid has a place for every rank. */
export function checkGrid(where: string, { rows, columns }: Grid, size: number): void {
  if (rows * columns === size) return;
  throw new OptionError({
    where,
    expected: `a shape of ${size} ranks`,
    received: `[${rows}, ${columns}], ${rows * columns}`,
    remedy: "make the product of rows and columns the length of the axis",
  });
}
