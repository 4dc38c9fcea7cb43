import {
  type AttentionBackend,
  type AttentionCall,
  type Context,
  type Coordinate,
  type BlockwiseAttention,
  local,
  OptionError,
  type KvShard,
} from "@mosaic/core";
import { dependencyTable, LayoutCache, validator } from "@mosaic/core/context-parallel";
import { FusedExecutor } from "./fused.ts";
import { checkGrid, checkInner, describeOptions, type Mesh2DOptions, mesh2dOptions } from "./options.ts";
import { OverlappedExecutor } from "./overlapped.ts";
import {
  backwardPass,
  type ExecutionContext,
  forwardPass,
  type KvAndGrads,
  type Pass,
  type PassExecutor,
  type Tile,
  type TiledPass,
} from "./pass.ts";
import { chooseSchedule, type ScheduleName, Schedules } from "./schedule.ts";
import { bestGrid, Tiles } from "./tile.ts";

/**
 * Attention in two dimensions: the ranks of a mesh axis form a grid; queries travel along its rows, keys and values along
 * its columns, and each rank computes a tile of them. The states over parts of the keys go back to the queries' rank and
 * merge there, in float32; in backward dq goes back along rows, dk and dv along columns. With p ranks in a square, each
 * sends O(√p) chunks where a ring sends O(p); `mesh2dTraffic` gives the bytes for any mask, placement and grid.
 *
 * What a mask leaves empty is neither computed nor sent. Chunks go straight from the rank that has them to those that
 * compute on them, and sums straight back; they are added in the same order every time. `shape: [p, 1]` gathers keys
 * only, like a ring; `shape: [1, p]` queries only.
 *
 * Within another backend, which brings keys in parts, queries travel once for all parts and stay, and so do the sums over
 * them: `ring({ axis: "node", inner: mesh2d({ axis: "gpu" }) })` moves only keys at each step.
 *
 * `schedule` sets when it communicates: "fused" gathers, computes in one call and returns sums; "overlapped" goes block by
 * block and hides transfers behind compute, one at a time or, with `channels: 2`, one along the row beside one along the
 * column; "auto" takes the quicker. All give the same results but for rounding, and send the same bytes.
 *
 * Throws, before anything is sent, an OptionError if the mesh lacks the axis, the shape does not fit its length, or a
 * sequence is not cut along it, and a ShapeError or DTypeError if the tensors are not what their layouts state.
 *
 * Source: Elango, "Attention2D", 2025 (arXiv 2503.15758), the fused schedule; "Mesh-Attention", 2025 (arXiv 2512.20968),
 * tiles of any shape and the overlapped one.
 *
 * @example
 * ```ts
 * import { mesh2d } from "@mosaic/backend-mesh2d";
 * mesh2d({ shape: [4, 2] }).axes; // => ["sp"]
 * mesh2d({ axis: "gpu", shape: [8, 32], schedule: "overlapped", channels: 2 }).name; // => "mesh2d"
 * ```
 */
