import type {
  AttentionBackend,
  AttentionState,
  Call,
  Context,
  Kernels,
  Keys,
  Layout,
  ProcessGroup,
  QkvGrads,
  SavedRows,
  Tensor,
} from "@mosaic/core";
import { gatheredAlong } from "./gathered.ts";
import type { Need, Side } from "./need.ts";

// Forward and backward are the same exchange of other things: rows come in along each dimension of the tile, and sums
// over the tile go back to the ranks whose rows they belong to. A pass says which; the forms say when.

/** How partial sums over some rows become one. */
interface Summing {
  /** Makes sums begin. */
  clear(sums: readonly Tensor[]): void;
  /** Adds the sums over some of the tile's blocks to those over others. */
  absorb(into: readonly Tensor[], from: readonly Tensor[]): void;
}

/** What a pass moves along one dimension of the tile. */
export interface Lane extends Summing {
  readonly side: Side;
  /** Rows of a chunk, on the average over ranks. */
  readonly rows: number;
  /** This rank's rows, that others compute on: [B,H,S,D] or [B,H,S]. */
  readonly inputs: readonly Tensor[];
  /** What others' computing adds to in the end: float32, this rank's rows of the result; none if nothing goes back. */
  readonly sums: readonly Tensor[];
}

/** Part of the tile: chunks by rank, and their rows, in that order. */
export interface Part {
  readonly ranks: readonly number[];
  readonly inputs: readonly Tensor[];
  readonly sums: readonly Tensor[];
}

/** A forward or a backward of one rank. */
export interface Pass {
  readonly group: ProcessGroup;
  /** Who calls, as messages and traces shall say. */
  readonly label: string;
  readonly backward: boolean;
  readonly need: Need;
  readonly queries: Lane;
  readonly keys: Lane;
  /** Adds to both sums what these queries and these keys give. */
  compute(queries: Part, keys: Part): void;
}

/** What both passes are made from. */
export interface Site {
  readonly ctx: Context;
  readonly axis: string;
  readonly inner: AttentionBackend;
  readonly need: Need;
  readonly label: string;
}

/** (out, lse) per query, merged; nothing per key. */
export function forwardPass(site: Site, call: Call, state: AttentionState, keys: Keys): Pass {
  const { ctx, axis, inner, need, label } = site;
  const { kernels } = ctx.device;
  const { at, scale, mask } = call;
  const [queriesOf, keysOf] = [gatheredAlong(call.queries, axis), gatheredAlong(call.keys, axis)];
  return {
    group: ctx.mesh.group(axis),
    label,
    backward: false,
    need,
    queries: {
      ...merging(kernels),
      side: need.queries,
      rows: meanRows(ctx, call.queries),
      inputs: [call.q],
      sums: [state.out, state.lse],
    },
    keys: {
      ...adding(kernels),
      side: need.keys,
      rows: meanRows(ctx, call.keys),
      inputs: [keys.k, keys.v],
      sums: [],
    },
    compute({ ranks, inputs: [q], sums }, { ranks: sources, inputs: [k, v] }) {
      const here = { q: q!, at, scale, mask, queries: queriesOf(ranks), keys: keysOf(sources) };
      inner.attend(ctx, here, stateOf(sums), { k: k!, v: v!, from: keys.from });
    },
  };
}

/** dq per query, dk and dv per key, added. The global lse and delta travel with the queries: nothing to merge. */
export function backwardPass(site: Site, call: Call & SavedRows, grads: QkvGrads, keys: Keys): Pass {
  const { ctx, axis, inner, need, label } = site;
  const { kernels } = ctx.device;
  const { at, scale, mask } = call;
  const [queriesOf, keysOf] = [gatheredAlong(call.queries, axis), gatheredAlong(call.keys, axis)];
  return {
    group: ctx.mesh.group(axis),
    label,
    backward: true,
    need,
    queries: {
      ...adding(kernels),
      side: need.queries,
      rows: meanRows(ctx, call.queries),
      inputs: [call.q, call.dOut, call.lse, call.delta],
      sums: [grads.dq],
    },
    keys: {
      ...adding(kernels),
      side: need.keys,
      rows: meanRows(ctx, call.keys),
      inputs: [keys.k, keys.v],
      sums: [grads.dk, grads.dv],
    },
    compute({ ranks, inputs: [q, dOut, lse, delta], sums: [dq] }, { ranks: sources, inputs: [k, v], sums: [dk, dv] }) {
      const layouts = { queries: queriesOf(ranks), keys: keysOf(sources) };
      const here = { q: q!, at, scale, mask, ...layouts, dOut: dOut!, lse: lse!, delta: delta! };
      inner.attendBackward(ctx, here, { dq: dq!, dk: dk!, dv: dv! }, { k: k!, v: v!, from: keys.from });
    },
  };
}

function merging(kernels: Kernels): Summing {
  return {
    clear([out, lse]) {
      kernels.fill(out!, 0);
      kernels.fill(lse!, -Infinity);
    },
    absorb: (into, from) => kernels.merge(stateOf(into), stateOf(from)),
  };
}

function adding(kernels: Kernels): Summing {
  return {
    clear(sums) {
      for (const sum of sums) kernels.fill(sum, 0);
    },
    absorb(into, from) {
      for (const [i, sum] of into.entries()) kernels.binary("add", sum, sum, from[i]!);
    },
  };
}

function stateOf([out, lse]: readonly Tensor[]): AttentionState {
  return { out: out!, lse: lse! };
}

/** The same number on every rank, however unequal their shards. */
function meanRows({ mesh }: Context, { length, axes }: Layout): number {
  return axes.reduce((rows, axis) => rows / mesh.shape[axis]!, length);
}
