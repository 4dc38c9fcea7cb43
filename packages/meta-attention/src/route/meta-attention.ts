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
  /** Heads of the attention over summaries; a divisor of summaryDim. Default 4. */
  numHeads: option.integer({ min: 1, default: 4 }),
  /** Chunks attend, and are routed, only to those before them. Default false. */
  causal: option.boolean({ default: false }),
});
/** What MetaAttention takes. */
export type MetaAttentionOptions = OptionsOf<typeof metaAttentionOptions>;

export const routeOptions = defineOptions("MetaAttention.forward", {
  /** Added to the scores, [B,N,N]. Default: nothing. */
  noise: option.tensor({ optional: true }),
  /** Which chunks may be routed to which. Default: all to all others, or, if causal, to those before them. */
  visibility: option.custom("a ChunkVisibility", option.hasMethods<ChunkVisibility>("canAttend", "count"), {
    optional: true,
  }),
});
/** What one call of MetaAttention may be given. */
export type RouteOptions = OptionsOf<typeof routeOptions>;

/** Where each chunk should attend. */
export interface Routing extends Disposable {
  /** Scores [B,N,N], row i those of chunk i; −Infinity where it may not attend: at itself, or ahead if causal. */
  readonly scores: Tensor;
  /** Their softmax, the routing distribution of each query chunk [B,N,N]: rows sum to 1, or to 0 with nowhere to attend. */
  readonly routing: Tensor;
  /** Attention of summary i over all summaries, mean of the heads [B,N,N]. */
  readonly chunkAttention: Tensor;
  /** The summaries after that attention [B,N,M]. */
  readonly refinedSummaries: Tensor;
}

/**
 * Multi-head attention over the summaries of all chunks, and from it a routing distribution for each chunk: how much chunk i
 * should attend to chunk j. docs/algorithms.md has the formulas.
 *
 * Parameters: qkv_proj (laid out [q|k|v]) and out_proj of the attention; query_proj and key_proj (no
 * bias; equal at first) of the routing.
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
    // A bias here would add the same to all scores of a row: it could learn nothing.
    this.keyProjection = this.addChild("key_proj", new Linear(ctx, summaryDim, summaryDim, { bias: false }));
    // Equal at first, so that chunks begin by looking at those like themselves: what is alike, training finds far sooner
    // (measured on planted pairs: docs/decisions/0010-how-chunks-are-chosen.md).
    ctx.device.kernels.copy(this.keyProjection.weight, this.queryProjection.weight);
  }

  /** Summaries [B,N,M] of all chunks → where each should attend. Communicates nothing. */
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

  /** Part of [q|k|v] as heads [B,H,N,M/H]. */
  #head(qkv: Tensor, partIndex: number): Tensor {
    const { batch, chunks } = this.#sizes(qkv);
    const headFeatures = qkv.slice(-1, partIndex * this.#size, (partIndex + 1) * this.#size);
    return headFeatures.reshape([batch, chunks, this.#heads, this.#size / this.#heads]).permute([0, 2, 1, 3]);
  }

  /** Every chunk's query against every chunk's key. */
  #scores(refinedSummaries: Tensor, { causal }: ChunkVisibility): Tensor {
    const queries = this.queryProjection.forward(causal ? this.#shiftSummaries(refinedSummaries) : refinedSummaries);
    const keys = this.keyProjection.forward(refinedSummaries);
    return queries.matmul(keys.transpose(-2, -1)).scale(this.#size ** -0.5);
  }

  /** Each chunk's query is the summary of the one before: its own has seen tokens that its first queries must not. */
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
