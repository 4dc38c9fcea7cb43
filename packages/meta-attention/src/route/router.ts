import { add, type Context, randn, softmax, type Tensor } from "@mosaic/core";
import type { AttendPlan, Combine } from "../attend/plan.ts";
import type { Chunks } from "../chunks.ts";
import { ownRowsOf } from "../runs.ts";
import type { Chosen } from "./choose.ts";
import { type Gathered, gatherSummaries } from "./gather.ts";
import { logSoftmax } from "./log-softmax.ts";
import type { MetaAttention, Routing } from "./meta-attention.ts";
import { chosenMask, reachMask } from "./score-masks.ts";

/** Normal noise on the scores: that of a module and a step, apart from what parameters and ranks draw. */
export interface NoiseSpec {
  readonly std: number;
  readonly stream: number;
  readonly step: number;
}

/** Where each chunk should look, the same on every rank, and what was gathered to know it [N,B,W]. */
export interface Routed {
  readonly routing: Routing;
  readonly gathered: Tensor;
}

/** Gathers summaries and routes by them. */
export function routeBy(
  metaAttention: MetaAttention,
  own: Gathered,
  { plan, noise }: { plan: AttendPlan; noise: NoiseSpec | null },
): Routed {
  const { ctx, group, label, chunks } = plan;
  const gathered = gatherSummaries(own, { chunks, group, label });
  using summaries = gathered.slice(2, 0, own.summaries.shape[2]);
  using byBatch = summaries.permute([1, 0, 2]);
  const { reach } = chunks;
  if (!noise) return { routing: metaAttention.forward(byBatch, { reach }), gathered };
  using drawn = draw(ctx, noise, [byBatch.shape[0]!, reach.chunks, reach.chunks]);
  return { routing: metaAttention.forward(byBatch, { reach, noise: drawn }), gathered };
}

/** The same on every rank. */
function draw(ctx: Context, { std, stream, step }: NoiseSpec, shape: readonly number[]): Tensor {
  const seed = (ctx.seed + Math.imul(stream + 1, 0x85ebca6b)) >>> 0;
  return randn(ctx, shape, { std, seed, stream: step });
}

/** What the attention takes of the router, [B,c,N]: weights of the chosen if soft, logarithms of the distribution if exact. */
export function routerNumbers(
  ctx: Context,
  { scores }: Routing,
  { combine, chosen, chunks }: { combine: Combine; chosen: Chosen; chunks: Chunks },
): Tensor {
  using own = ownRowsOf(scores, chunks);
  if (combine === "exact") {
    using reachable = reachMask(ctx, chunks);
    return logSoftmax(own, reachable);
  }
  using mask = chosenMask(ctx, chosen, chunks);
  using masked = add(own, mask);
  return softmax(masked);
}
