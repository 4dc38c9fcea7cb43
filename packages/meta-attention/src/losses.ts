import {
  fromArray,
  OptionError,
  scope,
  type Tensor,
  checkTensor,
  defineOptions,
  formatValue,
  option,
  type OptionsOf,
} from "@mosaic/core";
import type { Meta } from "./meta.ts";
import { logSoftmax } from "./log-softmax.ts";
import { chosenChunksMask, visibilityMask } from "./route/router.ts";

// Each loss is a mean over all query chunks that have somewhere to attend, and each function returns this rank's part of it:
// the parts add up over the ranks of the sequence, as gradients do in `reduceGradients`.

/** Throws an OptionError unless `meta` is what a forward returned, a DisposedError if it was disposed. */
function checkMeta(where: string, meta: unknown): asserts meta is Meta {
  const { chosen, router } = (meta ?? {}) as Partial<Meta>;
  const { scores, routing, mass, chunks } = router ?? ({} as Partial<Meta["router"]>);
  const isChosenChunks =
    Array.isArray(chosen) && chosen.every((each) => Array.isArray(each) && each.every(Array.isArray));
  if (!isChosenChunks || !Array.isArray(chunks?.all) || typeof chunks.visibility?.count !== "function") {
    throw new OptionError({
      where,
      expected: "the meta object returned by HierarchicalMetaAttention.forward",
      received: formatValue(meta),
      remedy: "write const { out, meta } = await module.forward(x)",
    });
  }
  for (const x of [scores, routing, mass?.mean, mass?.peak]) checkTensor(where, x);
}

/** Query chunks of the whole sequence with somewhere to attend, over the batch. */
function countRoutedRows({ chosen, router }: Meta): number {
  const { all, visibility } = router.chunks;
  const rows = all.filter(({ index }) => visibility.count(index) > 0).length;
  return Math.max(1, rows * chosen.length);
}

/**
 * N · Σ_j f_j · P_j: f_j the share of all choices that fell on chunk j, P_j the mean of the routing weights to j. Smallest, 1,
 * when all chunks are chosen equally often (Fedus et al. 2021, "Switch Transformers", equation 4). Scalar, this rank's part.
 */
export function loadBalanceLoss(meta: Meta): Tensor {
  checkMeta("loadBalanceLoss", meta);
  const { routing, chunks } = meta.router;
  const numChunks = chunks.all.length;
  const counts = new Float32Array(numChunks);
  for (const chunksByQuery of meta.chosen)
    for (const chosenIndices of chunksByQuery) for (const j of chosenIndices) counts[j]!++;
  const total = counts.reduce((a, b) => a + b, 0);
  const loadCoefficients = counts.map((n) => (total === 0 ? 0 : (numChunks * n) / total / countRoutedRows(meta)));
  return scope(() => routing.mul(fromArray(routing.device, loadCoefficients, [numChunks])).sum());
}

/**
 * Mean entropy, in nats, of the routing distributions. Added to the loss it makes routing decided; subtracted, curious.
 * Scalar, this rank's part.
 */
export function entropyLoss(meta: Meta): Tensor {
  checkMeta("entropyLoss", meta);
  const { routing, scores, chunks } = meta.router;
  return scope(() =>
    routing
      .mul(logSoftmax(scores, visibilityMask(scores.device, chunks)))
      .sum()
      .scale(-1 / countRoutedRows(meta)),
  );
}

export const massLossOptions = defineOptions("massLoss", {
  /**
   * What counts of the attention of a query chunk on another: the largest share that any head and row gave it ("peak"), or
   * the mean, in which what one row cannot do without is lost among hundreds. Default "peak".
   */
  pool: option.oneOf(["peak", "mean"], { default: "peak" }),
});
/** What `massLoss` takes. */
export type MassLossOptions = OptionsOf<typeof massLossOptions>;

/**
 * −Σ_j m_j · ln w_j, mean over query chunks: w the routing renormalised over the chosen chunks, m the share of the attention
 * that fell on each of them (a constant). Teaches the router to foresee where attention falls; densely chosen chunks teach
 * most. After the indexer's loss of DeepSeek-V3.2's sparse attention (2025). Scalar, this rank's part.
 */
export function massLoss(meta: Meta, options?: MassLossOptions): Tensor {
  checkMeta("massLoss", meta);
  const { scores, chunks, mass } = meta.router;
  const { pool } = massLossOptions.parse(options);
  // 0 where a chunk was not chosen: what the mass there is does not count.
  return scope(() =>
    logSoftmax(scores, chosenChunksMask(scores.device, meta.chosen, chunks))
      .mul(mass[pool])
      .sum()
      .neg()
      .scale(1 / countRoutedRows(meta)),
  );
}
