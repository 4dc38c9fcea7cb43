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

/** Times the usual scale of q·k: one key among thousands must stand out from the start for a model to learn from it. */
const SCALE_FACTOR = 3;
const attentionScale = (headDim: number): number => SCALE_FACTOR * headDim ** -0.5;
/**
 * Every base sees all others, and not itself: queries and keys begin equal, so nothing is so like a base as itself, and a
 * hidden one would read, of all bases, the one that lacks it.
 */
const excludeSelfMask: Mask = {
  name: "others",
  slices: (_, length) => [
    { q0: 1, q1: length, k0: 0, k1: length - 1, type: "causal" },
    { q0: 0, q1: length - 1, k0: 1, k1: length, type: "inverseCausal" },
  ],
};

/** Learned queries of a chunk's summary. */
export const SUMMARY_HEADS = 8;

/** Attention's result [B,S,E], and what meta-attention did for it. */
export interface AttentionOutput {
  readonly out: Tensor;
  readonly result: MetaResult | null;
}

/** Attention of one of the methods, over this rank's rows [B,S,E]. */
export abstract class AttentionLayer extends Module {
  abstract forward(x: Tensor, options?: MetaForwardOptions): Promise<AttentionOutput>;
}

/** Every query sees every other key: keys and values go around the ranks. */
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

/** Every query sees its own chunk: the chunks of a rank are an axis of their own. */
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

/** Every query sees its own chunk and those that the router chose for it. */
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

/** Attention of the method that the settings name. */
export function createAttentionLayer(ctx: Context, settings: ModelSettings): AttentionLayer {
  if (settings.method === "ring") return new RingAttentionLayer(ctx, settings);
  if (settings.method === "local") return new LocalAttentionLayer(ctx, settings);
  return new MetaAttentionLayer(ctx, settings);
}

/**
 * Queries and keys begin equal, so that a base looks at first at bases with surroundings like its own: what repeats, it
 * finds thousands of steps sooner than from nothing.
 */
function initializeQkEqual(ctx: Context, { weight, bias }: Linear, embedDim: number): void {
  scope(() => {
    for (const parameter of [weight, bias!]) {
      ctx.device.kernels.copy(parameter.slice(0, embedDim, 2 * embedDim), parameter.slice(0, 0, embedDim));
    }
  });
}
