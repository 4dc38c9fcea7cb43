import type { Context } from "../context.ts";
import { isDataParallelAxis } from "../data-parallel.ts";
import { expectValue, OptionError } from "../errors.ts";
import type { Slice } from "../mask/slice.ts";
import type { Coordinate } from "../mesh.ts";
import type { Layout } from "../placement/placement.ts";
import type { Tensor } from "../tensor.ts";
import type { AttentionModifiers, AttentionState, KvBlock, QkvGrads, SavedRows, Tile } from "./tile.ts";

/**
 * Keys and values, and the mesh coordinate of the shards that they are. An axis missing from `from` means all shards
 * along it, concatenated.
 */
export interface KvShard extends KvBlock {
  readonly from: Coordinate;
}

/** One attention call, the same for every block of keys folded into it. */
export interface AttentionCall {
  /** This rank's queries [B,H,S,D]. */
  readonly q: Tensor;
  /** Mesh coordinate of the shards that the queries are. A missing axis means all shards along it, concatenated. */
  readonly at: Coordinate;
  readonly scale: number;
  /** Disjoint slices, in global positions of the two layouts. */
  readonly mask: readonly Slice[];
  /** Features of the call beyond plain attention. A backend that distributes heads or samples sets their `origin`. */
  readonly modifiers?: AttentionModifiers | undefined;
  readonly queries: Layout;
  readonly keys: Layout;
}

/**
 * An attention algorithm: it folds keys into a state, and can therefore be composed with an inner backend. Its inputs
 * are the shards at `call.at` and `kv.from`. When `attend` returns, the state must cover all keys along the backend's
 * axes.
 */
export interface AttentionBackend {
  readonly name: string;
  /**
   * Name and options as text, including those of inner backends. Must be the same on every rank. Defaults to name and
   * axes.
   */
  readonly description?: string;
  /**
   * Mesh axes along which this backend and its inner backends gather keys, outermost first. The sequence is sharded
   * along these axes.
   */
  readonly axes: readonly string[];
  /**
   * Throws an OptionError that reports what to pass to `init` if the backend does not support this mesh. `attention`
   * and the modules call it first on every rank, before layouts exist and before anything is sent. `attention` calls it
   * again with the layouts of the call, and the backend also throws if it does not support these. A backend calls
   * `check` of its inner backend with the same arguments, because a rank that attends to no key in a step does not call
   * its inner backend. It must not communicate.
   */
  check?(ctx: Context, layouts?: Pick<AttentionCall, "queries" | "keys">): void;
  /**
   * Returns this backend for one call whose keys arrive in blocks from these coordinates, in this order, the same on
   * every rank. Work that depends only on the queries can then be done once for all blocks. If absent, each block costs
   * as much as a call. Use the function `blockwise` to call it.
   */
  blockwise?(from: readonly Coordinate[]): BlockwiseAttention;
  /**
   * Returns this backend on a grid of ranks of this shape, for a module's `meshShape`. Absent if the backend has no
   * grid.
   */
  withShape?(shape: readonly [rows: number, columns: number]): AttentionBackend;
  /** Folds the keys and values into `state`. */
  attend(ctx: Context, call: AttentionCall, state: AttentionState, kv: KvShard): void;
  /** Adds to `grads` dq of this rank's queries over the call's keys, and the complete dk and dv of this rank's keys. */
  attendBackward(ctx: Context, call: AttentionCall & SavedRows, grads: QkvGrads, kv: KvShard): void;
}

/**
 * Returns the text that identifies a backend in messages and in comparisons between ranks: its description, or its name
 * and axes.
 *
 * @example
 * ```ts
 * import { describeBackend } from "@mosaic/core";
 * import { ring } from "@mosaic/backend-ring";
 * describeBackend(ring({ axis: "node", inner: ring({ axis: "gpu" }) })); // => "ring(node, ring(gpu))"
 * ```
 */
export function describeBackend(backend: AttentionBackend): string {
  checkBackend("describeBackend", backend);
  const { name, axes, description } = backend;
  return description ?? (axes.length > 0 ? `${name}(${axes.join(", ")})` : name);
}

/**
 * One call in blocks. `attend` or `attendBackward` is called once per block, with the same call and the same state or
 * gradients. dk and dv of a block are complete when its call returns, the state and dq after the last block. The caller
 * must dispose it even if not all blocks were processed.
 */
