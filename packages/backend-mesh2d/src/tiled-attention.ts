import {
  type AttentionBackend,
  type AttentionCall,
  type AttentionState,
  type BlockwiseAttention,
  type Context,
  type Coordinate,
  type KvShard,
  OptionError,
  type QkvGrads,
  type SavedRows,
} from "@mosaic/core";
import { dependencyTable, type LayoutCache, type Validator } from "@mosaic/core/context-parallel";
import {
  createBackwardPass,
  createForwardPass,
  type ExecutionContext,
  type KvAndGrads,
  type Pass,
  type PassExecutor,
  type Tile,
  type TiledPass,
} from "./pass.ts";
import { bestGrid, type Grid, TileCache } from "./tile.ts";

/** Creates the executor of a pass, given its first tile. */
export type CreateExecutor = (pass: Pass, tile: Tile) => PassExecutor;

/** What all calls of one backend share. */
export interface TiledAttentionSettings {
  /** The label of collectives and errors: `mesh2d(sp)`. */
  readonly label: string;
  readonly axis: string;
  readonly inner: AttentionBackend;
  /** Undefined: the grid that sends least for each call. */
  readonly grid: Grid | undefined;
  readonly validate: Validator;
  readonly tiles: LayoutCache<TileCache>;
  readonly createExecutor: CreateExecutor;
}

/** Attention of one rank, forward and backward, to keys that are passed part by part. */
export class TiledAttention implements BlockwiseAttention {
  readonly #settings: TiledAttentionSettings;
  readonly #coordinates: readonly Coordinate[];
  #forward: IncrementalPass<KvShard> | undefined;
  #backward: IncrementalPass<KvAndGrads> | undefined;

  /** `coordinates` are those of all parts of the keys, in call order. */
  constructor(settings: TiledAttentionSettings, coordinates: readonly Coordinate[]) {
    this.#settings = settings;
    this.#coordinates = coordinates;
  }

  attend(ctx: Context, call: AttentionCall, state: AttentionState, kv: KvShard): void {
    this.#settings.validate.attend(ctx, call, state, kv);
    this.#forward ??= this.#begin(createForwardPass(this.#createContext(ctx, call, kv), call, state));
    this.#forward.add(kv);
  }

  attendBackward(ctx: Context, call: AttentionCall & SavedRows, grads: QkvGrads, kv: KvShard): void {
    this.#settings.validate.attendBackward(ctx, call, grads, kv);
    this.#backward ??= this.#begin(createBackwardPass(this.#createContext(ctx, call, kv), call, grads));
    this.#backward.add({ ...kv, dk: grads.dk, dv: grads.dv });
  }

  [Symbol.dispose](): void {
    this.#forward?.[Symbol.dispose]();
    this.#backward?.[Symbol.dispose]();
  }

  #begin<Kv extends KvShard>(pass: TiledPass<Kv>): IncrementalPass<Kv> {
    return new IncrementalPass(pass, this.#coordinates, this.#settings.createExecutor);
  }

  #createContext(ctx: Context, call: AttentionCall, { k }: KvShard): ExecutionContext {
    const { axis, inner, label, tiles } = this.#settings;
    const { size, rank } = ctx.mesh.group(axis);
    const queriesPerKvHead = call.q.shape[1]! / k.shape[1]!;
    const grid = this.#settings.grid ?? bestGrid(size, queriesPerKvHead, this.#coordinates.length);
    const getTile = (coordinate: Coordinate) =>
      tiles
        .getOrCreate(call, coordinate, () => new TileCache(dependencyTable({ axis, size }, call, coordinate)))
        .get(grid, rank);
    return { ctx, axis, inner, label, grid, tiles: this.#coordinates.map(getTile) };
  }
}

/** A pass that receives its keys part by part, from coordinates that are fixed in advance. */
class IncrementalPass<Kv extends KvShard> implements Disposable {
  readonly #pass: TiledPass<Kv>;
  readonly #coordinates: readonly Coordinate[];
  readonly #createExecutor: CreateExecutor;
  #executor: PassExecutor | undefined;
  #nextBlock = 0;

  /** `createExecutor` chooses the schedule when the first tile is added. */
  constructor(pass: TiledPass<Kv>, coordinates: readonly Coordinate[], createExecutor: CreateExecutor) {
    this.#pass = pass;
    this.#coordinates = coordinates;
    this.#createExecutor = createExecutor;
  }

  add(kv: Kv): void {
    this.#checkCoordinate(kv.from, this.#coordinates[this.#nextBlock]);
    const tile = this.#pass.tile(this.#nextBlock++, kv);
    this.#executor ??= this.#createExecutor(this.#pass, tile);
    this.#executor.add(tile);
  }

  /** Checks the coordinate of a part. Keys from any other coordinate would be sent to the wrong ranks. */
  #checkCoordinate(from: Coordinate, callCoordinate: Coordinate | undefined): void {
    if (callCoordinate && Object.keys(callCoordinate).every((axis) => callCoordinate[axis] === from[axis])) return;
    throw new OptionError({
      where: this.#pass.label,
      expected: callCoordinate ? `keys from ${JSON.stringify(callCoordinate)}` : "no further keys",
      received: `keys from ${JSON.stringify(from)}`,
      remedy: "pass the coordinates of all parts to blockwise, in call order",
    });
  }

  [Symbol.dispose](): void {
    this.#executor?.[Symbol.dispose]();
  }
}
