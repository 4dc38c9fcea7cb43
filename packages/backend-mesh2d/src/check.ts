import {
  type AttentionState,
  type Call,
  type Context,
  type Coordinate,
  checkMeshAxis,
  checkOwnShard,
  checkShardRows,
  DTypeError,
  formatShape,
  type PlacedKv,
  type Layout,
  OptionError,
  type QkvGrads,
  type SavedRows,
  ShapeError,
  type Shape,
  sameShape,
  spansLength,
  type Tensor,
} from "@mosaic/core";
import type { Grid } from "./grid.ts";

// Every rank checks what it was given before it posts anything: an error on one rank must not leave the others waiting
// for a message that was half sent.

/** The mesh has the axis, and its ranks fill the grid if a shape was asked for. */
export function checkMesh(ctx: Context, axis: string, shape: readonly [number, number] | undefined): void {
  const where = `mesh2d(${axis}), rank ${ctx.rank}`;
  checkMeshAxis(ctx, axis, { where, made: "mesh2d" });
  if (shape) checkGrid(where, { rows: shape[0], columns: shape[1] }, ctx.mesh.shape[axis]!);
}

/** Both sequences are cut along the axis, and tensors are what layouts say. */
export function checkCall(ctx: Context, axis: string, call: Call, keys: PlacedKv): void {
  const where = `mesh2d(${axis}), rank ${ctx.rank}`;
  const { k, v, from } = keys;
  ctx.assertOpen(where);
  for (const tensor of [call.q, k, v]) tensor.assertUsable(where);
  checkSequence(ctx, axis, { where, name: "queries", layout: call.queries, at: call.at });
  checkSequence(ctx, axis, { where, name: "keys", layout: call.keys, at: from });
  checkShardRows(k, spansLength(call.keys.spans(from)), { where, name: "keys" });
  checkShardRows(call.q, spansLength(call.queries.spans(call.at)), { where, name: "queries" });
  checkShape(where, "values like the keys", v, k.shape);
  for (const [name, tensor] of [["values", v] as const, ["queries", call.q] as const]) {
    if (tensor.dtype === k.dtype) continue;
    throw new DTypeError({ where, expected: `${name} of ${k.dtype} like the keys`, received: tensor.dtype });
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

/** Sums are float32, of the shape of what they are the sums over. */
export function checkState(where: string, { out, lse }: AttentionState, { q }: Call): void {
  checkSum(where, "out", out, q.shape);
  checkSum(where, "lse", lse, q.shape.slice(0, 3));
}

export function checkBackward(where: string, call: Call & SavedRows, grads: QkvGrads, { k }: PlacedKv): void {
  const { q, dOut, lse, delta } = call;
  checkShape(where, "dOut", dOut, q.shape);
  checkSum(where, "lse", lse, q.shape.slice(0, 3));
  checkSum(where, "delta", delta, q.shape.slice(0, 3));
  checkSum(where, "dq", grads.dq, q.shape);
  checkSum(where, "dk", grads.dk, k.shape);
  checkSum(where, "dv", grads.dv, k.shape);
}

interface Sequence {
  readonly where: string;
  readonly name: string;
  readonly layout: Layout;
  readonly at: Coordinate;
}

function checkSequence(ctx: Context, axis: string, { where, name, layout, at }: Sequence): void {
  if (!layout.axes.includes(axis)) {
    throw new OptionError({
      where,
      expected: `${name} that are cut along ${axis}`,
      received: layout.axes.length > 0 ? `${name} cut along ${layout.axes.join(", ")}` : `whole ${name}`,
      remedy: "shard them along the axis, or pairs would be counted more than once",
    });
  }
  checkOwnShard(ctx, axis, { where, name, at });
}

function checkSum(where: string, name: string, x: Tensor, shape: Shape): void {
  if (x.dtype !== "float32") throw new DTypeError({ where, expected: `${name} of float32`, received: x.dtype });
  checkShape(where, name, x, shape);
}

function checkShape(where: string, name: string, x: Tensor, shape: Shape): void {
  x.assertUsable(where);
  if (sameShape(x.shape, shape)) return;
  throw new ShapeError({ where, expected: `${name} ${formatShape(shape)}`, received: formatShape(x.shape) });
}
