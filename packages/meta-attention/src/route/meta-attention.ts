import {
  type Context,
  concatenate,
  formatShape,
  Linear,
  Module,
  ShapeError,
  type Tensor,
  zeros,
  checkContext,
  checkTensor,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { checkHeads } from "../options.ts";
import { createPairMask, type ChunkVisibility, chunkVisibility } from "./choose.ts";

// B batch, N chunks, M length of a summary.

export const metaAttentionOptions = defineOptions("MetaAttention", {
  /** Length of a summary. */
  summaryDim: option.integer({ min: 1 }),
  /** Number of heads of the attention over summaries; a divisor of summaryDim. Default 4. */
  numHeads: option.integer({ min: 1, default: 4 }),
  /** Whether chunks attend, and are routed, only to earlier chunks. Default false. */
  causal: option.boolean({ default: false }),
});
/** Options of MetaAttention. */
export type MetaAttentionOptions = OptionsOf<typeof metaAttentionOptions>;

export const routeOptions = defineOptions("MetaAttention.forward", {
  /** Noise that is added to the scores, [B,N,N]. Default: none. */
  noise: option.tensor({ optional: true }),
  /** The chunks to which each chunk may be routed. Default: all others, or, if causal, all earlier ones. */
  visibility: option.custom("a ChunkVisibility", option.hasMethods<ChunkVisibility>("canAttend", "count"), {
    optional: true,
  }),
});
/** Options of one call of MetaAttention. */
export type RouteOptions = OptionsOf<typeof routeOptions>;

/** The routing of each chunk. */
export interface Routing extends Disposable {
  /**
   * Scores [B,N,N], row i for chunk i; −Infinity for chunks that it may not attend to: itself, and later ones if
   * causal.
   */
  readonly scores: Tensor;
  /**
   * Softmax of the scores, the routing distribution of each query chunk [B,N,N]. Rows sum to 1, or to 0 if a chunk may
   * attend to no other.
   */
  readonly routing: Tensor;
  /** Attention of summary i over all summaries, mean of the heads [B,N,N]. */
  readonly chunkAttention: Tensor;
  /** The summaries after that attention [B,N,M]. */
  readonly refinedSummaries: Tensor;
}

/**
 * Computes multi-head attention over the summaries of all chunks, and from it a routing distribution for each chunk:
 * how much chunk i should attend to chunk j. docs/algorithms.md has the formulas.
 *
 * Parameters: qkv_proj (in the layout [q|k|v]) and out_proj of the attention; query_proj and key_proj (without bias;
 * with equal weights initially) of the routing.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { MetaAttention } from "@mosaic/meta-attention";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using meta = new MetaAttention(ctx, { summaryDim: 8, numHeads: 2, causal: true });
 * using summaries = randn(ctx, [1, 3, 8]);
 * using routing = meta.forward(summaries);
 * const weights = await routing.routing.read();
 * weights[3]; // => 1
 * ```
 */
export class MetaAttention extends Module {
  readonly qkvProjection: Linear;
  readonly outProjection: Linear;
  readonly queryProjection: Linear;
  readonly keyProjection: Linear;
  readonly #ctx: Context;
  readonly #size: number;
  readonly #heads: number;
  readonly #causal: boolean;

  constructor(ctx: Context, options: MetaAttentionOptions) {
    super();
    checkContext("MetaAttention", ctx);
    const { summaryDim, numHeads, causal } = metaAttentionOptions.parse(options);
    checkHeads("MetaAttention", ["numHeads", "summaryDim"], numHeads, summaryDim);
    this.#ctx = ctx;
    this.#size = summaryDim;
    this.#heads = numHeads;
    this.#causal = causal;
    this.qkvProjection = this.addChild("qkv_proj", new Linear(ctx, summaryDim, 3 * summaryDim));
    this.outProjection = this.addChild("out_proj", new Linear(ctx, summaryDim, summaryDim));
    this.queryProjection = this.addChild("query_proj", new Linear(ctx, summaryDim, summaryDim));
    // A bias here would add the same value to all scores of a row, and would have no effect.
    this.keyProjection = this.addChild("key_proj", new Linear(ctx, summaryDim, summaryDim, { bias: false }));
    // Initially equal, so that chunks start by attending to similar chunks. Training then finds similar chunks much
    // sooner (measured on planted pairs: docs/decisions/0010-how-chunks-are-chosen.md).
    ctx.device.kernels.copy(this.keyProjection.weight, this.queryProjection.weight);
  }

  /** Computes the routing of all chunks from their summaries [B,N,M]. No communication. */
  forward(summaries: Tensor, options?: RouteOptions): Routing {
    this.#ctx.assertOpen("MetaAttention");
    checkTensor("MetaAttention.forward: summaries", summaries);
    const call = routeOptions.parse(options);
    const { noise, visibility = chunkVisibility(summaries.shape[1] ?? 0, { causal: this.#causal }) } = call;
    this.#checkInput(summaries, visibility);
    const { refinedSummaries, chunkAttention } = this.#refineSummaries(summaries.layerNorm(), visibility);
    const { scores, routing } = this.#route(this.#scores(refinedSummaries, visibility), { noise, visibility });
    const outputs = [scores, routing, chunkAttention, refinedSummaries];
    return {
      scores,
      routing,
      chunkAttention,
      refinedSummaries,
      [Symbol.dispose]: () => outputs.forEach((x) => x.dispose()),
    };
  }

  #refineSummaries(
    normalizedSummaries: Tensor,
    { chunks, causal }: ChunkVisibility,
  ): Pick<Routing, "refinedSummaries" | "chunkAttention"> {
    const qkv = this.qkvProjection.forward(normalizedSummaries);
    const [q, k, v] = [this.#head(qkv, 0), this.#head(qkv, 1), this.#head(qkv, 2)];
    const predicate = (i: number, l: number) => l <= i || !causal;
    const mask = createPairMask(this.#ctx, chunks, { predicate, valueIfTrue: 0, valueIfFalse: -Infinity });
    const scores = q.matmul(k.transpose(-2, -1)).scale((this.#size / this.#heads) ** -0.5);
    const weights = scores.add(mask).softmax();
    const mergedHeads = weights.matmul(v).permute([0, 2, 1, 3]).reshape(normalizedSummaries.shape);
    return {
      refinedSummaries: normalizedSummaries.add(this.outProjection.forward(mergedHeads)),
      chunkAttention: weights.mean(1),
    };
  }

  /** Returns part `partIndex` of [q|k|v] as heads [B,H,N,M/H]. */
  #head(qkv: Tensor, partIndex: number): Tensor {
    const { batch, chunks } = this.#sizes(qkv);
    const headFeatures = qkv.slice(-1, partIndex * this.#size, (partIndex + 1) * this.#size);
    return headFeatures.reshape([batch, chunks, this.#heads, this.#size / this.#heads]).permute([0, 2, 1, 3]);
  }

  /** Computes the scores of every chunk's query with every chunk's key. */
  #scores(refinedSummaries: Tensor, { causal }: ChunkVisibility): Tensor {
    const queries = this.queryProjection.forward(causal ? this.#shiftSummaries(refinedSummaries) : refinedSummaries);
    const keys = this.keyProjection.forward(refinedSummaries);
    return queries.matmul(keys.transpose(-2, -1)).scale(this.#size ** -0.5);
  }

  /**
   * Shifts the summaries by one chunk. Each chunk's query is the summary of the previous chunk, because its own depends
   * on tokens that must not be visible to its first queries.
   */
  #shiftSummaries(refinedSummaries: Tensor): Tensor {
    const { batch, chunks } = this.#sizes(refinedSummaries);
    const zeroSummary = zeros(this.#ctx, [batch, 1, this.#size]);
    return concatenate([zeroSummary, refinedSummaries.slice(1, 0, chunks - 1)], 1);
  }

  #route(
    unmaskedScores: Tensor,
    { noise, visibility: { chunks, canAttend } }: { noise: Tensor | undefined; visibility: ChunkVisibility },
  ): Pick<Routing, "scores" | "routing"> {
    const mask = createPairMask(this.#ctx, chunks, { predicate: canAttend, valueIfTrue: 0, valueIfFalse: -Infinity });
    const scores = unmaskedScores.add(noise ? mask.add(noise) : mask);
    return { scores, routing: scores.softmax() };
  }

  #sizes(x: Tensor): { batch: number; chunks: number } {
    return { batch: x.shape[0]!, chunks: x.shape[1]! };
  }

  #checkInput(summaries: Tensor, { chunks }: ChunkVisibility): void {
    checkTensor("MetaAttention", summaries);
    if (summaries.rank === 3 && summaries.shape[1] === chunks && summaries.shape[2] === this.#size) return;
    throw new ShapeError({
      where: "MetaAttention",
      expected: `summaries [B,${summaries.rank === 3 ? chunks : "N"},${this.#size}]`,
      received: formatShape(summaries.shape),
    });
  }
}
