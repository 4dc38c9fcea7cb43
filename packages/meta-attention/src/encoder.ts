// Given the order of n weights that sum to 1, their maximum, Gini coefficient and top-5 mass are linear in the weights.
// The host sorts the weights and returns the coefficients of this linear map, so that the device computes the
// statistics and their derivatives.
import {
  concatenate,
  type Context,
  createParameter,
  formatShape,
  fromArray,
  full,
  Linear,
  Module,
  scope,
  ShapeError,
  type Tensor,
  checkContext,
  defineOptions,
  option,
  type OptionsOf,
  checkTensor,
  expectValue,
} from "@mosaic/core";
import type { Chunks } from "./chunks.ts";
import { captureGradMode, ResourceStack } from "./tensor-views.ts";
import { checkHeads } from "./options.ts";

/** Number of statistics that depend on the order. */
const NUM_ORDER_STATISTICS = 3;
const NUM_TOP_WEIGHTS = 5;

/**
 * Computes the coefficients [B,S,3] of maximum, Gini coefficient and mass of the five largest, for weights [B,S] whose
 * rows sum to 1. Gini = Σ (2·rank − n − 1)/n · a, with ranks 1 … n in ascending order of a, and ties in the order of
 * their indices.
 */
export function orderCoefficients(weights: Float32Array, batch: number): Float32Array {
  const n = weights.length / batch;
  const result = new Float32Array(weights.length * NUM_ORDER_STATISTICS);
  for (let b = 0; b < batch; b++) {
    const order = argsort(weights.subarray(b * n, (b + 1) * n));
    for (let rank = 0; rank < n; rank++) {
      const offset = (b * n + order[rank]!) * NUM_ORDER_STATISTICS;
      result[offset] = rank === n - 1 ? 1 : 0;
      result[offset + 1] = (2 * (rank + 1) - n - 1) / n;
      result[offset + 2] = rank >= n - NUM_TOP_WEIGHTS ? 1 : 0;
    }
  }
  return result;
}

/**
 * Returns the indices that sort the values in ascending order. Value and index are packed into one number, because a
 * typed array sorts natively.
 */
function argsort(values: Float32Array): Uint32Array {
  const n = values.length;
  if (n > 2 ** 21) return Uint32Array.from(values.keys()).sort((a, b) => values[a]! - values[b]! || a - b);
  const bits = new Uint32Array(Float32Array.from(values).buffer);
  // The bits of floats ≥ 0 have the order of the floats. 32 bits of value and up to 21 of index fit in 53.
  const keys = Float64Array.from({ length: n }, (_, index) => bits[index]! * 2 ** 21 + index).sort();
  return Uint32Array.from(keys, (key) => key % 2 ** 21);
}

// B batch, S tokens of a chunk, E embedding, G queries.

export const chunkSummaryEncoderOptions = defineOptions("ChunkSummaryEncoder", {
  /** E, the length of a token's embedding. */
  embedDim: option.integer({ min: 1 }),
  /** Length of a summary. Default 64. */
  summaryDim: option.integer({ min: 1, default: 64 }),
  /** G, the number of learned queries; a divisor of embedDim. Default 4. */
  numHeads: option.integer({ min: 1, default: 4 }),
});
/** Options of ChunkSummaryEncoder. */
export type ChunkSummaryEncoderOptions = OptionsOf<typeof chunkSummaryEncoderOptions>;

/** The result of the learned queries' attention over a chunk. */
export interface PooledChunk extends Disposable {
  /** [B,E]. */
  readonly content: Tensor;
  /** Attention weights of the tokens, mean of the queries [B,S]; each row sums to 1. */
  readonly weights: Tensor;
}

/** The summary of a chunk, [B,summaryDim], and the attention weights of its tokens, [B,S]. */
export interface ChunkSummary {
  readonly summary: Tensor;
  readonly weights: Tensor;
}

const LOG_EPSILON = 1e-8;

