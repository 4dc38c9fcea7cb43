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

// Each loss is a mean over all query chunks that may attend to another chunk. Each function returns this rank's part of
// it. The sum of the parts over the ranks of the sequence is the loss; `reduceGradients` sums gradients likewise.

/** Throws an OptionError unless `meta` was returned by a forward, a DisposedError if it was disposed. */
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

/**
 * Returns the number of query chunks of the whole sequence, over the batch, that may attend to another chunk; at least
 * 1.
 */
function countRoutedRows({ chosen, router }: Meta): number {
  const { all, visibility } = router.chunks;
  const rows = all.filter(({ index }) => visibility.count(index) > 0).length;
  return Math.max(1, rows * chosen.length);
}

/**
 * Computes N · Σ_j f_j · P_j, where f_j is the share of all choices that selected chunk j, and P_j the mean routing
 * weight of j. It is 1 if all chunks are chosen equally often, and larger if chunks that are chosen more often also
 * have larger weights (Fedus et al. 2021, "Switch Transformers", equation 4). Returns a scalar, this rank's part.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { HierarchicalMetaAttention, loadBalanceLoss } from "@mosaic/meta-attention";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new HierarchicalMetaAttention(ctx, { embedDim: 8, numHeads: 2, topK: 1, chunksPerRank: 4 });
 * using result = await attn.forward(randn(ctx, [1, 16, 8]));
 * using loss = loadBalanceLoss(result.meta);
 * // Some chunks are chosen more often than others.
 * (await loss.item()) > 1; // => true
 * ```
 * @throws OptionError unless `meta` is the result of a forward; DisposedError if it was disposed.
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
 * Computes the mean entropy, in nats, of the routing distributions. Added to the loss, it makes routing more decisive;
 * subtracted, more exploratory. Returns a scalar, this rank's part.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { HierarchicalMetaAttention, entropyLoss } from "@mosaic/meta-attention";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new HierarchicalMetaAttention(ctx, { embedDim: 8, numHeads: 2, topK: 1, chunksPerRank: 4 });
 * using result = await attn.forward(randn(ctx, [1, 16, 8]));
 * using loss = entropyLoss(result.meta);
 * // Each of the 4 chunks is routed to the other 3. Equal weights have the largest entropy, ln 3.
 * (await loss.item()) <= Math.log(3) + 1e-6; // => true
 * ```
 * @throws OptionError unless `meta` is the result of a forward; DisposedError if it was disposed.
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
   * How the attention of a query chunk to another chunk is pooled over heads and rows: by the maximum ("peak"), or by
   * the mean, in which a chunk that is essential to one of hundreds of rows has little weight. Default "peak".
   */
  pool: option.oneOf(["peak", "mean"], { default: "peak" }),
});
/** Options of `massLoss`. */
export type MassLossOptions = OptionsOf<typeof massLossOptions>;

/**
 * Computes −Σ_j m_j · ln w_j, averaged over query chunks, where w is the routing renormalized over the chosen chunks,
 * and m the share of the attention to each of them (a constant). Trains the router to predict the distribution of
 * attention; this is most effective if many chunks are chosen. After the indexer's loss of DeepSeek-V3.2's sparse
 * attention (2025). Returns a scalar, this rank's part.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { HierarchicalMetaAttention, massLoss } from "@mosaic/meta-attention";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new HierarchicalMetaAttention(ctx, { embedDim: 8, numHeads: 2, topK: 2, chunksPerRank: 4 });
 * using result = await attn.forward(randn(ctx, [1, 16, 8]));
 * using loss = massLoss(result.meta);
 * loss.backward();
 * [loss.shape, (await loss.item()) > 0]; // => [[], true]
 * ```
 * @throws OptionError unless `meta` is the result of a forward, and for unknown options or invalid values;
 * DisposedError if it was disposed.
 */
export function massLoss(meta: Meta, options?: MassLossOptions): Tensor {
  checkMeta("massLoss", meta);
  const { scores, chunks, mass } = meta.router;
  const { pool } = massLossOptions.parse(options);
  // The logarithm is 0 for chunks that were not chosen, so that their mass does not count.
  return scope(() =>
    logSoftmax(scores, chosenChunksMask(scores.device, meta.chosen, chunks))
      .mul(mass[pool])
      .sum()
      .neg()
      .scale(1 / countRoutedRows(meta)),
  );
}
