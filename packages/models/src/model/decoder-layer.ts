import {
  type AttentionBackend,
  type AttentionCache,
  type Context,
  defineOptions,
  type DType,
  masks,
  Module,
  MultiAxisAttention,
  option,
  type OptionsOf,
  type Placement,
  type PlacementName,
  type Tensor,
} from "@mosaic/core";
import { GeGLU, RMSNorm, RotaryEmbedding, SwiGLU } from "@mosaic/nn";
import type { LayerConfig, ModelConfig } from "../config/config.ts";
import type { RopeConfig } from "../config/rope.ts";

/** Settings for running a model on a mesh. */
export interface ModelSettings {
  readonly backend: string | AttentionBackend | undefined;
  readonly placement: PlacementName | Placement;
  readonly dtype: DType;
}

/** The caches of all layers, for the sequences of one call. */
export interface DecoderCache {
  layer(index: number): AttentionCache;
}

export const modelForwardOptions = defineOptions("CausalLM.forward", {
  /** Length of the whole sequence over all shards. Required if shards are unequal. Default: local rows times shards. */
  sequenceLength: option.integer({ min: 0, optional: true }),
  /** Placement of the sequence in this call: how it is divided into shards. Default: the model's. */
  placement: option.placement({ optional: true }),
  /**
   * The keys that are visible to each query, in all layers, such as causal documents packed in a row: one mask, or one
   * for each sample. Default: the layers' own.
   */
  mask: option.either(option.mask(), option.array(option.mask()), { optional: true }),
  /** Number of tokens of each sample, such as `[5, 8]`, if sequences are padded to one length. Default: no padding. */
  lengths: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Side of the padding: before the tokens ("left") or after them. Default "right". */
  padding: option.oneOf(["left", "right"], { default: "right" }),
  /** The cache of the keys and values of earlier tokens. Default: none. */
  cache: option.custom("a DecoderCache", option.hasMethods<DecoderCache>("layer"), { optional: true }),
});
/** Options of a call of the model, as in `MultiAxisAttention.forward`. */
export type ModelForwardOptions = OptionsOf<typeof modelForwardOptions>;

/** `ModelForwardOptions` for one layer. */
type LayerForwardOptions = Omit<ModelForwardOptions, "cache"> & { readonly cache?: AttentionCache | undefined };

/** Rotary embeddings by configuration. Layers with the same configuration share one embedding and its tables. */
export class RotaryEmbeddings {
  readonly #headDim: number;
  readonly #embeddingsByConfig = new Map<RopeConfig, RotaryEmbedding>();

  constructor(headDim: number) {
    this.#headDim = headDim;
  }

  get(rope: RopeConfig): RotaryEmbedding {
    const { base, scaling } = rope;
    const rotaryEmbedding =
      this.#embeddingsByConfig.get(rope) ?? new RotaryEmbedding(this.#headDim, { base, ...(scaling && { scaling }) });
    this.#embeddingsByConfig.set(rope, rotaryEmbedding);
    return rotaryEmbedding;
  }

  dispose(): void {
    for (const rotaryEmbedding of this.#embeddingsByConfig.values()) rotaryEmbedding.dispose();
    this.#embeddingsByConfig.clear();
  }
}

/**
 * A layer of a decoder-only model, built from its config: x + attention(norm(x)), then x + mlp(norm(x)). In Gemma, the
 * outputs of attention and mlp are also normalized. Parameters have Hugging Face's names, except for qkv_proj, which
 * concatenates q_proj, k_proj and v_proj, and out_proj, which is o_proj there.
 */
export class DecoderLayer extends Module {
  readonly attention: MultiAxisAttention;
  readonly mlp: SwiGLU | GeGLU;
  readonly inputNorm: RMSNorm;
  readonly preMlpNorm: RMSNorm;
  readonly postAttentionNorm: RMSNorm | null;
  readonly postMlpNorm: RMSNorm | null;

  constructor(
    ctx: Context,
    config: ModelConfig,
    { layer, settings, rotary }: { layer: LayerConfig; settings: ModelSettings; rotary: RotaryEmbeddings },
  ) {
    super();
    const { dtype } = settings;
    const createNorm = (dim: number) =>
      new RMSNorm(ctx, dim, { epsilon: config.normEpsilon, weightOffset: config.normWeightOffset, dtype });
    const { hiddenSize, headDim, hasPostNorms, hasHeadNorms } = config;
    this.attention = this.addChild(
      "self_attn",
      new MultiAxisAttention(ctx, {
        ...createAttentionOptions(config, layer, settings),
        positions: rotary.get(layer.rope),
        ...(hasHeadNorms && { qNorm: createNorm(headDim), kNorm: createNorm(headDim) }),
      }),
    );
    this.mlp = this.addChild("mlp", createFeedForward(ctx, config, dtype));
    this.inputNorm = this.addChild("input_layernorm", createNorm(hiddenSize));
    // In models with only this norm, such as Llama, it is the norm before the feed-forward layer in spite of its name.
    const postAttentionLayerNorm = this.addChild("post_attention_layernorm", createNorm(hiddenSize));
    this.postAttentionNorm = hasPostNorms ? postAttentionLayerNorm : null;
    this.preMlpNorm = hasPostNorms
      ? this.addChild("pre_feedforward_layernorm", createNorm(hiddenSize))
      : postAttentionLayerNorm;
    this.postMlpNorm = hasPostNorms ? this.addChild("post_feedforward_layernorm", createNorm(hiddenSize)) : null;
  }

  /** x [B,S,E] → the same shape: this rank's shard. Collective along the backend's axes. */
  forward(x: Tensor, options: LayerForwardOptions = {}): Tensor {
    const attentionOut = this.attention.forward(this.inputNorm.forward(x), options);
    const residual = x.add(this.postAttentionNorm?.forward(attentionOut) ?? attentionOut);
    const mlpOut = this.mlp.forward(this.preMlpNorm.forward(residual));
    return residual.add(this.postMlpNorm?.forward(mlpOut) ?? mlpOut);
  }
}

function createAttentionOptions(config: ModelConfig, { window }: LayerConfig, settings: ModelSettings) {
  const { backend, placement, dtype } = settings;
  const { hiddenSize: embedDim, numHeads, numKvHeads, headDim, attentionScale: scale } = config;
  return {
    ...{ embedDim, numHeads, numKvHeads, headDim, scale, dtype, placement, attentionAxis: 1 },
    bias: config.qkvBias,
    outBias: config.outBias,
    ...(config.attentionSoftcap !== null && { softcap: config.attentionSoftcap }),
    ...(window === null ? { causal: true } : { mask: masks.slidingWindow(window) }),
    ...(backend !== undefined && { backend }),
  };
}

function createFeedForward(ctx: Context, config: ModelConfig, dtype: DType): SwiGLU | GeGLU {
  const options = { embedDim: config.hiddenSize, hiddenDim: config.intermediateSize, bias: config.mlpBias, dtype };
  if (config.activation === "silu") return new SwiGLU(ctx, options);
  return new GeGLU(ctx, { ...options, approximate: config.activation === "geluTanh" ? "tanh" : "none" });
}