/**
 * Summarizes a chunk by its content, from learned queries that attend to its tokens, and by statistics of that
 * attention (entropy, maximum, Gini, mass of the five largest weights, in this order). Independent of the order of the
 * tokens. No intermediate is larger than the chunk itself. docs/algorithms.md has the formulas. Computes in float32 for
 * any dtype of the tokens.
 *
 * Parameters: query [G,E], value [G,E/G,E], and the layers statistics_in, statistics_out and combine.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { ChunkSummaryEncoder } from "@mosaic/meta-attention";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using encoder = new ChunkSummaryEncoder(ctx, { embedDim: 16, summaryDim: 8 });
 * using chunk = randn(ctx, [2, 100, 16]);
 * const { summary, weights } = await encoder.forward(chunk);
 * summary.shape; // => [2, 8]
 * weights.shape; // => [2, 100]
 * ```
 */
export class ChunkSummaryEncoder extends Module {
  readonly embedDim: number;
  readonly summaryDim: number;
  readonly query: Tensor;
  readonly value: Tensor;
  readonly statisticsIn: Linear;
  readonly statisticsOut: Linear;
  readonly combine: Linear;
  readonly #ctx: Context;

  constructor(ctx: Context, options: ChunkSummaryEncoderOptions) {
    super();
    checkContext("ChunkSummaryEncoder", ctx);
    const { embedDim, summaryDim, numHeads } = chunkSummaryEncoderOptions.parse(options);
    checkHeads("ChunkSummaryEncoder", ["numHeads", "embedDim"], numHeads, embedDim);
    this.#ctx = ctx;
    this.embedDim = embedDim;
    this.summaryDim = summaryDim;
    const bound = embedDim ** -0.5;
    const normalInit = { kind: "normal", mean: 0, std: 1 } as const;
    const uniformInit = { kind: "uniform", low: -bound, high: bound } as const;
    const headDim = embedDim / numHeads;
    this.query = this.addParameter("query", createParameter(ctx, [numHeads, embedDim], { initial: normalInit }));
    this.value = this.addParameter(
      "value",
      createParameter(ctx, [numHeads, headDim, embedDim], { initial: uniformInit }),
    );
    this.statisticsIn = this.addChild("statistics_in", new Linear(ctx, 1 + NUM_ORDER_STATISTICS, summaryDim));
    this.statisticsOut = this.addChild("statistics_out", new Linear(ctx, summaryDim, summaryDim));
    this.combine = this.addChild("combine", new Linear(ctx, embedDim + summaryDim, summaryDim));
  }

  /**
   * Computes the summary of x [B,S,E]. Waits for the device once, to sort the weights. No communication.
   *
   * @throws ShapeError for another length of the embedding, or an empty chunk.
   */
  async forward(x: Tensor): Promise<ChunkSummary> {
    const withGradMode = captureGradMode();
    using pooledChunk = this.pool(x);
    const values = await pooledChunk.weights.read();
    const summary = withGradMode(() => this.summarize(pooledChunk, values));
    return { summary, weights: pooledChunk.weights.detach() };
  }

  /** Computes the part that does not need the order of the weights. chunk [B,S,E] of any dtype. */
  pool(chunk: Tensor): PooledChunk {
    this.#ctx.assertOpen("ChunkSummaryEncoder");
    this.#checkInput(chunk);
    const [numHeads] = this.query.shape;
    const { content, weights } = scope(() => {
      const x = chunk.to("float32");
      const scores = this.query.matmul(x.transpose(1, 2)).scale(this.embedDim ** -0.5);
      // The weights of a chunk are a softmax over its own rows.
      scores.sharding = null;
      const attention = scores.softmax();
      const pooledTokens = attention.matmul(x).reshape([x.shape[0]!, numHeads!, 1, this.embedDim]);
      const values = pooledTokens.matmul(this.value.transpose(-2, -1));
      return { content: values.reshape([x.shape[0]!, this.embedDim]), weights: attention.mean(1) };
    });
    return {
      content,
      weights,
      [Symbol.dispose]: () => [content, weights].forEach((tensor) => tensor.dispose()),
    };
  }

