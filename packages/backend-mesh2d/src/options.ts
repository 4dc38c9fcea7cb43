import { type AttentionBackend, checkOptionNames, describeBackend, OptionError } from "@mosaic/core";
import type { ScheduleName } from "./schedule.ts";
import type { Grid } from "./tile.ts";

export interface Mesh2DOptions {
  /** The mesh axis whose ranks form the grid; "sp" if absent. */
  readonly axis?: string;
  /**
   * [rows, columns] of the grid, row-major along the axis; their product is its length. Each rank computes on the queries
   * of its row, `columns` chunks, and the keys of its column, `rows` chunks. If absent, the grid that sends least.
   */
  readonly shape?: readonly [rows: number, columns: number];
  /**
   * "overlapped": block by block in a greedy order that hides transfers behind compute, for chunks that keep a kernel busy.
   * "fused": all chunks in one batch, one kernel call, all sums back in another, for chunks that do not. "auto", if absent:
   * whichever takes less time by `computeToTransfer` and `halfSpeedRows`.
   */
  readonly schedule?: ScheduleName | "auto";
  /**
   * Transfers that an overlapped schedule has under way at a time. 1, if absent: a row's and a column's share their links. 2: they have
   * links of their own, as when rows lie within nodes; one along each then travels in one batch.
   */
  readonly channels?: 1 | 2;
  /** What attends to each tile; the device's own kernel if absent. It must not communicate. */
  readonly inner?: AttentionBackend;
  /**
   * Costs, as ratios; measured, if at all, on one rank: all ranks must be given the same ones.
   *
   * The time to compute a whole tile over the time of its transfers one after the other; 1 if absent.
   */
  readonly computeToTransfer?: number;
  /** The time that a byte takes along a row and along a column, in any one unit; [1, 1] if absent. */
  readonly links?: readonly [row: number, column: number];
  /** Rows of a kernel call that runs at half the speed of large ones; 24 if absent, which fits CPUs. */
  readonly halfSpeedRows?: number;
}

const legal = [
  "axis",
  "shape",
  "schedule",
  "channels",
  "inner",
  "computeToTransfer",
  "links",
  "halfSpeedRows",
] as const satisfies readonly (keyof Mesh2DOptions)[];

/** Options that can be wrong before any rank is there. */
export function checkOptions(where: string, options: Mesh2DOptions): void {
  checkOptionNames(where, options, legal);
  const { shape, schedule = "auto", inner, channels = 1 } = options;
  if (!["auto", "fused", "overlapped"].includes(schedule)) {
    throw new OptionError({
      where,
      expected: `schedule "auto", "fused" or "overlapped"`,
      received: JSON.stringify(schedule),
    });
  }
  if (channels !== 1 && channels !== 2) {
    throw new OptionError({ where, expected: "channels 1 or 2", received: JSON.stringify(channels) });
  }
  checkRatios(where, options);
  if (
    shape &&
    !(Array.isArray(shape) && shape.length === 2 && shape.every((length) => Number.isInteger(length) && length > 0))
  ) {
    throw new OptionError({
      where,
      expected: "a shape of two whole numbers > 0, [rows, columns]",
      received: JSON.stringify(shape),
    });
  }
  if (inner && inner.axes.length > 0) {
    throw new OptionError({
      where,
      expected: "an inner backend that communicates with nobody",
      received: `${inner.name} along ${inner.axes.join(", ")}`,
      remedy: "nest the other way round: give mesh2d to the other backend as its inner",
    });
  }
}

/** What all ranks must be given alike: `mesh2d(sp, shape 2×4, schedule auto, …)`. */
export function descriptionOf(options: Mesh2DOptions): string {
  const { axis = "sp", shape, schedule = "auto", channels = 1, inner } = options;
  const { computeToTransfer = 1, links = [1, 1], halfSpeedRows = 24 } = options;
  const parts = [axis, ...(shape ? [`shape ${shape.join("×")}`] : []), `schedule ${schedule}`];
  if (schedule !== "fused") parts.push(`channels ${channels}`, `compute to transfer ${computeToTransfer}`);
  if (schedule !== "fused") parts.push(`links ${links.join(":")}`);
  if (schedule === "auto") parts.push(`half-speed rows ${halfSpeedRows}`);
  if (inner && inner.name !== "local") parts.push(describeBackend(inner));
  return `mesh2d(${parts.join(", ")})`;
}

function checkRatios(
  where: string,
  { computeToTransfer = 1, links = [1, 1], halfSpeedRows = 24 }: Mesh2DOptions,
): void {
  const isPositive = (value: unknown) => typeof value === "number" && value > 0 && Number.isFinite(value);
  if (!isPositive(computeToTransfer)) {
    throw new OptionError({ where, expected: "computeToTransfer, a ratio > 0", received: String(computeToTransfer) });
  }
  if (!(Array.isArray(links) && links.length === 2 && links.every(isPositive))) {
    throw new OptionError({ where, expected: "links, two times > 0, [row, column]", received: JSON.stringify(links) });
  }
  if (!isPositive(halfSpeedRows) && halfSpeedRows !== 0) {
    throw new OptionError({ where, expected: "halfSpeedRows, a number of rows ≥ 0", received: String(halfSpeedRows) });
  }
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
