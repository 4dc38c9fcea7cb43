import {
  type AttentionBackend,
  type Call,
  type Context,
  DTypeError,
  formatShape,
  type Keys,
  OptionError,
  type QkvGrads,
  ShapeError,
  sameShape,
  spansLength,
  type Tensor,
} from "@mosaic/core";

// Every rank checks what it was given before it posts anything: an error on one rank must not leave the others waiting
// for a message that was half sent.

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
export function checkKeys(ctx: Context, axis: string, call: Call, keys: Keys): void {
  const where = `ring(${axis}), rank ${ctx.rank}`;
  const { k, v, from } = keys;
  ctx.assertOpen(where);
  for (const tensor of [call.q, k, v]) tensor.assertUsable(where);
  checkAxis(ctx, axis, call, where);
  if (from[axis] !== ctx.mesh.coordinate[axis]) {
    throw new OptionError({
      where,
      expected: `this rank's own keys, ${axis} = ${ctx.mesh.coordinate[axis]}`,
      received: `keys from ${JSON.stringify(from)}`,
      remedy: "another backend has gathered or moved them already: let only one use the axis",
    });
  }
  checkRows(where, "keys", k, spansLength(call.keys.spans(from)));
  checkRows(where, "queries", call.q, spansLength(call.queries.spans(call.at)));
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
export function checkGradients(ctx: Context, axis: string, { dk, dv }: QkvGrads, { k }: Keys): void {
  const where = `ring(${axis}) backward, rank ${ctx.rank}`;
  for (const grad of [dk, dv]) {
    if (grad.dtype !== "float32") throw new DTypeError({ where, expected: "float32 gradients", received: grad.dtype });
    if (sameShape(grad.shape, k.shape)) continue;
    throw new ShapeError({ where, expected: `gradients ${formatShape(k.shape)}`, received: formatShape(grad.shape) });
  }
}

function checkAxis(ctx: Context, axis: string, call: Call, where: string): void {
  if (!ctx.mesh.axes.includes(axis)) {
    throw new OptionError({
      where,
      expected: `one of the mesh's axes ${ctx.mesh.axes.join(", ")}`,
      received: `"${axis}"`,
      remedy: "name the axis in init({ mesh }), or give ring({ axis }) the one you mean",
    });
  }
  if (!call.keys.axes.includes(axis)) {
    throw new OptionError({
      where,
      expected: `keys that are cut along ${axis}`,
      received: call.keys.axes.length > 0 ? `keys cut along ${call.keys.axes.join(", ")}` : "whole keys",
      remedy: "shard them along the axis, or the ring would count them once per rank",
    });
  }
}

function checkRows(where: string, name: string, x: Tensor, length: number): void {
  if (x.rank === 4 && x.shape[2] === length) return;
  throw new ShapeError({
    where,
    expected: `${name} [B,H,${length},D], as their layout says`,
    received: formatShape(x.shape),
    remedy: "give the layout the placement and the length that the sequence was sharded with",
  });
}
