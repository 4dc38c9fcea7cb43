import { type Context, fromArray, Linear, Module, scope, type Tensor } from "@mosaic/attention";
import { type MetaForwardOptions, type MetaResult } from "@mosaic/attention/meta";
import { Embedding, MLP, ModuleList, RMSNorm } from "@mosaic/attention/nn";
import { type AttentionLayer, createAttentionLayer } from "./attention-layers.ts";
import type { ModelSettings } from "./settings.ts";
import { createUnmaskedRowIndicators, NUM_EMBEDDINGS } from "./genome.ts";

const NUM_BASES = 4;

/** Predictions for each base, and details of meta-attention. Disposing the output disposes all its tensors. */
export interface ModelOutput extends Disposable {
  /** [B,S,4], this rank's rows. */
  readonly logits: Tensor;
  /** One result for each layer with "meta", otherwise empty. */
  readonly results: readonly MetaResult[];
}

/** This rank's rows: the words around each base [B,S,W], and each base's position in its chunk [S]. */
export interface Tokens {
  readonly tokenIds: Tensor;
  readonly positions: Tensor;
}

class Block extends Module {
  readonly attention: AttentionLayer;
  readonly #attentionNorm: RMSNorm;
  readonly #mlpNorm: RMSNorm;
  readonly #mlp: MLP;

  constructor(ctx: Context, settings: ModelSettings) {
    super();
    const { embedDim } = settings;
    this.#attentionNorm = this.addChild("norm1", new RMSNorm(ctx, embedDim));
    this.attention = this.addChild("attention", createAttentionLayer(ctx, settings));
    this.#mlpNorm = this.addChild("norm2", new RMSNorm(ctx, embedDim));
    this.#mlp = this.addChild("mlp", new MLP(ctx, { embedDim }));
  }

  async forward(x: Tensor, options: MetaForwardOptions): Promise<{ out: Tensor; result: MetaResult | null }> {
    using normalizedInput = this.#attentionNorm.forward(x);
    const { out: attentionOut, result } = await this.attention.forward(normalizedInput, options);
    const out = scope(() => {
      const attentionResidual = x.add(attentionOut);
      return attentionResidual.add(this.#mlp.forward(this.#mlpNorm.forward(attentionResidual)));
    });
    if (!result) attentionOut.dispose();
    return { out, result };
  }
}

/** Initializes embeddings of masked words with 0, so that tokens that differ only in masked words are similar. */
function zeroMaskedEmbeddings(ctx: Context, { weight }: Embedding): void {
  using unmaskedRowIndicators = fromArray(ctx, createUnmaskedRowIndicators(), [NUM_EMBEDDINGS, 1]);
  ctx.device.kernels.binary("mul", weight, weight, unmaskedRowIndicators);
}

/**
 * Small transformer that predicts the base at each position. Its inputs are the words around the base and the base's
 * position in its chunk. Layers of attention and MLP are followed by four logits.
 */
export class GenomeModel extends Module {
  readonly blocks: ModuleList<Block>;
  readonly #tokenEmbedding: Embedding;
  readonly #positionEmbedding: Embedding;
  readonly #norm: RMSNorm;
  readonly #head: Linear;

  constructor(ctx: Context, settings: ModelSettings) {
    super();
    const { embedDim, layers, chunkLength } = settings;
    this.#tokenEmbedding = this.addChild("words", new Embedding(ctx, NUM_EMBEDDINGS, embedDim, { std: 0.5 }));
    zeroMaskedEmbeddings(ctx, this.#tokenEmbedding);
    this.#positionEmbedding = this.addChild("places", new Embedding(ctx, chunkLength, embedDim, { std: 0.02 }));
    const blocks = Array.from({ length: layers }, () => new Block(ctx, settings));
    this.blocks = this.addChild("blocks", new ModuleList(blocks));
    this.#norm = this.addChild("norm", new RMSNorm(ctx, embedDim));
    this.#head = this.addChild("head", new Linear(ctx, embedDim, NUM_BASES));
  }

  /** Computes the predictions. Collective: every rank passes its rows. */
  async forward({ tokenIds, positions }: Tokens, options: MetaForwardOptions = {}): Promise<ModelOutput> {
    let x = scope(() => this.#tokenEmbedding.forward(tokenIds).sum(2).add(this.#positionEmbedding.forward(positions)));
    const results: MetaResult[] = [];
    for (const block of this.blocks) {
      using previousHidden = x;
      const { out, result } = await block.forward(previousHidden, options);
      x = out;
      if (result) results.push(result);
    }
    using lastHidden = x;
    const logits = scope(() => this.#head.forward(this.#norm.forward(lastHidden)));
    return {
      logits,
      results,
      [Symbol.dispose]: () => [logits, ...results].forEach((disposable) => disposable[Symbol.dispose]()),
    };
  }
}
