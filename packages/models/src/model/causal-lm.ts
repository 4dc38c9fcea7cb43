import {
  checkTensor,
  type Context,
  Linear,
  Module,
  scope,
  ShapeError,
  significandBits,
  type Tensor,
} from "@mosaic/core";
import { Embedding, ModuleList, RMSNorm, TiedLinear } from "@mosaic/nn";
import type { ModelConfig } from "../config/config.ts";
import type { GenerationConfig } from "../config/generation-config.ts";
import { type GenerateOptions, generateTokens, resolveGeneration } from "../generate/generate.ts";
import type { GeneratedToken } from "../generate/generated-text.ts";
import type { Tokenizer } from "../tokenizer/tokenizer.ts";
import { type ModelSource, saveModel, type SaveModelOptions } from "../weights/save.ts";
import {
  DecoderLayer,
  type ModelForwardOptions,
  modelForwardOptions,
  type ModelSettings,
  RotaryEmbeddings,
} from "./decoder-layer.ts";

/** Embedding, layers and the final norm: tokens [B,S] → [B,S,E]. */
export class Decoder extends Module {
  readonly embedding: Embedding;
  readonly layers: ModuleList<DecoderLayer>;
  readonly norm: RMSNorm;
  readonly #rotary: RotaryEmbeddings;
  readonly #embeddingScale: number | null;

  constructor(ctx: Context, config: ModelConfig, settings: ModelSettings) {
    super();
    const { vocabSize, hiddenSize, normEpsilon: epsilon, normWeightOffset: weightOffset } = config;
    const { dtype } = settings;
    const rotary = new RotaryEmbeddings(config.headDim);
    this.#rotary = rotary;
    this.#embeddingScale = config.scalesEmbeddings ? roundToDType(dtype, hiddenSize ** 0.5) : null;
    this.embedding = this.addChild("embed_tokens", new Embedding(ctx, vocabSize, hiddenSize, { std: 0.02, dtype }));
    const layers = config.layers.map((layer) => new DecoderLayer(ctx, config, { layer, settings, rotary }));
    this.layers = this.addChild("layers", new ModuleList(layers));
    this.norm = this.addChild("norm", new RMSNorm(ctx, hiddenSize, { epsilon, weightOffset, dtype }));
  }

  /** tokens [B,S] → [B,S,E]: this rank's shard. Collective along the backend's axes. */
  forward(tokens: Tensor, options?: ModelForwardOptions): Tensor {
    const { cache, ...forwardOptions } = modelForwardOptions.parse(options, "Decoder.forward");
    const embeddings = this.embedding.forward(tokens);
    let x = this.#embeddingScale === null ? embeddings : embeddings.scale(this.#embeddingScale);
    for (const [index, layer] of [...this.layers].entries()) {
      using layerInput = x;
      x = layer.forward(layerInput, { ...forwardOptions, cache: cache?.layer(index) });
    }
    return this.norm.forward(x);
  }

  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#rotary.dispose();
  }
}

/** Rounds the factor of the embeddings to their dtype, as Hugging Face's models do. */
function roundToDType(dtype: ModelSettings["dtype"], value: number): number {
  const unit = 2 ** (Math.floor(Math.log2(value)) - significandBits[dtype] + 1);
  return Math.round(value / unit) * unit;
}

/** Arguments of the constructor of `CausalLM`. */
export interface CausalLMParts {
  readonly config: ModelConfig;
  readonly settings: ModelSettings;
  readonly tokenizer: Tokenizer | null;
  readonly generationConfig: GenerationConfig;
  readonly source: ModelSource;
}

/**
 * A decoder-only language model, created by `loadModel`. Parameters have Hugging Face's names, except for qkv_proj,
 * which concatenates q_proj, k_proj and v_proj, and out_proj, which is o_proj there.
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { createModel } from "@mosaic/models";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const sizes = { vocab_size: 50, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1 };
 * using model = createModel(ctx, { model_type: "llama", num_attention_heads: 2, eos_token_id: 2, ...sizes });
 * using logits = model.forward(fromArray(ctx, [1, 7, 9], [1, 3]));
 * logits.shape; // => [1, 3, 50]
 * ```
 */
export class CausalLM extends Module {
  readonly ctx: Context;
  readonly config: ModelConfig;
  readonly settings: ModelSettings;
  /** Null for a folder without tokenizer.json. */
  readonly tokenizer: Tokenizer | null;
  readonly generationConfig: GenerationConfig;
  readonly source: ModelSource;
  readonly decoder: Decoder;
  readonly head: Linear | TiedLinear;

