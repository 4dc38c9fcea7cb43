import type { Context } from "@mosaic/attention";
import { allGatherObject } from "@mosaic/attention/core";
import { denseToSparse, type MetaResult } from "@mosaic/attention/meta";
import { SUMMARY_HEADS } from "./attention-layers.ts";
import { WORDS_PER_TOKEN } from "./genome.ts";
import type { ModelSettings, Settings } from "./settings.ts";

const FLOAT_BYTES = 4;

/** Returns the bytes that attention sends in a step, forward and backward, on all ranks together. Collective. */
export async function sumAttentionBytesSent(
  ctx: Context,
  settings: Settings,
  results: readonly MetaResult[],
): Promise<number> {
  if (settings.method === "local" || ctx.size === 1) return 0;
  if (settings.method === "ring") return ringBytes(settings, ctx.size);
  const sentBytes = results.reduce((sum, { meta }) => {
    return sum + meta.bytesMoved.forward.sent + meta.bytesMoved.backward.sent;
  }, 0);
  const sentBytesByRank = await allGatherObject(ctx, sentBytes, { label: "bytes" });
  return sentBytesByRank.reduce((sum, bytes) => sum + bytes, 0);
}

/**
 * Returns the bytes of ring attention: keys and values to all other ranks in forward and backward, and the gradients.
 */
function ringBytes({ layers, batch, chunks, chunkLength, embedDim }: Settings, ranks: number): number {
  return layers * 3 * (ranks - 1) * 2 * batch * chunks * chunkLength * embedDim * FLOAT_BYTES;
}

// Cost of a training in closed form. Each multiply-add of the forward causes two more in the backward, one for each of
// the two products.

const TRAINING_TO_FORWARD_RATIO = 3;

/** Returns the number of chunks to which each chunk attends besides itself, at a step. */
function countAttendedChunks(step: number, { method, topK, chunks, warmup: warmupSteps }: ModelSettings): number {
  if (method === "ring") return chunks - 1;
  return method === "local" ? 0 : denseToSparse(step, { topK, chunks, steps: warmupSteps });
}

/** Returns the number of multiply-adds of a step, on all ranks together. */
export function multiplyAddsPerStep(step: number, settings: Settings): number {
  const { embedDim: e, layers, chunks, chunkLength, batch, method } = settings;
  const attendedKeys = (1 + countAttendedChunks(step, settings)) * chunkLength;
  const projectionAndMlpMultiplyAdds = (3 + 1 + 4 + 4) * e * e;
  const summaryMultiplyAdds = method === "meta" ? 2 * SUMMARY_HEADS * e : 0;
  const multiplyAddsPerToken =
    layers * (projectionAndMlpMultiplyAdds + 2 * attendedKeys * e + summaryMultiplyAdds) + WORDS_PER_TOKEN * e + 4 * e;
  return TRAINING_TO_FORWARD_RATIO * batch * chunks * chunkLength * multiplyAddsPerToken;
}

/** Returns the number of steps that a training can run within a budget of multiply-adds. */
export function stepsForBudget(multiplyAddBudget: number, settings: Settings): number {
  let [steps, multiplyAdds] = [0, multiplyAddsPerStep(0, settings)];
  while (multiplyAdds <= multiplyAddBudget) multiplyAdds += multiplyAddsPerStep(++steps, settings);
  return steps;
}
