import type { Context } from "../context.ts";
import { expectValue, OptionError } from "../errors.ts";
import type { Slice } from "../mask/slice.ts";
import type { Coordinate } from "../mesh.ts";
import type { Layout } from "../placement/placement.ts";
import type { Tensor } from "../tensor.ts";
import type { AttentionModifiers, AttentionState, KvBlock, QkvGrads, SavedRows, Tile } from "./tile.ts";

/** Keys and values, and where in the mesh they come from. An axis missing from `from`: all shards along it, concatenated. */
export interface KvShard extends KvBlock {
  readonly from: Coordinate;
}

/** One attention call, the same for every block of keys folded into it. */
export interface AttentionCall {
  /** This rank's queries [B,H,S,D]. */
  readonly q: Tensor;
  /** Where they come from. An axis missing: all shards along it, concatenated. */
  readonly at: Coordinate;
  readonly scale: number;
  /** Disjoint, in global positions of the two layouts. */
  readonly mask: readonly Slice[];
  /** Features of the call beyond plain attention. A backend that shares out heads or samples sets their origin. */
  readonly modifiers?: AttentionModifiers | undefined;
  readonly queries: Layout;
  readonly keys: Layout;
}

/**
 * A way to attend: it folds keys into a state, and so may be built from another backend that does. What it is given are
 * the shards at `call.at` and `kv.from`; what it must leave is the state over all keys along its own axes.
 */
export interface AttentionBackend {
  readonly name: string;
  /** Its name and options as text, those of inner backends included: what must be the same on every rank. Absent: name and axes. */
  readonly description?: string;
  /** Mesh axes over which it, inner backends included, gathers keys; outermost first. The sequence is cut along these. */
  readonly axes: readonly string[];
  /**
   * Throws an OptionError, which reports what to pass to `init`, if this is not the mesh that the backend needs. `attention`
   * and the modules call it first, before there are layouts and before anything is sent, on every rank alike; a backend
   * calls that of its inner one. It must not communicate.
   */
  check?(ctx: Context): void;
  /**
   * The same backend for one call whose keys come in parts from these places, in this order, known to every rank alike: what
   * depends on queries only can be done once for all parts. Absent: a part costs what a call does. Call it through the function `blockwise`.
   */
  blockwise?(from: readonly Coordinate[]): BlockwiseAttention;
  /** The same backend on a grid of ranks of this shape: for a module's `meshShape`. Absent: it has no grid. */
  withShape?(shape: readonly [rows: number, columns: number]): AttentionBackend;
  /** Folds the keys and values into `state`. */
  attend(ctx: Context, call: AttentionCall, state: AttentionState, kv: KvShard): void;
  /** Adds this rank's queries' share of dq, and the whole dk and dv of this rank's keys, to `grads`. */
  attendBackward(ctx: Context, call: AttentionCall & SavedRows, grads: QkvGrads, kv: KvShard): void;
}

/**
 * A backend as messages and comparisons between ranks have it: its description, or its name and axes.
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
 * One call in parts: either half is called once for each part, with the same call and the same sums. dk and dv of a part are
 * complete when it returns; the state, or dq, after the last part. Dispose it in any case: the parts may end early.
 */
export interface BlockwiseAttention extends Pick<AttentionBackend, "attend" | "attendBackward">, Disposable {}

/**
 * How a backend attends to keys that come in parts from these places, in this order: in its own way if it has one, otherwise
 * part by part. For backends that have an inner one and bring it keys step by step.
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

/** Throws an OptionError unless `backend` has the two halves of one. */
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

/** The tile that these queries and keys form. */
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

/** The device's own kernel on the keys at hand: what every other backend ends in. Communicates nothing. */
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
 * The requested backend; "local" if none is named and the mesh cuts no sequence. Where it does, "local" would take every shard
 * for a whole sequence, so it must be named.
 */
export function resolveBackendOrLocal(
  where: string,
  ctx: Context,
  backend: string | AttentionBackend | undefined,
): AttentionBackend {
  if (backend !== undefined) return ctx.backend(backend);
  const shardedAxes = ctx.mesh.axes.filter((axis) => axis !== "dp" && ctx.mesh.shape[axis]! > 1);
  if (shardedAxes.length === 0) return ctx.backend("local");
  throw new OptionError({
    where: `${where}: backend`,
    expected: `a backend for the mesh axes ${shardedAxes.map((axis) => `${axis}: ${ctx.mesh.shape[axis]}`).join(", ")}`,
    received: "none",
    remedy:
      'pass backend: "ring" (each rank holds a shard of the sequence), or "local" if each rank holds whole sequences',
  });
}
