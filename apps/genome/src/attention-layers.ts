import {
  type Context,
  type Linear,
  type Mask,
  Module,
  MultiAxisAttention,
  scope,
  type Tensor,
} from "@mosaic/attention";
import { HierarchicalMetaAttention, type MetaForwardOptions, type MetaResult } from "@mosaic/attention/meta";
import type { ModelSettings } from "./settings.ts";

/**
 * Factor on the usual scale of q·k. One key among thousands must stand out initially so that a model learns from it.
 */
const SCALE_FACTOR = 3;
const attentionScale = (headDim: number): number => SCALE_FACTOR * headDim ** -0.5;
/**
 * Every base attends to all others but not to itself. Queries and keys are equal initially, so that every base is most
 * similar to itself, and a masked base would attend to the one base that lacks the information.
 */
const excludeSelfMask: Mask = {
  name: "others",
  slices: (_, length) => [
    { q0: 1, q1: length, k0: 0, k1: length - 1, type: "causal" },
    { q0: 0, q1: length - 1, k0: 1, k1: length, type: "inverseCausal" },
  ],
};

/** Number of learned queries of a chunk's summary. */
export const SUMMARY_HEADS = 8;

/** Result of attention [B,S,E], and details of meta-attention. */
export interface AttentionOutput {
  readonly out: Tensor;
  readonly result: MetaResult | null;
}

/** Attention by one of the methods, for this rank's rows [B,S,E]. */
export abstract class AttentionLayer extends Module {
  abstract forward(x: Tensor, options?: MetaForwardOptions): Promise<AttentionOutput>;
}

/** Ring attention: every query attends to every other key. Keys and values are passed around the ranks. */
class RingAttentionLayer extends AttentionLayer {
  readonly #attention: MultiAxisAttention;

  constructor(ctx: Context, { embedDim, heads: numHeads }: ModelSettings) {
    super();
    const options = { embedDim, numHeads, scale: attentionScale(embedDim / numHeads), mask: excludeSelfMask };
    this.#attention = this.addChild(
      "inner",
      new MultiAxisAttention(ctx, { ...options, attentionAxis: 1, backend: "ring" }),
    );
    initializeQkEqual(ctx, this.#attention.qkvProjection, embedDim);
  }

  async forward(x: Tensor): Promise<AttentionOutput> {
    return { out: this.#attention.forward(x), result: null };
  }
}

/** Local attention: every query attends to its own chunk. The chunks of a rank form a separate tensor axis. */
class LocalAttentionLayer extends AttentionLayer {
  readonly #attention: MultiAxisAttention;
  readonly #chunkLength: number;

  constructor(ctx: Context, { embedDim, heads: numHeads, chunkLength }: ModelSettings) {
    super();
    const options = { embedDim, numHeads, scale: attentionScale(embedDim / numHeads), mask: excludeSelfMask };
    this.#attention = this.addChild(
      "inner",
      new MultiAxisAttention(ctx, { ...options, attentionAxis: 2, backend: "local" }),
    );
    this.#chunkLength = chunkLength;
    initializeQkEqual(ctx, this.#attention.qkvProjection, embedDim);
  }

  async forward(x: Tensor): Promise<AttentionOutput> {
    const [batch, rows, embedDim] = x.shape as [number, number, number];
    const chunkedShape = [batch, rows / this.#chunkLength, this.#chunkLength, embedDim];
    return { out: scope(() => this.#attention.forward(x.reshape(chunkedShape)).reshape(x.shape)), result: null };
  }
}

/** Meta-attention: every query attends to its own chunk and to those that the router selects for it. */
class MetaAttentionLayer extends AttentionLayer {
  readonly #metaAttention: HierarchicalMetaAttention;

  constructor(ctx: Context, { embedDim, heads: numHeads, topK, chunks, warmup: warmupSteps }: ModelSettings) {
    super();
    const options = {
      embedDim,
      numHeads,
      summaryHeads: SUMMARY_HEADS,
      topK,
      chunksPerRank: chunks / ctx.mesh.shape["sp"]!,
      warmupSteps,
      scale: attentionScale(embedDim / numHeads),
      mask: excludeSelfMask,
      combine: "exact",
      gate: false,
      certificate: false,
    } as const;
    this.#metaAttention = this.addChild("inner", new HierarchicalMetaAttention(ctx, options));
    initializeQkEqual(ctx, this.#metaAttention.qkvProjection, embedDim);
  }

  async forward(x: Tensor, options: MetaForwardOptions = {}): Promise<AttentionOutput> {
    const result = await this.#metaAttention.forward(x, options);
    return { out: result.out, result };
  }
}

/** Creates an attention layer of the method that the settings name. */
export function createAttentionLayer(ctx: Context, settings: ModelSettings): AttentionLayer {
  if (settings.method === "ring") return new RingAttentionLayer(ctx, settings);
  if (settings.method === "local") return new LocalAttentionLayer(ctx, settings);
  return new MetaAttentionLayer(ctx, settings);
}

/**
 * Initializes queries and keys with equal weights, so that a base initially attends to bases with similar surroundings.
 * The model finds repeats thousands of steps earlier than with independent weights.
 */
function initializeQkEqual(ctx: Context, { weight, bias }: Linear, embedDim: number): void {
  scope(() => {
    for (const parameter of [weight, bias!]) {
      ctx.device.kernels.copy(parameter.slice(0, embedDim, 2 * embedDim), parameter.slice(0, 0, embedDim));
    }
  });
}
