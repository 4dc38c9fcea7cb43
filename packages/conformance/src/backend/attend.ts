import { type AttentionBackend, type Context, type Coordinate, type Device, type Tensor } from "@mosaic/core";
import { checkEqual } from "../check.ts";
import { fullTensor, createHeadsFirst, trialLayouts, type MatrixSize, listPositions, takeRows } from "./shard.ts";
import { getReference, type Trial } from "./trial.ts";

/** Results of attention on one rank: its rows of out, lse and dq, and the complete dk and dv of its keys. */
export type AttentionNumbers<Values = Float32Array> = Readonly<Record<"out" | "lse" | "dq" | "dk" | "dv", Values>>;

/** Initial values of state and gradients, as if other keys had been folded and other gradients added before. */
export interface InitialState {
  readonly out: number;
  readonly lse: number;
  readonly gradients: number;
}

const emptyState: InitialState = { out: 0, lse: Number.NEGATIVE_INFINITY, gradients: 0 };

/** Forward and backward pass under test: those of a backend or of a device's own kernel. */
interface AttendFunctions {
  readonly initialState: InitialState;
  attend(q: Tensor, state: { out: Tensor; lse: Tensor }, kv: { k: Tensor; v: Tensor }): void;
  attendBackward(
    q: Tensor,
    savedTensors: { dOut: Tensor; lse: Tensor; delta: Tensor },
    grads: { dq: Tensor; dk: Tensor; dv: Tensor },
    kv: { k: Tensor; v: Tensor },
  ): void;
}

/** Positions of the rows of queries and keys that one rank holds. */
interface RankPositions {
  readonly queries: readonly number[];
  readonly keys: readonly number[];
}

/** Runs one rank's part of a trial on the backend, forward and backward. Every rank of the mesh must call it. */
export function runBackendOnRank(
  ctx: Context,
  backend: AttentionBackend,
  trial: Trial,
  initialState: InitialState = emptyState,
): Promise<AttentionNumbers> {
  const layouts = trialLayouts(trial);
  const at = ctx.mesh.coordinate;
  const call = { at, scale: trial.scale, mask: trial.mask, modifiers: trial.modifiers, ...layouts };
  const functions: AttendFunctions = {
    initialState,
    attend: (q, state, kv) => backend.attend(ctx, { ...call, q }, state, { ...kv, from: at }),
    attendBackward: (q, savedTensors, grads, kv) =>
      backend.attendBackward(ctx, { ...call, q, ...savedTensors }, grads, { ...kv, from: at }),
  };
  return attendRows(ctx.device, trial, getRankPositions(trial, at), functions);
}

/** Runs the whole trial on one device, with the device's own kernel. */
export function runLocalAttention(
  device: Device,
  trial: Trial,
  initialState: InitialState = emptyState,
): Promise<AttentionNumbers> {
  const { queries, keys, mask, modifiers, scale } = trial;
  const fullSpan = (length: number) => [{ start: 0, length, step: 1 }];
  const tile = { q: fullSpan(queries.length), k: fullSpan(keys.length), mask, scale, modifiers };
  const functions: AttendFunctions = {
    initialState,
    attend: (q, state, block) => device.kernels.attend(state, q, block, tile),
    attendBackward: (q, savedTensors, grads, block) =>
      device.kernels.attendBackward(grads, q, savedTensors, block, tile),
  };
  const rows = { queries: listPositions(tile.q), keys: listPositions(tile.k) };
  return attendRows(device, trial, rows, functions);
}

export function getRankPositions(trial: Trial, coordinate: Coordinate): RankPositions {
  const { queries, keys } = trialLayouts(trial);
  return { queries: listPositions(queries.spans(coordinate)), keys: listPositions(keys.spans(coordinate)) };
}

/** Returns the given rows of the float64 reference. */
export function selectExpectedResults(trial: Trial, rows: RankPositions): AttentionNumbers<Float64Array> {
  return selectRows(getReference(trial), trial, rows);
}

/** Returns the given rows of the results of the whole trial. */
export function selectRows(
  { out, lse, dq, dk, dv }: AttentionNumbers<ArrayLike<number>>,
  trial: Trial,
  rows: RankPositions,
): AttentionNumbers<Float64Array> {
  const querySize = { rows: trial.queries.length, width: trial.headDim };
  const keySize = { rows: trial.keys.length, width: trial.headDim };
  const takeValues = (values: ArrayLike<number>, positions: readonly number[], size: MatrixSize) =>
    takeRows(values, positions, size);
  return {
    out: takeValues(out, rows.queries, querySize),
    lse: takeValues(lse, rows.queries, { ...querySize, width: 1 }),
    dq: takeValues(dq, rows.queries, querySize),
    dk: takeValues(dk, rows.keys, keySize),
    dv: takeValues(dv, rows.keys, keySize),
  };
}

async function attendRows(
  device: Device,
  trial: Trial,
  rows: RankPositions,
  functions: AttendFunctions,
): Promise<AttentionNumbers> {
  const { batch, numHeads, numKvHeads, headDim, dtype } = trial;
  const { problem, dOut: fullDOut } = getReference(trial);
  const querySize = { rows: trial.queries.length, width: headDim };
  const keySize = { rows: trial.keys.length, width: headDim };
  const qShape = [batch, numHeads, rows.queries.length, headDim];
  const kShape = [batch, numKvHeads, rows.keys.length, headDim];
  const rowShape = qShape.slice(0, 3);

  const inputs = {
    q: takeRows(problem.q, rows.queries, querySize),
    k: takeRows(problem.k, rows.keys, keySize),
    v: takeRows(problem.v, rows.keys, keySize),
    dOut: takeRows(fullDOut, rows.queries, querySize),
  };
  using queries = createHeadsFirst(device, inputs.q, qShape, dtype);
  using keys = createHeadsFirst(device, inputs.k, kShape, dtype);
  using values = createHeadsFirst(device, inputs.v, kShape, dtype);
  using dOut = createHeadsFirst(device, inputs.dOut, qShape, dtype);
  using out = fullTensor(device, qShape, functions.initialState.out);
  using lse = fullTensor(device, rowShape, functions.initialState.lse);
  functions.attend(queries, { out, lse }, { k: keys, v: values });

  using delta = fullTensor(device, rowShape, 0);
  device.kernels.rowDot(delta, dOut, out);
  using dq = fullTensor(device, qShape, functions.initialState.gradients);
  using dk = fullTensor(device, kShape, functions.initialState.gradients);
  using dv = fullTensor(device, kShape, functions.initialState.gradients);
  functions.attendBackward(queries, { dOut, lse, delta }, { dq, dk, dv }, { k: keys, v: values });
  const [outValues, lseValues, dqValues, dkValues, dvValues] = await Promise.all(
    [out, lse, dq, dk, dv].map((x) => x.read()),
  );
  // The backend must not modify its inputs. They were rounded before, so the values read back must be identical.
  for (const [name, tensor] of Object.entries({ q: queries, k: keys, v: values, dOut }))
    checkEqual(await tensor.read(), inputs[name as keyof typeof inputs], `${trial.name}: input ${name} after the pass`);
  return { out: outValues!, lse: lseValues!, dq: dqValues!, dk: dkValues!, dv: dvValues! };
}
