import {
  type AttentionBackend,
  type AttentionState,
  type AttentionCall,
  type Context,
  type Coordinate,
  joinSpans,
  type Kernels,
  type Layout,
  type KvShard,
  type ProcessGroup,
  type QkvGrads,
  type SavedRows,
  type Tensor,
} from "@mosaic/core";
import { type Grid, unionOfPeers, type TileDependencies, type TilePeers } from "./tile.ts";

// Forward and backward exchange different tensors in the same way: rows are received along each dimension of the tile,
// and sums over the tile are returned to the owners of the rows. A pass defines what is exchanged; a schedule defines
// when. As an inner backend, a pass receives keys in parts, with one tile for each part. All tiles use the same
// queries, which are sent once.

/** The tensors that a pass moves along one dimension of the tile: queries or keys. */
export interface Operand {
  readonly peers: TilePeers;
  /** Mean number of rows of a chunk over all ranks. */
  readonly meanRows: number;
  /** This rank's rows, which are sent to the ranks that compute on them: [B,H,S,D] or [B,H,S]. */
  readonly inputs: readonly Tensor[];
  /**
   * This rank's rows of the result, in float32, to which the sums of other ranks are added; empty if no sums are
   * returned.
   */
  readonly sums: readonly Tensor[];
  /** Initializes sums. */
  clear(sums: readonly Tensor[]): void;
  /** Adds or merges `sources` into `targets`; the two are sums over disjoint sets of blocks. */
  accumulate(targets: readonly Tensor[], sources: readonly Tensor[]): void;
}

/** Chunks of an operand: their ranks, and their concatenated rows and sums in that order. */
export interface OperandChunks {
  readonly ranks: readonly number[];
  readonly inputs: readonly Tensor[];
  readonly sums: readonly Tensor[];
}

/**
 * The work of a pass for one part of the keys. Sums over its keys are returned with the tile; sums over queries are
 * returned with the last tile.
 */
export interface Tile extends Pick<TileDependencies, "needsCompute"> {
  readonly keys: Operand;
  /**
   * Whether this is the first tile, which receives the queries, and whether it is the last, which returns their sums.
   */
  readonly isFirst: boolean;
  readonly isLast: boolean;
  /** Adds the contributions of all pairs of these queries and keys to the sums of both. */
  compute(queries: OperandChunks, keys: OperandChunks): void;
}

/** A forward or backward of one rank, over all parts of the keys. */
export interface Pass {
  readonly group: ProcessGroup;
  /** The label of collectives in messages and traces. */
  readonly label: string;
  readonly isBackward: boolean;
  readonly grid: Grid;
  readonly queries: Operand;
}

/** A pass that creates a tile for each part of the keys and values. */
export interface TiledPass<Kv extends KvShard> extends Pass {
  /** Creates the tile of part `i`. */
  tile(i: number, kv: Kv): Tile;
}

/** The context in which a forward or backward pass is created. */
export interface ExecutionContext {
  readonly ctx: Context;
  readonly axis: string;
  readonly inner: AttentionBackend;
  readonly grid: Grid;
  /** This rank's tile for each part of the keys. */
  readonly tiles: readonly TileDependencies[];
  readonly label: string;
}

/** Keys and values, and the tensors that accumulate their gradients. */
export type KvAndGrads = KvShard & Pick<QkvGrads, "dk" | "dv">;

/** Creates the forward pass: (out, lse) of each query are merged; keys have no sums. */
export function createForwardPass(
  context: ExecutionContext,
  call: AttentionCall,
  { out, lse }: AttentionState,
): TiledPass<KvShard> {
  const { ctx, inner } = context;
  const { kernels } = ctx.device;
  const { at, scale, mask, modifiers } = call;
  return createPass(context, call, {
    isBackward: false,
    queries: { ...createStateOperations(kernels), inputs: [call.q], sums: [out, lse] },
    keys: ({ k, v }) => ({ ...createSumOperations(kernels), inputs: [k, v], sums: [] }),
    compute({ queries, keys }, { inputs: [q], sums }, { inputs: [k, v] }, from) {
      inner.attend(ctx, { q: q!, at, scale, mask, modifiers, queries, keys }, toAttentionState(sums), {
        k: k!,
        v: v!,
        from,
      });
    },
  });
}

/**
 * Creates the backward pass: dq of each query and dk and dv of each key are added. The global lse and delta are sent
 * with the queries, so there are no states to merge.
 */
