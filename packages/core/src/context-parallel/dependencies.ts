import { type AttentionBackend, local } from "../attention/backend.ts";
import type { Context } from "../context.ts";
import type { Slice } from "../mask/slice.ts";
import { isVisible } from "../mask/visibility.ts";
import { type Coordinate, omitAxes } from "../mesh.ts";
import type { Layout } from "../placement/placement.ts";
import { type Span, spansLength } from "../placement/span.ts";

// Every rank has the layouts of all ranks and the mask, and derives alone who needs whose keys: nothing is sent for it.

/** Where queries and keys lie, and which see which: a call, as every rank has it. */
export interface ShardedAttentionCall {
  readonly at: Coordinate;
  readonly queries: Layout;
  readonly keys: Layout;
  readonly mask: readonly Slice[];
}

/**
 * Who computes on whose keys along a mesh axis, and who must receive them; ranks are those of the axis.
 *
 * With an inner backend that communicates, a rank of the axis stands for a group: the ranks that the inner backend gathers
 * keys from. All of a group compute on a source, or none; each of them receives its own shard of that source, if any needs it.
 */
export interface DependencyTable {
  readonly axis: string;
  /** Ranks along the axis. */
  readonly size: number;
  /** True if the mask leaves no rank of the axis, nor of its groups, anything to compute. */
  readonly isEmpty: boolean;
  /** Queries in the shard of a rank. */
  queryRows(rank: number): number;
  /** Keys in the shard of a rank. */
  keyRows(rank: number): number;
  /** Whether the group of `rank` has anything to compute on the keys of `source`'s group. */
  needsCompute(rank: number, source: number): boolean;
  /** Whether the group of `rank` sees a key of the shard of `source`, so that it must get there. Implies `needsCompute`. */
  needsKv(rank: number, source: number): boolean;
}

/** The axis that a dependency table is about. */
export interface DependencyAxis {
  readonly axis: string;
  /** Ranks along it. */
  readonly size: number;
  /** The backend that attends to each block; `local()` if absent. */
  readonly inner?: AttentionBackend;
}

/**
 * The dependencies of a call whose keys come from the coordinate `from`.
 *
 * @example
 * ```ts
 * import { layoutOf, masks } from "@mosaic/core";
 * import { dependencyTable } from "@mosaic/core/context-parallel";
 * const tokens = layoutOf({ mesh: { sp: 4 }, axes: ["sp"], length: 40 });
 * const call = { at: { sp: 0 }, mask: masks.causal().slices(40, 40), queries: tokens, keys: tokens };
 * const dependencies = dependencyTable({ axis: "sp", size: 4 }, call, call.at);
 * dependencies.needsKv(3, 1); // => true
 * dependencies.needsKv(1, 3); // => false
 * dependencies.keyRows(1); // => 10
 * ```
 */
export function dependencyTable(along: DependencyAxis, call: ShardedAttentionCall, from: Coordinate): DependencyTable {
  const { axis, size, inner = local() } = along;
  const { at, queries, keys, mask } = call;
  const [groupAt, groupFrom] = [omitAxes(at, inner.axes), omitAxes(from, inner.axes)];
  // Queries that are whole along the axis are the same for every rank.
  const queriesOf = (of: Coordinate) =>
    memoizeByRank((rank) => queries.spans(axis in at ? { ...of, [axis]: rank } : of));
  const keysOf = (of: Coordinate) => memoizeByRank((rank) => keys.spans({ ...of, [axis]: rank }));
  const [shard, groupKeys] = [keysOf(from), keysOf(groupFrom)];
  const [ownQueries, groupQueries] = [queriesOf(at), queriesOf(groupAt)];
  const seenBy = (block: (source: number) => readonly Span[]) =>
    memoizeByPair(size, (rank, source) => isVisible(groupQueries(rank), block(source), mask));
  const needsKv = seenBy(shard);
  let isEmpty: boolean | undefined;
  return {
    axis,
    size,
    get isEmpty() {
      const [all, allKeys] = [omitAxes(groupAt, [axis]), omitAxes(groupFrom, [axis])];
      return (isEmpty ??= !isVisible(queries.spans(all), keys.spans(allKeys), mask));
    },
    queryRows: memoizeByRank((rank) => spansLength(ownQueries(rank))),
    keyRows: memoizeByRank((rank) => spansLength(shard(rank))),
    needsCompute: inner.axes.length === 0 ? needsKv : seenBy(groupKeys),
    needsKv,
  };
}

