import type { Context } from "../context.ts";
import { OptionError } from "../errors.ts";
import { type AttentionBackend, tileOf } from "./backend.ts";

/** The device's own kernel on the keys at hand: what every other backend ends in. Communicates nothing. */
export function local(): AttentionBackend {
  return {
    name: "local",
    axes: [],
    attend(ctx, call, state, kv) {
      ctx.device.kernels.attend(state, call.q, kv, tileOf(call, kv));
    },
    attendBackward(ctx, call, grads, kv) {
      ctx.device.kernels.attendBackward(grads, call.q, call, kv, tileOf(call, kv));
    },
  };
}

/**
 * The requested backend; "local" if none is named and the mesh cuts no sequence. Where it does, "local" would take every shard
 * for a whole sequence, so it must be named.
 */
export function backendOrLocal(
  where: string,
  ctx: Context,
  requested: string | AttentionBackend | undefined,
): AttentionBackend {
  if (requested !== undefined) return ctx.backend(requested);
  const cut = ctx.mesh.axes.filter((axis) => axis !== "dp" && ctx.mesh.shape[axis]! > 1);
  if (cut.length === 0) return ctx.backend("local");
  throw new OptionError({
    where: `${where}: backend`,
    expected: `a backend, as the mesh has ${cut.map((axis) => `${axis}: ${ctx.mesh.shape[axis]}`).join(", ")}`,
    received: "none",
    remedy:
      'pass backend: "ring" (each rank holds a shard of the sequence), or "local" if each rank holds whole sequences',
  });
}