export function createBackwardPass(
  context: ExecutionContext,
  call: AttentionCall & SavedRows,
  { dq: ownDq }: Pick<QkvGrads, "dq">,
): TiledPass<KvAndGrads> {
  const { ctx, inner } = context;
  const sumOperations = createSumOperations(ctx.device.kernels);
  const { at, scale, mask, modifiers } = call;
  return createPass<KvAndGrads>(context, call, {
    isBackward: true,
    queries: { ...sumOperations, inputs: [call.q, call.dOut, call.lse, call.delta], sums: [ownDq] },
    keys: ({ k, v, dk, dv }) => ({ ...sumOperations, inputs: [k, v], sums: [dk, dv] }),
    compute({ queries, keys }, { inputs: [q, dOut, lse, delta], sums: [dq] }, { inputs: [k, v], sums }, from) {
      const tile = { q: q!, at, scale, mask, modifiers, queries, keys, dOut: dOut!, lse: lse!, delta: delta! };
      inner.attendBackward(ctx, tile, { dq: dq!, dk: sums[0]!, dv: sums[1]! }, { k: k!, v: v!, from });
    },
  });
}

type OperandData = Omit<Operand, "peers" | "meanRows">;
type ChunkLayouts = Pick<AttentionCall, "queries" | "keys">;

/** The parts of a pass that differ between forward and backward. */
interface PassDefinition<Kv extends KvShard> {
  readonly isBackward: boolean;
  readonly queries: OperandData;
  keys(kv: Kv): OperandData;
  /** Computes one tile. `layouts` are the layouts of its chunks. */
  compute(layouts: ChunkLayouts, queries: OperandChunks, keys: OperandChunks, from: Coordinate): void;
}

function createPass<Kv extends KvShard>(
  context: ExecutionContext,
  call: AttentionCall,
  definition: PassDefinition<Kv>,
): TiledPass<Kv> {
  const { ctx, axis, grid, tiles, label } = context;
  const [createQueryLayout, createKeyLayout] = [
    createChunkLayout(call.queries, axis),
    createChunkLayout(call.keys, axis),
  ];
  const peers = unionOfPeers(tiles.map(({ queries }) => queries));
  const meanKeyRows = meanRows(ctx, call.keys);
  return {
    group: ctx.mesh.group(axis),
    label,
    isBackward: definition.isBackward,
    grid,
    queries: { ...definition.queries, peers, meanRows: meanRows(ctx, call.queries) },
    tile: (i, kv) => ({
      needsCompute: tiles[i]!.needsCompute,
      isFirst: i === 0,
      isLast: i === tiles.length - 1,
      keys: { ...definition.keys(kv), peers: tiles[i]!.keys, meanRows: meanKeyRows },
      compute(queries, keys) {
        definition.compute(
          { queries: createQueryLayout(queries.ranks), keys: createKeyLayout(keys.ranks) },
          queries,
          keys,
          kv.from,
        );
      },
    }),
  };
}

function createStateOperations(kernels: Kernels): Pick<Operand, "clear" | "accumulate"> {
  return {
    clear([out, lse]) {
      kernels.fill(out!, 0);
      kernels.fill(lse!, -Infinity);
    },
    accumulate: (target, source) => kernels.merge(toAttentionState(target), toAttentionState(source)),
  };
}

function createSumOperations(kernels: Kernels): Pick<Operand, "clear" | "accumulate"> {
  return {
    clear(sums) {
      for (const sum of sums) kernels.fill(sum, 0);
    },
    accumulate(targets, sources) {
      for (const [i, sum] of targets.entries()) kernels.binary("add", sum, sum, sources[i]!);
    },
  };
}

function toAttentionState([out, lse]: readonly Tensor[]): AttentionState {
  return { out: out!, lse: lse! };
}

/** Returns the mean number of rows per shard: the same number on every rank, even if shards have unequal lengths. */
function meanRows({ mesh }: Context, { length, axes }: Layout): number {
  return axes.reduce((rows, axis) => rows / mesh.shape[axis]!, length);
}

/**
 * Creates a function that returns the layout of the concatenated chunks of some ranks along an axis. Layouts of single
 * ranks are cached because every block uses them.
 */
function createChunkLayout(layout: Layout, axis: string): (ranks: readonly number[]) => Layout {
  const { length } = layout;
  const axes = layout.axes.filter((each) => each !== axis);
  const layoutsByRank: (Layout | undefined)[] = [];
  return (ranks) => {
    const [firstRank] = ranks;
    if (ranks.length === 1) {
      return (layoutsByRank[firstRank!] ??= {
        length,
        axes,
        spans: memoizeLast((at) => layout.spans({ ...at, [axis]: firstRank! })),
      });
    }
    const spans = (at: Coordinate) => joinSpans(ranks.flatMap((rank) => layout.spans({ ...at, [axis]: rank })));
    return { length, axes, spans };
  };
}

/** Caches the result for the last coordinate. */
function memoizeLast<T>(compute: (at: Coordinate) => T): (at: Coordinate) => T {
  let lastCoordinate: Coordinate | undefined;
  let lastResult: T;
  return (at) => {
    if (at !== lastCoordinate) lastResult = compute((lastCoordinate = at));
    return lastResult;
  };
}

/** Runs a pass with one schedule. */
export interface PassExecutor extends Disposable {
  /**
   * Runs the next tile. On return, its sums over keys have been returned to their owners; sums over queries have been
   * returned after the last tile.
   */
  add(tile: Tile): void;
}
