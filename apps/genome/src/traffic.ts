import { type Context, fromArray } from "@mosaic/attention";
import { type MetaResult } from "@mosaic/attention/meta";
import type { Settings } from "./settings.ts";

const FLOAT = 4;

/** Bytes that attention sends in a step, forward and backward, all ranks together. Collective. */
export async function sentByAttention(
  ctx: Context,
  settings: Settings,
  results: readonly MetaResult[],
): Promise<number> {
  if (settings.method === "local" || ctx.size === 1) return 0;
  if (settings.method === "ring") return ringBytes(settings, ctx.size);
  const own = results.reduce((sum, { meta }) => {
    return sum + meta.bytesMoved.forward.sent + meta.bytesMoved.backward.sent;
  }, 0);
  // In floats, so that a float32 holds the number exactly.
  using floats = fromArray(ctx, [own / FLOAT], [1]);
  ctx.world.allReduce(floats, "sum", { label: "bytes" }).wait();
  return (await floats.item()) * FLOAT;
}

/** Keys and values to all other ranks, forward and again backward, and their gradients home. */
function ringBytes({ layers, batch, chunks, chunkLength, embedDim }: Settings, ranks: number): number {
  return layers * 3 * (ranks - 1) * 2 * batch * chunks * chunkLength * embedDim * FLOAT;
}
