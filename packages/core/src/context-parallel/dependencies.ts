import { type AttentionBackend, checkBackend, local } from "../attention/backend.ts";
import type { AttentionModifiers } from "../attention/tile.ts";
import type { Context } from "../context.ts";
import { checkFunction, expectValue, formatValue, OptionError } from "../errors.ts";
import { unionSlices } from "../mask/samples.ts";
import { checkSlices, type Slice } from "../mask/slice.ts";
import { isVisibleUnchecked } from "../mask/visibility.ts";
import { type Coordinate, omitAxes } from "../mesh.ts";
import * as option from "../option.ts";
import type { Layout } from "../placement/placement.ts";
import { type Span, spansLength } from "../placement/span.ts";

// Every rank has the mask and the layouts of all ranks, and derives from them, without communication, which rank needs
// which keys.

/** The part of an attention call from which dependencies are derived: layouts and mask, which every rank has. */
export interface ShardedAttentionCall {
  readonly at: Coordinate;
  readonly queries: Layout;
  readonly keys: Layout;
  readonly mask: readonly Slice[];
  /** Sample masks count as their union, because a rank needs every key that any of its samples attends to. */
  readonly modifiers?: Pick<AttentionModifiers, "sampleMasks"> | undefined;
}

/**
 * For each pair of ranks along a mesh axis: whether the first computes on the keys of the second, and whether it must
 * receive them.
 *
 * If the inner backend communicates, a rank of the axis represents a group: the ranks from which the inner backend
 * gathers keys. Either all ranks of a group compute on a source or none does. Each receives its own shard of the source
 * if any rank of the group needs this shard.
 */
export interface DependencyTable {
  readonly axis: string;
  /** Number of ranks along the axis. */
  readonly size: number;
  /** True if the mask leaves nothing to compute for any rank of the axis and its groups. */
  readonly isEmpty: boolean;
  /** Returns the number of queries in the shard of a rank. */
  queryRows(rank: number): number;
  /** Returns the number of keys in the shard of a rank. */
  keyRows(rank: number): number;
  /** Returns whether the group of `rank` computes on any key of `source`'s group. */
  needsCompute(rank: number, source: number): boolean;
  /**
   * Returns whether the group of `rank` attends to any key in the shard of `source`, which must then be sent to `rank`.
   * Implies `needsCompute`.
   */
  needsKv(rank: number, source: number): boolean;
}

/** The mesh axis of a dependency table. */
export interface DependencyAxis {
  readonly axis: string;
  /** Number of ranks along the axis. */
  readonly size: number;
  /** The backend that attends to each block; `local()` if absent. */
  readonly inner?: AttentionBackend;
}

/**
 * Returns the dependencies of a call whose keys come from the coordinate `from`.
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
 * @throws OptionError for an axis without ranks, and for an invalid call, mask or coordinate.
 */
