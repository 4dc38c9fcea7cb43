import {
  type AttentionBackend,
  type Call,
  type Context,
  checkMeshAxis,
  checkOwnShard,
  checkShardRows,
  DTypeError,
  formatShape,
  type PlacedKv,
  OptionError,
  type QkvGrads,
  ShapeError,
  sameShape,
  spansLength,
} from "@mosaic/core";

// Every rank checks what it was given before it posts anything: an error on one rank must not leave the others waiting
// for a message that was half sent.

/** That the mesh has the axis. */
export function checkMesh(ctx: Context, axis: string): void {
  checkMeshAxis(ctx, axis, { where: `ring(${axis}), rank ${ctx.rank}`, made: "ring" });
}

export function checkNesting(axis: string, inner: AttentionBackend): void {
  if (!inner.axes.includes(axis)) return;
  throw new OptionError({
    where: `ring(${axis})`,
    expected: "an inner backend along other axes",
    received: `${inner.name} along ${inner.axes.join(", ")}`,
    remedy: "give each level of the nesting an axis of its own",
  });
}

/** The mesh has the axis, the keys are cut along it, and the tensors are what the layouts say of this rank. */
export function checkKeys(ctx: Context, axis: string, call: Call, keys: PlacedKv): void {
  const where = `ring(${axis}), rank ${ctx.rank}`;
  const { k, v, from } = keys;
  ctx.assertOpen(where);
  for (const tensor of [call.q, k, v]) tensor.assertUsable(where);
  checkAxis(ctx, axis, call, where);
  checkOwnShard(ctx, axis, { where, name: "keys", at: from });
  checkShardRows(k, spansLength(call.keys.spans(from)), { where, name: "keys" });
  checkShardRows(call.q, spansLength(call.queries.spans(call.at)), { where, name: "queries" });
  if (!sameShape(k.shape, v.shape)) {
    throw new ShapeError({
      where,
      expected: `values ${formatShape(k.shape)} like the keys`,
      received: formatShape(v.shape),
    });
  }
  if (k.dtype !== v.dtype) {
    throw new DTypeError({ where, expected: `values of ${k.dtype} like the keys`, received: v.dtype });
  }
}

/** The gradients that travel and rest are float32, of the shape of the keys. */
export function checkGradients(ctx: Context, axis: string, { dk, dv }: QkvGrads, { k }: PlacedKv): void {
  const where = `ring(${axis}) backward, rank ${ctx.rank}`;
  for (const grad of [dk, dv]) {
    if (grad.dtype !== "float32") throw new DTypeError({ where, expected: "float32 gradients", received: grad.dtype });
    if (sameShape(grad.shape, k.shape)) continue;
    throw new ShapeError({ where, expected: `gradients ${formatShape(k.shape)}`, received: formatShape(grad.shape) });
  }
}

function checkAxis(ctx: Context, axis: string, call: Call, where: string): void {
  checkMesh(ctx, axis);
  if (call.keys.axes.includes(axis)) return;
  throw new OptionError({
    where,
    expected: `keys that are cut along ${axis}`,
    received: call.keys.axes.length > 0 ? `keys cut along ${call.keys.axes.join(", ")}` : "whole keys",
    remedy: "shard them along the axis, or the ring would count them once per rank",
  });
}