export function mesh2d(options?: Mesh2DOptions): AttentionBackend {
  const parsed = mesh2dOptions.parse(options);
  const { axis, shape, schedule, inner = local(), ...costs } = parsed;
  const { channels, computeToTransfer, links, halfSpeedRows } = costs;
  const label = `mesh2d(${axis})`;
  checkInner(label, inner);
  const validate = validator({ name: "mesh2d", axis, inner, sharded: ["queries", "keys"] });
  const tiles = new LayoutCache<Tiles>([axis]);
  const schedules = new Schedules({ channels, computeToTransfer, links });
  return {
    name: "mesh2d",
    description: describeOptions(parsed),
    axes: [axis],

    check(ctx) {
      validate.context(ctx);
      checkShape(ctx);
    },

    withShape: (other) => mesh2d({ ...options, shape: other }),

    blockwise,

    attend(ctx, call, state, kv) {
      using whole = blockwise([kv.from]);
      whole.attend(ctx, call, state, kv);
    },

    attendBackward(ctx, call, grads, kv) {
      using whole = blockwise([kv.from]);
      whole.attendBackward(ctx, call, grads, kv);
    },
  };

  function blockwise(from: readonly Coordinate[]): BlockwiseAttention {
    let forward: PartwisePass<KvShard> | undefined;
    let backward: PartwisePass<KvAndGrads> | undefined;
    return {
      attend(ctx, call, state, kv) {
        validate.attend(ctx, call, state, kv);
        checkShape(ctx);
        forward ??= new PartwisePass(forwardPass(contextOf(ctx, call, kv), call, state), from, executorOf);
        forward.add(kv);
      },

      attendBackward(ctx, call, grads, kv) {
        validate.attendBackward(ctx, call, grads, kv);
        checkShape(ctx);
        backward ??= new PartwisePass(backwardPass(contextOf(ctx, call, kv), call, grads), from, executorOf);
        backward.add({ ...kv, dk: grads.dk, dv: grads.dv });
      },

      [Symbol.dispose]() {
        forward?.[Symbol.dispose]();
        backward?.[Symbol.dispose]();
      },
    };

    function contextOf(ctx: Context, call: AttentionCall, { k }: KvShard): ExecutionContext {
      const { size, rank } = ctx.mesh.group(axis);
      const grouped = call.q.shape[1]! / k.shape[1]!;
      const grid = shape ? { rows: shape[0], columns: shape[1] } : bestGrid(size, grouped, from.length);
      const tileAt = (place: Coordinate) =>
        tiles.getOrCreate(call, place, () => new Tiles(dependencyTable({ axis, size }, call, place))).of(grid, rank);
      return { ctx, axis, inner, label, grid, tiles: from.map(tileAt) };
    }
  }

  /** The ranks of the axis fill the grid, if a shape was asked for. */
  function checkShape({ mesh, rank }: Context): void {
    if (!shape) return;
    checkGrid(`${label}, rank ${rank}`, { rows: shape[0], columns: shape[1] }, mesh.shape[axis]!);
  }

  function executorOf(pass: Pass, tile: Tile): PassExecutor {
    const name = schedule === "auto" ? choose(pass, tile) : schedule;
    if (name === "fused") return new FusedExecutor(pass);
    return new OverlappedExecutor(pass, (each) => schedules.of(pass, each));
  }

  /** By the tile as if it were the only one: every rank comes to the same. */
  function choose(pass: Pass, tile: Tile): ScheduleName {
    return chooseSchedule({
      schedule: schedules.of(pass, { ...tile, first: true, last: true }),
      queries: { chunks: pass.grid.columns, rows: pass.queries.meanRows },
      keys: { chunks: pass.grid.rows, rows: tile.keys.meanRows },
      halfSpeedRows,
    });
  }
}

/** A pass whose keys come part by part, from places known before. */
class PartwisePass<Kv extends KvShard> implements Disposable {
  readonly #pass: TiledPass<Kv>;
  readonly #from: readonly Coordinate[];
  readonly #begin: (pass: Pass, tile: Tile) => PassExecutor;
  #executor: PassExecutor | undefined;
  #next = 0;

  /** `begin` chooses the schedule when the first tile is there. */
  constructor(pass: TiledPass<Kv>, from: readonly Coordinate[], begin: (pass: Pass, tile: Tile) => PassExecutor) {
    this.#pass = pass;
    this.#from = from;
    this.#begin = begin;
  }

  add(kv: Kv): void {
    this.#checkPlace(kv.from, this.#from[this.#next]);
    const tile = this.#pass.tile(this.#next++, kv);
    this.#executor ??= this.#begin(this.#pass, tile);
    this.#executor.add(tile);
  }

  /** Dependencies were derived from the places that were named: keys from elsewhere would be sent to the wrong ranks. */
  #checkPlace(from: Coordinate, named: Coordinate | undefined): void {
    if (named && Object.keys(named).every((axis) => named[axis] === from[axis])) return;
    throw new OptionError({
      where: this.#pass.label,
      expected: named ? `keys from ${JSON.stringify(named)}` : "no more keys",
      received: `keys from ${JSON.stringify(from)}`,
      remedy: "give blockwise the places of all parts, in the order in which they come",
    });
  }

  [Symbol.dispose](): void {
    this.#executor?.[Symbol.dispose]();
  }
}
