import type {
  AttentionBackend,
  AttentionState,
  Call,
  Context,
  Kernels,
  PlacedKv,
  Layout,
  ProcessGroup,
  QkvGrads,
  SavedRows,
  Tensor,
} from "@mosaic/core";
import { gatheredAlong } from "./gathered.ts";
import type { Grid } from "./grid.ts";
import { joinedSide, type Need, type Side } from "./need.ts";

// Forward and backward are the same exchange of other things: rows come in along each dimension of the tile, and sums
// over the tile go back to the ranks whose rows they belong to. A pass says which; the forms say when. Within another
// backend the keys come in parts, a tile for each; queries are the same in all, and travel once.

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

/** A forward or a backward of one rank, over all parts in which the keys come. */
export interface Pass {
  readonly group: ProcessGroup;
  /** Who calls, as messages and traces shall say. */
  readonly label: string;
  readonly backward: boolean;
  readonly grid: Grid;
  readonly queries: Lane;
}

/** What one part of the keys makes of a pass: a tile. Its sums over keys go home with it, those over queries with the last. */
export interface Tile {
  readonly keys: Lane;
  /** As `Need.sees`. */
  readonly sees: Need["sees"];
  /** Whether another tile came before, whose queries are here; whether another comes after. */
  readonly first: boolean;
  readonly last: boolean;
  /** Adds to both sums what these queries and these keys give. */
  compute(queries: Part, keys: Part): void;
}

/** Runs a pass in one of its forms. */
export interface Runner extends Disposable {
  /** Takes the next tile. Its sums over keys are where they belong when this returns; those over queries after the last. */
  add(tile: Tile): void;
}

/** What both passes are made from. */
export interface Site {
  readonly ctx: Context;
  readonly axis: string;
  readonly inner: AttentionBackend;
  readonly grid: Grid;
  /** This rank's tile for each part of the keys. */
  readonly needs: readonly Need[];
  readonly label: string;
}

/** A pass, and how keys become tiles of it. */
export interface Tiling<Part extends PlacedKv> {
  readonly pass: Pass;
  /** Part `i` of the keys. */
  tile(i: number, keys: Part): Tile;
}

/** Keys, and room for their gradients. */
export type KvAndGrads = PlacedKv & Pick<QkvGrads, "dk" | "dv">;

/** (out, lse) per query, merged; nothing per key. */
export function forwardTiling(site: Site, call: Call, state: AttentionState): Tiling<PlacedKv> {
  const { ctx, axis, inner, grid, needs, label } = site;
  const { kernels } = ctx.device;
  const { at, scale, mask } = call;
  const [queriesOf, keysOf] = [gatheredAlong(call.queries, axis), gatheredAlong(call.keys, axis)];
  const queries: Lane = {
    ...merging(kernels),
    side: joinedSide(needs.map((need) => need.queries)),
    rows: meanRows(ctx, call.queries),
    inputs: [call.q],
    sums: [state.out, state.lse],
  };
  const rows = meanRows(ctx, call.keys);
  return {
    pass: { group: ctx.mesh.group(axis), label, backward: false, grid, queries },
    tile: (i, { k, v, from }) => ({
      ...placeOf(needs, i),
      keys: { ...adding(kernels), side: needs[i]!.keys, rows, inputs: [k, v], sums: [] },
      compute({ ranks, inputs: [q], sums }, { ranks: sources, inputs: [chunk, values] }) {
        const here = { q: q!, at, scale, mask, queries: queriesOf(ranks), keys: keysOf(sources) };
        inner.attend(ctx, here, stateOf(sums), { k: chunk!, v: values!, from });
      },
    }),
  };
}

/** dq per query, dk and dv per key, added. The global lse and delta travel with the queries: nothing to merge. */
export function backwardTiling(site: Site, call: Call & SavedRows, grads: Pick<QkvGrads, "dq">): Tiling<KvAndGrads> {
  const { ctx, axis, inner, grid, needs, label } = site;
  const { kernels } = ctx.device;
  const { at, scale, mask } = call;
  const [queriesOf, keysOf] = [gatheredAlong(call.queries, axis), gatheredAlong(call.keys, axis)];
  const queries: Lane = {
    ...adding(kernels),
    side: joinedSide(needs.map((need) => need.queries)),
    rows: meanRows(ctx, call.queries),
    inputs: [call.q, call.dOut, call.lse, call.delta],
    sums: [grads.dq],
  };
  const rows = meanRows(ctx, call.keys);
  return {
    pass: { group: ctx.mesh.group(axis), label, backward: true, grid, queries },
    tile: (i, { k, v, from, dk, dv }) => ({
      ...placeOf(needs, i),
      keys: { ...adding(kernels), side: needs[i]!.keys, rows, inputs: [k, v], sums: [dk, dv] },
      compute({ ranks, inputs: [q, dOut, lse, delta], sums: [dq] }, { ranks: sources, inputs, sums }) {
        const layouts = { queries: queriesOf(ranks), keys: keysOf(sources) };
        const here = { q: q!, at, scale, mask, ...layouts, dOut: dOut!, lse: lse!, delta: delta! };
        const block = { k: inputs[0]!, v: inputs[1]!, from };
        inner.attendBackward(ctx, here, { dq: dq!, dk: sums[0]!, dv: sums[1]! }, block);
      },
    }),
  };
}

function placeOf(needs: readonly Need[], i: number): Pick<Tile, "sees" | "first" | "last"> {
  return { sees: needs[i]!.sees, first: i === 0, last: i === needs.length - 1 };
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