export function dependencyTable(
  dependencyAxis: DependencyAxis,
  call: ShardedAttentionCall,
  from: Coordinate,
): DependencyTable {
  checkDependencyAxis("dependencyTable", dependencyAxis);
  const { size: ranks } = dependencyAxis;
  const isValidSize = Number.isSafeInteger(ranks) && ranks >= 1 && ranks <= 2 ** 16;
  expectValue("dependencyTable: size", isValidSize, "1 to 65536 ranks", ranks);
  checkShardedCall("dependencyTable", call, from);
  checkSlices("dependencyTable: mask", call.mask);
  const { axis, size, inner = local() } = dependencyAxis;
  const { at, queries, keys } = call;
  const mask = unionSlices(call);
  const [groupQueryCoordinate, groupKeyCoordinate] = [omitAxes(at, inner.axes), omitAxes(from, inner.axes)];
  // Queries that are not sharded along the axis are the same on every rank.
  const querySpansByRank = (coordinate: Coordinate) =>
    memoizeByRank((rank) => queries.spans(axis in at ? { ...coordinate, [axis]: rank } : coordinate));
  const keySpansByRank = (coordinate: Coordinate) =>
    memoizeByRank((rank) => keys.spans({ ...coordinate, [axis]: rank }));
  const [keyShardSpans, groupKeySpans] = [keySpansByRank(from), keySpansByRank(groupKeyCoordinate)];
  const [queryShardSpans, groupQuerySpans] = [querySpansByRank(at), querySpansByRank(groupQueryCoordinate)];
  const memoizeVisibility = (keySpans: (source: number) => readonly Span[]) =>
    memoizeByPair(size, (rank, source) => isVisibleUnchecked(groupQuerySpans(rank), keySpans(source), mask));
  const needsKv = memoizeVisibility(keyShardSpans);
  let isEmpty: boolean | undefined;
  return {
    axis,
    size,
    get isEmpty() {
      const [queryCoordinate, keyCoordinate] = [
        omitAxes(groupQueryCoordinate, [axis]),
        omitAxes(groupKeyCoordinate, [axis]),
      ];
      return (isEmpty ??= !isVisibleUnchecked(queries.spans(queryCoordinate), keys.spans(keyCoordinate), mask));
    },
    queryRows: memoizeByRank((rank) => spansLength(queryShardSpans(rank))),
    keyRows: memoizeByRank((rank) => spansLength(keyShardSpans(rank))),
    needsCompute: inner.axes.length === 0 ? needsKv : memoizeVisibility(groupKeySpans),
    needsKv,
  };
}

/**
 * Returns a function that caches the dependency tables of a backend's calls. A forward and its backward, all blocks
 * from one coordinate, and all ranks of one process share a table.
 */
export function dependencyTableCache(
  dependencyAxis: Omit<DependencyAxis, "size">,
): (ctx: Context, call: ShardedAttentionCall, from: Coordinate) => DependencyTable {
  checkDependencyAxis("dependencyTableCache", dependencyAxis);
  const { axis } = dependencyAxis;
  const tables = new LayoutCache<DependencyTable>([axis]);
  return ({ mesh }, call, from) =>
    tables.getOrCreate(call, from, () => dependencyTable({ ...dependencyAxis, size: mesh.shape[axis]! }, call, from));
}

const isCoordinate = option.meshShape().accepts;
const isLayout = option.layout().accepts;

function checkDependencyAxis(where: string, dependencyAxis: Omit<DependencyAxis, "size">): void {
  const { axis, inner } = dependencyAxis ?? {};
  expectValue(`${where}: axis`, typeof axis === "string", "the name of a mesh axis", axis);
  if (inner !== undefined) checkBackend(`${where}: inner`, inner);
}

/** Throws an OptionError unless `call` is a call and `from` a coordinate. Does not check the slices of the mask. */
function checkShardedCall(where: string, call: unknown, from: unknown): asserts call is ShardedAttentionCall {
  if (!isShardedCall(call)) expectValue(where, false, "a call { at, queries, keys, mask }", call);
  if (!isCoordinate(from)) expectValue(`${where}: from`, false, "a coordinate, such as { sp: 0 }", from);
}

/** Returns whether a value has all fields of a call. Does not check the slices of the mask. */
export function isShardedCall(value: unknown): value is ShardedAttentionCall {
  const { at, queries, keys, mask } = (value ?? {}) as Partial<ShardedAttentionCall>;
  return isCoordinate(at) && isLayout(queries) && isLayout(keys) && Array.isArray(mask);
}

/**
 * Maximum number of cached values: more than the ranks of one process use, but bounded so that the cache does not fill
 * memory.
 */
const MAX_CACHED_ENTRIES = 4096;