export interface BlockwiseAttention extends Pick<AttentionBackend, "attend" | "attendBackward">, Disposable {}

/**
 * Returns a backend's implementation for keys that arrive in blocks from these coordinates, in this order. A backend
 * without its own `blockwise` is called once per block. Used by backends that pass keys to an inner backend step by
 * step.
 *
 * @example
 * ```ts
 * import { blockwise, local } from "@mosaic/core";
 * using steps = blockwise(local(), [{ sp: 1 }, { sp: 0 }]);
 * typeof steps.attend; // => "function"
 * ```
 */
export function blockwise(backend: AttentionBackend, from: readonly Coordinate[]): BlockwiseAttention {
  checkBackend("blockwise", backend);
  return (
    backend.blockwise?.(from) ?? {
      attend: (...call) => backend.attend(...call),
      attendBackward: (...call) => backend.attendBackward(...call),
      [Symbol.dispose]() {},
    }
  );
}

/** Throws an OptionError unless `backend` has the methods and axes of a backend. */
export function checkBackend(where: string, backend: unknown): asserts backend is AttentionBackend {
  const {
    attend,
    attendBackward,
    axes,
    check,
    blockwise: blockwiseMethod,
    withShape,
  } = (backend ?? {}) as Partial<AttentionBackend>;
  const hasRequiredMethods = [attend, attendBackward].every((each) => typeof each === "function");
  const hasValidOptionalMethods = [check, blockwiseMethod, withShape].every(
    (each) => each === undefined || typeof each === "function",
  );
  const isValidBackend = hasRequiredMethods && hasValidOptionalMethods && Array.isArray(axes);
  expectValue(where, isValidBackend, "an AttentionBackend, such as ring()", backend);
}

/** Returns the tile of these queries and keys. */
export function createTile(call: AttentionCall, kv: KvShard): Tile {
  const { queries, keys, at } = (call ?? {}) as Partial<AttentionCall>;
  const hasLayouts = typeof queries?.spans === "function" && typeof keys?.spans === "function";
  expectValue("createTile: call", hasLayouts && at !== undefined, "an AttentionCall", call);
  expectValue("createTile: kv", typeof kv?.from === "object", "a KvShard { k, v, from }", kv);
  return {
    q: call.queries.spans(call.at),
    k: call.keys.spans(kv.from),
    mask: call.mask,
    scale: call.scale,
    modifiers: call.modifiers,
  };
}

/**
 * Returns the backend that runs the device's attention kernel on this rank's keys. It is the innermost backend of every
 * other one. Does not communicate.
 *
 * @example
 * ```ts
 * import { attention, init, local, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = randn(ctx, [1, 2, 10, 16]);
 * using out = attention(ctx, x, x, x, { backend: local() });
 * out.shape; // => [1, 2, 10, 16]
 * ```
 */
export function local(): AttentionBackend {
  return {
    name: "local",
    axes: [],
    attend(ctx, call, state, kv) {
      ctx.device.kernels.attend(state, call.q, kv, createTile(call, kv));
    },
    attendBackward(ctx, call, grads, kv) {
      ctx.device.kernels.attendBackward(grads, call.q, call, kv, createTile(call, kv));
    },
  };
}

/**
 * Returns the requested backend, or "local" if none is requested and the mesh shards no sequence. On a mesh that does,
 * "local" treats every shard as a whole sequence, so it must be requested explicitly.
 */
export function resolveBackendOrLocal(
  where: string,
  ctx: Context,
  backend: string | AttentionBackend | undefined,
): AttentionBackend {
  if (backend !== undefined) return ctx.backend(backend);
  const shardedAxes = ctx.mesh.axes.filter((axis) => !isDataParallelAxis(axis) && ctx.mesh.shape[axis]! > 1);
  if (shardedAxes.length === 0) return ctx.backend("local");
  throw new OptionError({
    where: `${where}: backend`,
    expected: `a backend for the mesh axes ${shardedAxes.map((axis) => `${axis}: ${ctx.mesh.shape[axis]}`).join(", ")}`,
    received: "none",
    remedy:
      'pass backend: "ring" (each rank holds a shard of the sequence), or "local" if each rank holds whole sequences',
  });
}
