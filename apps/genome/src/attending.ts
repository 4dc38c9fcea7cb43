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
const SHARPNESS = 3;
const sharp = (headDim: number): number => SHARPNESS * headDim ** -0.5;
/**
 * Every base sees all others, and not itself: queries and keys begin equal, so nothing is so like a base as itself, and a
 * hidden one would read, of all bases, the one that lacks it.
 */
const others: Mask = {
  name: "others",
  slices: (_, length) => [
    { q0: 1, q1: length, k0: 0, k1: length - 1, type: "causal" },
    { q0: 0, q1: length - 1, k0: 1, k1: length, type: "inverseCausal" },
  ],
};

/** Learned queries of a chunk's summary. */
export const SUMMARY_HEADS = 8;

/** Attention's result [B,S,E], and what meta-attention did for it. */
export interface Attended {
  readonly out: Tensor;
  readonly result: MetaResult | null;
}

/** Attention of one of the methods, over this rank's rows [B,S,E]. */
export abstract class Attending extends Module {
  abstract forward(x: Tensor, options?: MetaForwardOptions): Promise<Attended>;
}

/** Every query sees every other key: keys and values go around the ranks. */
class RingAttending extends Attending {
  readonly #inner: MultiAxisAttention;

  constructor(ctx: Context, { embedDim, heads: numHeads }: ModelSettings) {
    super();
    const options = { embedDim, numHeads, scale: sharp(embedDim / numHeads), mask: others };
    this.#inner = this.addChild(
      "inner",
      new MultiAxisAttention(ctx, { ...options, attentionAxis: 1, backend: "ring" }),
    );
    lookAtTheAlike(ctx, this.#inner.qkvProjection, embedDim);
  }

  async forward(x: Tensor): Promise<Attended> {
    return { out: this.#inner.forward(x), result: null };
  }
}

/** Every query sees its own chunk: the chunks of a rank are an axis of their own. */
class LocalAttending extends Attending {
  readonly #inner: MultiAxisAttention;
  readonly #chunkLength: number;

  constructor(ctx: Context, { embedDim, heads: numHeads, chunkLength }: ModelSettings) {
    super();
    const options = { embedDim, numHeads, scale: sharp(embedDim / numHeads), mask: others };
    this.#inner = this.addChild("inner", new MultiAxisAttention(ctx, { ...options, attentionAxis: 2 }));
    this.#chunkLength = chunkLength;
    lookAtTheAlike(ctx, this.#inner.qkvProjection, embedDim);
  }

  async forward(x: Tensor): Promise<Attended> {
    const [batch, rows, embed] = x.shape as [number, number, number];
    const chunks = [batch, rows / this.#chunkLength, this.#chunkLength, embed];
    return { out: scope(() => this.#inner.forward(x.reshape(chunks)).reshape(x.shape)), result: null };
  }
}

/** Every query sees its own chunk and those that the router chose for it. */
class MetaAttending extends Attending {
  readonly #inner: HierarchicalMetaAttention;

  constructor(ctx: Context, { embedDim, heads: numHeads, topK, chunks, warmup: warmupSteps }: ModelSettings) {
    super();
    const options = {
      embedDim,
      numHeads,
      summaryHeads: SUMMARY_HEADS,
      topK,
      chunksPerRank: chunks / ctx.mesh.shape["sp"]!,
      warmupSteps,
      scale: sharp(embedDim / numHeads),
      mask: others,
      combine: "exact",
      gate: false,
      certificate: false,
    } as const;
    this.#inner = this.addChild("inner", new HierarchicalMetaAttention(ctx, options));
    lookAtTheAlike(ctx, this.#inner.qkvProjection, embedDim);
  }

  async forward(x: Tensor, options: MetaForwardOptions = {}): Promise<Attended> {
    const result = await this.#inner.forward(x, options);
    return { out: result.out, result };
  }
}

/** Attention of the method that the settings name. */
export function attendingOf(ctx: Context, settings: ModelSettings): Attending {
  if (settings.method === "ring") return new RingAttending(ctx, settings);
  if (settings.method === "local") return new LocalAttending(ctx, settings);
  return new MetaAttending(ctx, settings);
}

/**
 * Queries and keys begin equal, so that a base looks at first at bases with surroundings like its own: what repeats, it
 * finds thousands of steps sooner than from nothing.
 */
function lookAtTheAlike(ctx: Context, { weight, bias }: Linear, embed: number): void {
  scope(() => {
    for (const parameter of [weight, bias!]) {
      ctx.device.kernels.copy(parameter.slice(0, embed, 2 * embed), parameter.slice(0, 0, embed));
    }
  });
}
