import { type AttentionBackend, checkOptionNames, OptionError } from "@mosaic/core";

export interface Mesh2DOptions {
  /** The mesh axis whose ranks form the grid; "sp" if absent. */
  readonly axis?: string;
  /**
   * [rows, columns] of the grid, row-major along the axis; their product is its length. Each rank computes on the queries
   * of its row, `columns` chunks, and the keys of its column, `rows` chunks. If absent, the grid that sends least.
   */
  readonly shape?: readonly [rows: number, columns: number];
  /**
   * "scheduled", if absent: block by block in a planned order that hides transfers behind compute, for chunks that keep a
   * kernel busy. "fused": all chunks in one batch, one kernel call, all sums home in another, for chunks that do not.
   */
  readonly form?: "fused" | "scheduled";
  /** What attends to each tile; the device's own kernel if absent. It must not communicate. */
  readonly inner?: AttentionBackend;
  /** For the schedule: the time to compute a whole tile over the time of its transfers; 1 if absent. Equal on all ranks. */
  readonly computeToTransfer?: number;
}

const legal = [
  "axis",
  "shape",
  "form",
  "inner",
  "computeToTransfer",
] as const satisfies readonly (keyof Mesh2DOptions)[];

/** Options that can be wrong before any rank is there. */
export function checkOptions(where: string, options: Mesh2DOptions): void {
  checkOptionNames(where, options, legal);
  const { shape, form = "fused", inner, computeToTransfer = 1 } = options;
  if (form !== "fused" && form !== "scheduled") {
    throw new OptionError({ where, expected: `form "fused" or "scheduled"`, received: JSON.stringify(form) });
  }
  if (!(computeToTransfer > 0 && Number.isFinite(computeToTransfer))) {
    throw new OptionError({ where, expected: "computeToTransfer, a ratio > 0", received: String(computeToTransfer) });
  }
  if (shape && !(shape.length === 2 && shape.every((length) => Number.isInteger(length) && length > 0))) {
    throw new OptionError({
      where,
      expected: "a shape of two whole numbers > 0, [rows, columns]",
      received: `[${shape}]`,
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
