import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { checkContext, type Context, defineOptions, option, type OptionsOf, skipInit } from "@mosaic/core";
import { FileError } from "@mosaic/nn";
import { type ModelConfig, parseConfig, parseJson, readJson, readText } from "./config/config.ts";
import { parseGenerationConfig } from "./config/generation-config.ts";
import type { Json } from "./config/fields.ts";
import { editJson } from "./config/json-text.ts";
import { CausalLM } from "./model/causal-lm.ts";
import { checkFolder, readTokenizer } from "./tokenizer/load-tokenizer.ts";
import type { Tokenizer } from "./tokenizer/tokenizer.ts";
import { loadWeights } from "./weights/load.ts";
import { openShards } from "./weights/shards.ts";

export const loadModelOptions = defineOptions("loadModel", {
  /**
   * The attention backend: a registered name or the backend itself. Required if the mesh shards sequences, which any
   * axis of length > 1 does unless it is data-parallel. Default: "local".
   */
  backend: option.either(option.string(), option.backend(), { optional: true }),
  /** Placement of sequences: how they are divided into shards. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** The dtype of parameters and activations. Default: that of the config, or float32. */
  dtype: option.dtype({ optional: true }),
});
/** Options of `loadModel`. */
export type LoadModelOptions = OptionsOf<typeof loadModelOptions>;

export const createModelOptions = defineOptions("createModel", loadModelOptions.fields);
/** Options of `createModel`. */
export type CreateModelOptions = OptionsOf<typeof createModelOptions>;

/**
 * Creates a model with random weights from the fields of a config.json, for training from scratch: the equivalent of
 * transformers' `from_config`, except for initializer_range, which is not used. The embedding is drawn from
 * N(0, 0.02²), and the linear layers from U(−1/√in, 1/√in), as by `Linear`. Collective.
 *
 * @example
 * ```ts
 * import { init, fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { createModel } from "@mosaic/models";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const sizes = { vocab_size: 100, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4 };
 * using model = createModel(ctx, { model_type: "llama", ...sizes });
 * using tokens = fromArray(ctx, [1, 2, 3], [1, 3]);
 * using logits = model.forward(tokens);
 * logits.shape; // => [1, 3, 100]
 * ```
 * @throws FileError for an unsupported architecture and for invalid fields; OptionError for invalid options.
 */
export function createModel(ctx: Context, config: object, options?: CreateModelOptions): CausalLM {
  checkContext("createModel", ctx);
  const parsed = parseConfig("createModel: config", config);
  const configText = formatConfig("createModel: config", config);
  const { backend, placement, dtype } = createModelOptions.parse(options);
  return new CausalLM(ctx, {
    config: parsed,
    settings: { backend, placement, dtype: dtype ?? parsed.dtype },
    tokenizer: null,
    generationConfig: parseGenerationConfig("createModel: config", config as Json, parsed),
    source: { folder: null, configText, files: [] },
  });
}

/** Formats the config as the text of the config.json that `save` writes. */
function formatConfig(where: string, config: object): string {
  try {
    return JSON.stringify(config);
  } catch (cause) {
    const received = (cause as Error).message;
    throw new FileError({ where, expected: "fields that JSON can represent", received }, { cause });
  }
}

/**
 * Loads a Hugging Face folder, as `save_pretrained` writes it, as a model on this rank's mesh: config.json, weights in
 * safetensors (one file, or shards with an index), and, if they exist, tokenizer.json, tokenizer_config.json and
 * generation_config.json. Every rank reads the weights, a range of bytes at a time, into its own parameters. This needs
 * only a few MiB in addition to the parameters.
 *
 * All files are checked before the model is created. Every rank calls it with the same folder, or a copy of it.
 *
 * @example
 * ```ts
 * import { mkdtemp } from "node:fs/promises";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { createModel, loadModel } from "@mosaic/models";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const folder = await mkdtemp(join(tmpdir(), "mosaic-"));
 * const sizes = { vocab_size: 100, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4 };
 * using made = createModel(ctx, { model_type: "qwen2", num_key_value_heads: 2, ...sizes });
 * await made.save(folder);
 * using model = await loadModel(ctx, folder);
 * model.config.modelType; // => "qwen2"
 * const tokens: number[] = [];
 * for await (const { token } of model.generate({ tokens: [1, 2, 3], maxNewTokens: 5 })) tokens.push(token);
 * tokens.length; // => 5
 * ```
 * @throws FileError for an unsupported architecture, files that are missing or damaged, weights that do not match the
 * config, and a tokenizer with more tokens than the model has; OptionError for invalid options.
 */
export async function loadModel(ctx: Context, folder: string, options?: LoadModelOptions): Promise<CausalLM> {
  checkContext("loadModel", ctx);
  checkFolder("loadModel", folder);
  const { backend, placement, dtype } = loadModelOptions.parse(options);
  const statedText = (await readText(folder, "config.json"))!;
  const configPath = join(folder, "config.json");
  const configJson = parseJson(configPath, statedText);
  const statedConfig = parseConfig(configPath, configJson);
  const generationJson = await readJson(folder, "generation_config.json", true);
  const generationConfig = generationJson
    ? parseGenerationConfig(join(folder, "generation_config.json"), generationJson, statedConfig)
    : parseGenerationConfig(configPath, configJson, statedConfig);
  const tokenizer = await loadModelTokenizer(folder, statedConfig);
  await using shards = await openShards(folder, statedConfig);
  const { isTied } = shards;
  const isUntied = statedConfig.isTied && !isTied;
  if (isUntied) warnOfUntiedHead(folder);
  const config = { ...statedConfig, isTied };
  const configText = isUntied ? editJson(statedText, { tie_word_embeddings: false }) : statedText;
  const settings = { backend, placement, dtype: dtype ?? config.dtype };
  const source = { folder, configText, files: await listFiles(folder) };
  const model = skipInit(() => new CausalLM(ctx, { config, settings, tokenizer, generationConfig, source }));
  try {
    await loadWeights(ctx, model, shards);
    return model;
  } catch (error) {
    model.dispose();
    throw error;
  }
}

function warnOfUntiedHead(folder: string): void {
  process.emitWarning(
    `${join(folder, "config.json")}: tie_word_embeddings is true, but the folder stores an lm_head.weight that differs from the embedding, which is used as in transformers 5; set tie_word_embeddings to false, or remove lm_head.weight to tie them`,
    { type: "MosaicWarning", code: "MOSAIC_UNTIED_HEAD" },
  );
}

/** Loads the folder's tokenizer, if it has one. Throws a FileError if its vocabulary is larger than the model's. */
async function loadModelTokenizer(folder: string, config: ModelConfig): Promise<Tokenizer | null> {
  const tokenizer = await readTokenizer(folder);
  // Text models of Gemma 3 have an added token for images beyond the vocabulary. Texts with this token are rejected,
  // but not the tokenizer.
  const vocabSize = tokenizer?.vocabSize(false) ?? 0;
  if (vocabSize <= config.vocabSize) return tokenizer;
  throw new FileError({
    where: join(folder, "tokenizer.json"),
    expected: `at most ${config.vocabSize} tokens, the vocab_size of config.json`,
    received: String(vocabSize),
    remedy: "use the tokenizer of this model; nothing was loaded",
  });
}

/** Files of a folder, other than its config and weights, that are copied when the model is saved. */
const copiedFileNames = [
  ...["generation_config.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"],
  ...["special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"],
];

async function listFiles(folder: string): Promise<readonly string[]> {
  const fileNames = new Set(await readdir(folder));
  return copiedFileNames.filter((name) => fileNames.has(name));
}