  constructor(ctx: Context, { config, settings, tokenizer, generationConfig, source }: CausalLMParts) {
    super();
    const { hiddenSize, vocabSize, isTied } = config;
    this.ctx = ctx;
    this.config = config;
    this.settings = settings;
    this.tokenizer = tokenizer;
    this.generationConfig = generationConfig;
    this.source = source;
    this.decoder = this.addChild("model", new Decoder(ctx, config, settings));
    const head = isTied
      ? new TiedLinear(this.decoder.embedding)
      : new Linear(ctx, hiddenSize, vocabSize, { bias: false, dtype: settings.dtype });
    this.head = this.addChild("lm_head", head);
  }

  /**
   * tokens [B,S] → logits [B,S,V]: this rank's shard. Collective along the backend's axes.
   *
   * @throws ShapeError for a sequence longer than the model's `maxLength`, including its cached tokens, before anything
   * is sent.
   */
  forward(tokens: Tensor, options?: ModelForwardOptions): Tensor {
    this.ctx.assertOpen("CausalLM");
    const call = modelForwardOptions.parse(options);
    checkTensor("CausalLM: tokens", tokens, 2);
    this.#checkLength(tokens.shape[1]!, call);
    return this.project(this.decoder.forward(tokens, options));
  }

  #checkLength(rows: number, { sequenceLength, cache }: ModelForwardOptions): void {
    const { ctx, config, settings } = this;
    const layer = cache?.layer(0);
    const { axes } = ctx.backend(settings.backend ?? "local");
    const shards = axes.reduce((product, axis) => product * (ctx.mesh.shape[axis] ?? 1), 1);
    // With a cache, every rank has all new tokens, unless they are sharded.
    const newTokens = layer?.sharded === false ? rows : (sequenceLength ?? rows * shards);
    const length = Math.max(0, ...(layer?.starts ?? [])) + newTokens;
    if (!(length > config.maxLength)) return;
    throw new ShapeError({
      where: "CausalLM",
      expected: `at most ${config.maxLength} tokens, the maximum length of the model by max_position_embeddings and rope_parameters`,
      received: String(length),
      remedy: "split the text into shorter sequences",
    });
  }

  /**
   * Continues a text, one token at a time: `for await (const { text } of model.generate({ prompt }))`. Options are
   * checked at the call. Collective: every rank makes the same call, iterates to the end, and receives the same tokens.
   * The prompt is processed by the model's backend, and each new token attends to the keys and values that the ranks
   * have cached. After stage 3 of `fullyShard`, each step gathers the parameters of all layers, one after another.
   *
   * Runs the forward of `decoder` and `head`, with their hooks and those of the modules within them. `forward` of the
   * model itself is not called, so that its own hooks do not run: it would compute the logits of the whole prompt.
   *
   * @throws OptionError for invalid options, a text that exceeds the model's length, or texts without a tokenizer;
   * OutOfMemoryError for a full cache; FileError for a field of generation_config.json that changes the text in
   * transformers and is not supported.
   */
  generate(options: GenerateOptions): AsyncGenerator<GeneratedToken, void> {
    this.ctx.assertOpen("generate");
    return generateTokens(this, resolveGeneration(this, options));
  }

  /**
   * Saves the model as a folder that transformers can load: config.json, the weights in safetensors, and copies of the
   * tokenizer's files and generation_config.json, if the folder from which the model was loaded has them. Collective:
   * rank 0 writes, and the others wait for it. Parameters that `fullyShard` has sharded are gathered unit by unit.
   *
   * @throws OptionError for an invalid path, or if ranks pass different paths; a FileError or the system's error on rank 0 if a file cannot be written, a
   * MosaicError on the other ranks.
   */
  async save(folder: string, options?: SaveModelOptions): Promise<void> {
    this.ctx.assertOpen("saveModel");
    await saveModel(this, folder, options);
  }

  /** Computes the logits of the decoder's output: [..,E] → [..,V]. */
  project(hidden: Tensor): Tensor {
    const logits = this.head.forward(hidden);
    const { logitSoftcap: softcap } = this.config;
    return softcap === null
      ? logits
      : scope(() =>
          logits
            .scale(1 / softcap)
            .tanh()
            .scale(softcap),
        );
  }
}