/**
 * A cache of values that a backend derives from layouts and a mask. It is cleared when the layouts or the mask change.
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
  #cachedCall: Pick<ShardedAttentionCall, "queries" | "keys" | "mask" | "modifiers"> | undefined;
  readonly #values = new Map<string, T>();

  /** `axes`: mesh axes along which all coordinates share a value, because the value covers all ranks along them. */
  constructor(axes: readonly string[]) {
    const areAxisNames = Array.isArray(axes) && [...axes].every((axis) => typeof axis === "string");
    expectValue("LayoutCache", areAxisNames, "an array of mesh axis names", axes);
    this.#axes = axes;
  }

  /** Returns the value for queries at `call.at` and keys from `from`. Calls `create` the first time. */
  getOrCreate(call: ShardedAttentionCall, from: Coordinate, create: () => T): T {
    const { at, queries, keys, mask, modifiers } = call ?? {};
    const cachedCall = this.#cachedCall;
    const isCachedCall =
      cachedCall !== undefined &&
      cachedCall.queries === queries &&
      cachedCall.keys === keys &&
      cachedCall.mask === mask &&
      cachedCall.modifiers?.sampleMasks === modifiers?.sampleMasks;
    // Backends look up every block. If the layouts and the mask were checked before, only the coordinates are checked.
    const canLookUp = isCachedCall && option.isObject(at) && option.isObject(from);
    const cachedValue = canLookUp ? this.#values.get(this.#cacheKey(call, from)) : undefined;
    if (cachedValue !== undefined) return cachedValue;
    checkShardedCall("LayoutCache.getOrCreate", call, from);
    checkFunction("LayoutCache.getOrCreate: create", create);
    if (!isCachedCall || this.#values.size >= MAX_CACHED_ENTRIES) this.#values.clear();
    if (!isCachedCall) this.#cachedCall = { queries, keys, mask, modifiers };
    const value = create();
    this.#values.set(this.#cacheKey(call, from), value);
    return value;
  }

  #cacheKey({ at, queries, keys }: ShardedAttentionCall, from: Coordinate): string {
    return `${this.#axesKey(queries, at)};${this.#axesKey(keys, from)}`;
  }

  #axesKey({ axes }: Layout, at: Coordinate): string {
    let key = "";
    for (const axis of axes) key += `,${this.#axes.includes(axis) ? axis in at : at[axis]}`;
    return key;
  }
}

/**
 * Returns the non-negative remainder, for rank arithmetic in a ring.
 *
 * @example
 * ```ts
 * import { modulo } from "@mosaic/core/context-parallel";
 * modulo(-1, 4); // => 3
 * ```
 * @throws OptionError unless both are finite numbers and `size` is > 0.
 */
export function modulo(rank: number, size: number): number {
  if (!Number.isFinite(rank) || !Number.isFinite(size) || size <= 0) throw moduloError(rank, size);
  return ((rank % size) + size) % size;
}

function moduloError(rank: unknown, size: unknown): OptionError {
  const received = `${formatValue(rank)} and ${formatValue(size)}`;
  return new OptionError({ where: "modulo", expected: "a finite rank and a finite size > 0", received });
}

/** Caches a function of a rank. */
function memoizeByRank<T>(compute: (rank: number) => T): (rank: number) => T {
  const cachedValues: T[] = [];
  return (rank) => (cachedValues[rank] ??= compute(rank));
}

type RankPredicate = (rank: number, source: number) => boolean;

/**
 * Caches a predicate of two ranks. Each pair is needed several times per step, and evaluating it iterates over spans
 * and slices.
 */
function memoizeByPair(size: number, predicate: RankPredicate): RankPredicate {
  const [UNKNOWN, FALSE, TRUE] = [0, 1, 2];
  // Allocated per rank, because a process with a single rank needs few of them.
  const cacheByRank: Uint8Array[] = [];
  return (rank, source) => {
    const cachedResults = (cacheByRank[rank] ??= new Uint8Array(size));
    if (cachedResults[source] === UNKNOWN) cachedResults[source] = predicate(rank, source) ? TRUE : FALSE;
    return cachedResults[source] === TRUE;
  };
}