/**
 * Dependency tables of a backend's calls, each derived once: for a forward and its backward, for all blocks from one place,
 * and for all ranks of one process.
 */
export function dependencyTableCache(
  along: Omit<DependencyAxis, "size">,
): (ctx: Context, call: ShardedAttentionCall, from: Coordinate) => DependencyTable {
  const { axis } = along;
  const tables = new LayoutCache<DependencyTable>([axis]);
  return ({ mesh }, call, from) =>
    tables.getOrCreate(call, from, () => dependencyTable({ ...along, size: mesh.shape[axis]! }, call, from));
}

/** More places than the ranks of one process use: what is cached must not fill memory. */
const MAX_CACHED_ENTRIES = 4096;

/**
 * What a backend derives from layouts and a mask, kept until there are others.
 *
 * @example
 * ```ts
 * import { layoutOf } from "@mosaic/core";
 * import { LayoutCache } from "@mosaic/core/context-parallel";
 * const tokens = layoutOf({ mesh: { node: 2, gpu: 4 }, axes: ["node", "gpu"], length: 80 });
 * const call = { at: { node: 0, gpu: 1 }, queries: tokens, keys: tokens, mask: [] };
 * const cache = new LayoutCache<number>(["gpu"]);
 * let made = 0;
 * cache.getOrCreate(call, { node: 1, gpu: 3 }, () => ++made); // => 1
 * cache.getOrCreate(call, { node: 1, gpu: 2 }, () => ++made); // => 1
 * cache.getOrCreate(call, { node: 0, gpu: 3 }, () => ++made); // => 2
 * ```
 */
export class LayoutCache<T> {
  readonly #axes: readonly string[];
  #call: Pick<ShardedAttentionCall, "queries" | "keys" | "mask"> | undefined;
  readonly #values = new Map<string, T>();

  /** `axes`: those along which all places share a value, because it is about all of them. */
  constructor(axes: readonly string[]) {
    this.#axes = axes;
  }

  /** The value for queries at `call.at` and keys from `from`, made by `make` the first time. */
  getOrCreate(call: ShardedAttentionCall, from: Coordinate, make: () => T): T {
    const { at, queries, keys, mask } = call;
    const last = this.#call;
    const same = last?.queries === queries && last.keys === keys && last.mask === mask;
    if (!same || this.#values.size >= MAX_CACHED_ENTRIES) this.#values.clear();
    if (!same) this.#call = { queries, keys, mask };
    const place = `${this.#cacheKey(queries, at)};${this.#cacheKey(keys, from)}`;
    let value = this.#values.get(place);
    if (value === undefined) this.#values.set(place, (value = make()));
    return value;
  }

  #cacheKey({ axes }: Layout, at: Coordinate): string {
    let place = "";
    for (const axis of axes) place += `,${this.#axes.includes(axis) ? axis in at : at[axis]}`;
    return place;
  }
}

/** The remainder that is never negative: rank arithmetic in a ring. */
export function modulo(rank: number, size: number): number {
  return ((rank % size) + size) % size;
}

/** What belongs to each rank, derived once. */
function memoizeByRank<T>(derive: (rank: number) => T): (rank: number) => T {
  const known: T[] = [];
  return (rank) => (known[rank] ??= derive(rank));
}

type RankPredicate = (rank: number, source: number) => boolean;

/** Each pair is needed several times a step, and takes a walk over spans and slices. */
function memoizeByPair(size: number, relation: RankPredicate): RankPredicate {
  const [unknown, no, yes] = [0, 1, 2];
  // By rank: one that is alone in its process needs few of them.
  const known: Uint8Array[] = [];
  return (rank, source) => {
    const sources = (known[rank] ??= new Uint8Array(size));
    if (sources[source] === unknown) sources[source] = relation(rank, source) ? yes : no;
    return sources[source] === yes;
  };
}
