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

// Forward and backward are the same exchange of other things: rows come in along each dimension of the tile, and sums
// over the tile go back to the ranks whose rows they belong to. A pass is what they are; a schedule is when. Within another
// backend the keys come in parts, a tile for each; queries are the same in all, and travel once.

/** What a pass moves along one dimension of the tile: queries, or keys. */
export interface Operand {
  readonly peers: TilePeers;
  /** Rows of a chunk, on the average over ranks. */
  readonly meanRows: number;
  /** This rank's rows, that others compute on: [B,H,S,D] or [B,H,S]. */
  readonly inputs: readonly Tensor[];
  /** What others' computing adds to in the end: float32, this rank's rows of the result; none if nothing goes back. */
  readonly sums: readonly Tensor[];
  /** Makes sums begin. */
  clear(sums: readonly Tensor[]): void;
  /** Adds the sums over some of the tile's blocks to those over others. */
  accumulate(targets: readonly Tensor[], sources: readonly Tensor[]): void;
}

/** Chunks of an operand, by rank, and their rows, in that order. */
export interface OperandChunks {
  readonly ranks: readonly number[];
  readonly inputs: readonly Tensor[];
  readonly sums: readonly Tensor[];
}

/** What one part of the keys makes of a pass. Its sums over keys return with it, those over queries with the last. */
export interface Tile extends Pick<TileDependencies, "needsCompute"> {
  readonly keys: Operand;
  /** Whether another tile came before, whose queries are here; whether another comes after. */
  readonly isFirst: boolean;
  readonly isLast: boolean;
  /** Adds to both sums what these queries and these keys give. */
  compute(queries: OperandChunks, keys: OperandChunks): void;
}

/** A forward or a backward of one rank, over all parts in which the keys come. */
export interface Pass {
  readonly group: ProcessGroup;
  /** The label of collectives in messages and traces. */
  readonly label: string;
  readonly isBackward: boolean;
  readonly grid: Grid;
  readonly queries: Operand;
}

/** A pass that makes tiles of keys and values, part by part. */
export interface TiledPass<Kv extends KvShard> extends Pass {
  /** The tile of part `i`. */
  tile(i: number, kv: Kv): Tile;
}

/** What both passes are made in. */
export interface ExecutionContext {
  readonly ctx: Context;
  readonly axis: string;
  readonly inner: AttentionBackend;
  readonly grid: Grid;
  /** This rank's tile for each part of the keys. */
  readonly tiles: readonly TileDependencies[];
  readonly label: string;
}

/** Keys and values, and room for their gradients. */
export type KvAndGrads = KvShard & Pick<QkvGrads, "dk" | "dv">;

/** (out, lse) per query, merged; nothing per key. */
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

/** dq per query, dk and dv per key, added. The global lse and delta travel with the queries: nothing to merge. */
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

/** What a forward and a backward differ in. */
interface PassDefinition<Kv extends KvShard> {
  readonly isBackward: boolean;
  readonly queries: OperandData;
  keys(kv: Kv): OperandData;
  /** `layouts`: those of these chunks. */
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

/** The same number on every rank, however unequal their shards. */
function meanRows({ mesh }: Context, { length, axes }: Layout): number {
  return axes.reduce((rows, axis) => rows / mesh.shape[axis]!, length);
}

/** Layouts of any ranks' chunks along an axis, one after another; those of one rank are needed block after block, and kept. */
export function createChunkLayout(layout: Layout, axis: string): (ranks: readonly number[]) => Layout {
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

/** What is found for a coordinate, kept until there is another. */
function memoizeLast<T>(compute: (at: Coordinate) => T): (at: Coordinate) => T {
  let lastCoordinate: Coordinate | undefined;
  let lastResult: T;
  return (at) => {
    if (at !== lastCoordinate) lastResult = compute((lastCoordinate = at));
    return lastResult;
  };
}

/** Runs a pass by one schedule. */
export interface PassExecutor extends Disposable {
  /** Takes the next tile. Its sums over keys are where they belong when this returns; those over queries after the last. */
  add(tile: Tile): void;
}