  /**
   * Computes the rest: the summary [B,summaryDim]. `values` are the values of the weights. With null, on a device
   * without values, the statistics that depend on their order are 0.
   */
  summarize(pooledChunk: PooledChunk, values: Float32Array | null): Tensor {
    const { content, weights } = (pooledChunk ?? {}) as Partial<PooledChunk>;
    checkTensor("ChunkSummaryEncoder: content", content, 2);
    checkTensor("ChunkSummaryEncoder: weights", weights, 2);
    const areValuesValid = values === null || (values instanceof Float32Array && values.length === weights.size);
    expectValue(
      "ChunkSummaryEncoder: values",
      areValuesValid,
      `a Float32Array of ${weights.size} values, one per weight, or null`,
      values,
    );
    return scope(() => {
      const statistics = this.#statistics(weights, values);
      const statisticsEmbedding = this.statisticsOut.forward(this.statisticsIn.forward(statistics).relu());
      return this.combine.forward(concatenate([content, statisticsEmbedding], -1));
    });
  }

  /** Returns [B,4]: entropy, maximum, Gini, top-5 mass. */
  #statistics(weights: Tensor, values: Float32Array | null): Tensor {
    const [batch, rows] = weights.shape as [number, number];
    const coefficients = values
      ? orderCoefficients(values, batch)
      : new Float32Array(batch * rows * NUM_ORDER_STATISTICS);
    const order = fromArray(this.#ctx, coefficients, [batch, rows, NUM_ORDER_STATISTICS]);
    const orderStatistics = weights.reshape([batch, 1, rows]).matmul(order).reshape([batch, NUM_ORDER_STATISTICS]);
    const logWeights = weights.add(full(this.#ctx, [1], LOG_EPSILON)).log();
    const entropy = weights.mul(logWeights).sum(-1, { keepDims: true }).neg();
    return concatenate([entropy, orderStatistics], -1);
  }

  #checkInput(x: Tensor): void {
    checkTensor("ChunkSummaryEncoder", x);
    if (x.rank === 3 && x.shape[1]! > 0 && x.shape[2] === this.embedDim) return;
    throw new ShapeError({
      where: "ChunkSummaryEncoder",
      expected: `x [B,S,${this.embedDim}] with S ≥ 1`,
      received: formatShape(x.shape),
    });
  }
}

/** Partly computed summaries of a rank's chunks, which wait for the order of the weights. */
export interface PendingSummaries extends Disposable {
  /** The weights that the host must read, in the order in which `finish` expects their values. */
  readonly weights: readonly Tensor[];
  /** Returns the summaries [c,B,M]. `values` are the values of the weights, or null on a device without values. */
  finish(values: readonly Float32Array[] | null): Tensor;
}

/**
 * Starts to summarize each own chunk of x [B,S,E]. Chunks of equal length that follow one another are processed
 * together.
 */
export function startSummaries(encoder: ChunkSummaryEncoder, x: Tensor, { own }: Chunks): PendingSummaries {
  const resources = new ResourceStack();
  const [batch, , embedDim] = x.shape as [number, number, number];
  const length = own[0]?.length ?? 0;
  const hasEqualChunks =
    own.length > 0 && own.every((chunk, i) => chunk.length === length && chunk.offset === i * length);
  const chunkInputs = hasEqualChunks
    ? [resources.use(x.reshape([batch * own.length, length, embedDim]))]
    : own.map((chunk) => resources.use(x.slice(1, chunk.offset, chunk.offset + chunk.length)));
  const pooledChunks = chunkInputs.map((chunkInput) => resources.use(encoder.pool(chunkInput)));
  return {
    weights: pooledChunks.map(({ weights }) => weights),
    finish(values) {
      using temporaries = new ResourceStack();
      const summaries = pooledChunks.map((chunk, i) => temporaries.use(encoder.summarize(chunk, values && values[i]!)));
      if (hasEqualChunks) {
        const summariesByBatch = temporaries.use(summaries[0]!.reshape([batch, own.length, encoder.summaryDim]));
        return summariesByBatch.permute([1, 0, 2]);
      }
      if (summaries.length === 0) return x.device.empty([0, batch, encoder.summaryDim], "float32");
      return concatenate(
        summaries.map((summary) => temporaries.use(summary.reshape([1, batch, encoder.summaryDim]))),
        0,
      );
    },
    [Symbol.dispose]: () => resources[Symbol.dispose](),
  };
}
