import { type AttentionBackend, type Context, type Device, type Keys, type Tensor } from "@mosaic/core";
import { filled, headsFirst, layoutsOf, positionsOf, takeRows } from "./shard.ts";
import { answerOf, type Trial } from "./trial.ts";

/** What attention gives one rank: its rows of out, lse and dq, and the whole dk and dv of its keys. */
export type AttentionNumbers<Values = Float32Array> = Readonly<Record<"out" | "lse" | "dq" | "dk" | "dv", Values>>;

/** What `attend` folds and `attendBackward` adds, by whatever means. */
interface Way {
  attend(q: Tensor, state: { out: Tensor; lse: Tensor }, keys: { k: Tensor; v: Tensor }): void;
  attendBackward(
    q: Tensor,
    saved: { dOut: Tensor; lse: Tensor; delta: Tensor },
    grads: { dq: Tensor; dk: Tensor; dv: Tensor },
    keys: { k: Tensor; v: Tensor },
  ): void;
}

/** Positions of the rows of queries and keys that one rank holds. */
interface Rows {
  readonly queries: readonly number[];
  readonly keys: readonly number[];
}

/** One rank's part of a trial, forward and backward, by the backend. Every rank of the mesh must call it. */
export function attendOn(ctx: Context, backend: AttentionBackend, trial: Trial): Promise<AttentionNumbers> {
  const layouts = layoutsOf(trial);
  const at = ctx.mesh.coordinate;
  const call = { at, scale: trial.scale, mask: trial.mask, ...layouts };
  const way: Way = {
    attend: (q, state, keys) => backend.attend(ctx, { ...call, q }, state, { ...keys, from: at }),
    attendBackward: (q, saved, grads, keys) =>
      backend.attendBackward(ctx, { ...call, q, ...saved }, grads, { ...keys, from: at }),
  };
  return attendRows(ctx.device, trial, rowsOf(trial, at), way);
}

/** The whole trial on one device, by its own kernel. */
export function attendLocally(device: Device, trial: Trial): Promise<AttentionNumbers> {
  const { queries, keys, mask, scale } = trial;
  const whole = (length: number) => [{ start: 0, length, step: 1 }];
  const tile = { q: whole(queries.length), k: whole(keys.length), mask, scale };
  const way: Way = {
    attend: (q, state, block) => device.kernels.attend(state, q, block, tile),
    attendBackward: (q, saved, grads, block) => device.kernels.attendBackward(grads, q, saved, block, tile),
  };
  const rows = { queries: positionsOf(tile.q), keys: positionsOf(tile.k) };
  return attendRows(device, trial, rows, way);
}

export function rowsOf(trial: Trial, at: Keys["from"]): Rows {
  const { queries, keys } = layoutsOf(trial);
  return { queries: positionsOf(queries.spans(at)), keys: positionsOf(keys.spans(at)) };
}

/** The part of float64's answer that belongs to some rows. */
export function answerFor(trial: Trial, rows: Rows): AttentionNumbers<Float64Array> {
  const { out, lse, dq, dk, dv } = answerOf(trial);
  const q = { rows: trial.queries.length, width: trial.headDim };
  const k = { rows: trial.keys.length, width: trial.headDim };
  return {
    out: takeRows(out, rows.queries, q),
    lse: takeRows(lse, rows.queries, { ...q, width: 1 }),
    dq: takeRows(dq, rows.queries, q),
    dk: takeRows(dk, rows.keys, k),
    dv: takeRows(dv, rows.keys, k),
  };
}

async function attendRows(device: Device, trial: Trial, rows: Rows, way: Way): Promise<AttentionNumbers> {
  const { batch, heads, kvHeads, headDim, dtype } = trial;
  const { problem, dOut: dOutAll } = answerOf(trial);
  const q = { rows: trial.queries.length, width: headDim };
  const k = { rows: trial.keys.length, width: headDim };
  const qShape = [batch, heads, rows.queries.length, headDim];
  const kShape = [batch, kvHeads, rows.keys.length, headDim];
  const rowShape = qShape.slice(0, 3);

  using queries = headsFirst(device, takeRows(problem.q, rows.queries, q), qShape, dtype);
  using keys = headsFirst(device, takeRows(problem.k, rows.keys, k), kShape, dtype);
  using values = headsFirst(device, takeRows(problem.v, rows.keys, k), kShape, dtype);
  using dOut = headsFirst(device, takeRows(dOutAll, rows.queries, q), qShape, dtype);
  using out = filled(device, qShape, 0);
  using lse = filled(device, rowShape, Number.NEGATIVE_INFINITY);
  way.attend(queries, { out, lse }, { k: keys, v: values });

  using delta = filled(device, rowShape, 0);
  device.kernels.rowDot(delta, dOut, out);
  using dq = filled(device, qShape, 0);
  using dk = filled(device, kShape, 0);
  using dv = filled(device, kShape, 0);
  way.attendBackward(queries, { dOut, lse, delta }, { dq, dk, dv }, { k: keys, v: values });
  const [outRead, lseRead, dqRead, dkRead, dvRead] = await Promise.all([out, lse, dq, dk, dv].map((x) => x.read()));
  return { out: outRead!, lse: lseRead!, dq: dqRead!, dk: dkRead!, dv: dvRead! };
}
