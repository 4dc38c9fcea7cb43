import {
  type AttentionBackend,
  type AttentionState,
  type Call,
  type Context,
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
  type Shape,
  ShapeError,
  sameShape,
  spansLength,
  type Tensor,
} from "@mosaic/core";

// Every rank checks what it was given before it posts anything: an error on one rank must not leave the others waiting
// for a message that was half sent. That goes for the axes of the inner backend too, which looks only after the exchange.

/** Who checks. */
export interface Checked {
  readonly axis: string;
  readonly inner: AttentionBackend;
}

/** That the mesh has the axes of both. */
export function checkMesh(ctx: Context, { axis, inner }: Checked): void {
  const where = `ulysses(${axis}), rank ${ctx.rank}`;
  for (const each of [...inner.axes, axis]) checkMeshAxis(ctx, each, { where, made: "ulysses" });
}

export function checkNesting({ axis, inner }: Checked): void {
  if (!inner.axes.includes(axis)) return;
  throw new OptionError({
    where: `ulysses(${axis})`,
    expected: "an inner backend along other axes",
    received: `${inner.name} along ${inner.axes.join(", ")}`,
    remedy: "give each level of the nesting an axis of its own",
  });
}

/** The mesh has the axes, both sequences are cut along them, and the tensors are what the layouts say of this rank. */
export function checkCall(ctx: Context, { axis, inner }: Checked, call: Call, keys: PlacedKv): void {
  const where = `ulysses(${axis}), rank ${ctx.rank}`;
  const { k, v, from } = keys;
  ctx.assertOpen(where);
  for (const tensor of [call.q, k, v]) tensor.assertUsable(where);
  checkMesh(ctx, { axis, inner });
  checkCut(where, [...inner.axes, axis], { queries: call.queries, keys: call.keys });
  checkOwnShard(ctx, axis, { where, name: "queries", at: call.at });
  checkOwnShard(ctx, axis, { where, name: "keys", at: from });
  checkShardRows(call.q, spansLength(call.queries.spans(call.at)), { where, name: "queries" });
  checkShardRows(k, spansLength(call.keys.spans(from)), { where, name: "keys" });
  checkKeys(where, call.q, { k, v });
}

/** What the attention of all keys is merged into. */
export function checkState(ctx: Context, axis: string, { out, lse }: AttentionState, { q }: Call): void {
  const where = `ulysses(${axis}), rank ${ctx.rank}`;
  checkTensors(where, q.shape, { out });
  checkTensors(where, q.shape.slice(0, -1), { lse });
}

/** What the backward reads of the forward, and the gradients it adds to: float32, but for dOut. */
export function checkBackward(
  ctx: Context,
  axis: string,
  { q, dOut, lse, delta }: Call & SavedRows,
  { dq, dk, dv, k }: QkvGrads & { readonly k: Tensor },
): void {
  const where = `ulysses(${axis}) backward, rank ${ctx.rank}`;
  dOut.assertUsable(where);
  if (!sameShape(dOut.shape, q.shape)) throw shapeError(where, "dOut", q.shape, dOut.shape);
  checkTensors(where, q.shape.slice(0, -1), { lse, delta });
  checkTensors(where, q.shape, { dq });
  checkTensors(where, k.shape, { dk, dv });
}

/**
 * Cut along all axes, and in this order: rows are concatenated along `axis` first, and then perhaps by the inner backend
 * along its own axes, which must be what the layout calls all shards along them.
 */
function checkCut(where: string, axes: readonly string[], layouts: Readonly<Record<string, Layout>>): void {
  for (const [name, layout] of Object.entries(layouts)) {
    const cut = layout.axes.filter((axis) => axes.includes(axis));
    if (cut.length === axes.length && cut.every((axis, i) => axis === axes[i])) continue;
    throw new OptionError({
      where,
      expected: `${name} that are cut along ${axes.join(", ")}${axes.length > 1 ? ", in this order" : ""}`,
      received: layout.axes.length > 0 ? `${name} cut along ${layout.axes.join(", ")}` : `whole ${name}`,
      remedy: "make the layouts from backend.axes, and shard by them",
    });
  }
}

/** Ranks cut each other's heads by the shapes of their own: queries, keys and values must go together. */
function checkKeys(where: string, q: Tensor, { k, v }: { readonly k: Tensor; readonly v: Tensor }): void {
  const [batch, heads, , headDim] = q.shape;
  if (k.shape[0] !== batch || k.shape[3] !== headDim || heads! % k.shape[1]! !== 0) {
    throw new ShapeError({
      where,
      expected: `keys [${batch},Hkv,S,${headDim}] with Hkv a divisor of ${heads}, like the queries`,
      received: formatShape(k.shape),
    });
  }
  if (!sameShape(k.shape, v.shape)) throw shapeError(where, "values", k.shape, v.shape);
  if (k.dtype !== v.dtype) {
    throw new DTypeError({ where, expected: `values of ${k.dtype} like the keys`, received: v.dtype });
  }
}

/** All of one shape, and float32. */
function checkTensors(where: string, shape: Shape, tensors: Readonly<Record<string, Tensor>>): void {
  for (const [name, x] of Object.entries(tensors)) {
    x.assertUsable(where);
    if (!sameShape(x.shape, shape)) throw shapeError(where, name, shape, x.shape);
    if (x.dtype !== "float32") throw new DTypeError({ where, expected: `${name} float32`, received: x.dtype });
  }
}

// oxlint-disable-next-line max-params -- the parts of one sentence
function shapeError(where: string, name: string, expected: Shape, received: Shape): ShapeError {
  return new ShapeError({ where, expected: `${name} ${formatShape(expected)}`, received: formatShape(received) });
}
