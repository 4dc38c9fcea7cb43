import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { type DType, expectValue, formatValue, type UnaryOp } from "@mosaic/core";
import { FileError } from "@mosaic/nn";
import { findArchitecture } from "./architectures.ts";
import { Fields, isJsonObject, type Json } from "./fields.ts";
import { parseRope, type RopeConfig } from "./rope.ts";

// Converts config.json of a Hugging Face folder to the terms of this package.

/** Configuration of a layer. Layers of one type share one object. */
export interface LayerConfig {
  /** Number of keys visible to a query, including its own; null: all earlier keys. */
  readonly window: number | null;
  readonly rope: RopeConfig;
}

/** Configuration of a decoder-only language model, from its config.json. */
export interface ModelConfig {
  /** model_type: "llama", "gemma3_text", …. */
  readonly modelType: string;
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly layers: readonly LayerConfig[];
  /**
   * Maximum sequence length: max_position_embeddings, or the larger length to which rope_type "dynamic" or "yarn" extends
   * it.
   */
  readonly maxLength: number;
  /**
   * Maximum length of texts that are generated together. With rope_type "dynamic" it is max_position_embeddings, because
   * the rotation of longer texts depends on their length. Otherwise it equals `maxLength`.
   */
  readonly maxBatchLength: number;
  readonly activation: Extract<UnaryOp, "silu" | "gelu" | "geluTanh">;
  readonly normEpsilon: number;
  /** Added to the weights of norms: 1 in Gemma. */
  readonly normWeightOffset: 0 | 1;
  /** Whether the outputs of attention and of the feed-forward layer are also normalized, as in Gemma. */
  readonly hasPostNorms: boolean;
  /** Whether query and key heads are normalized, as in Qwen 3 and Gemma 3. */
  readonly hasHeadNorms: boolean;
  readonly qkvBias: boolean;
  readonly outBias: boolean;
  readonly mlpBias: boolean;
  /** Whether the output projection shares the weight of the embedding. */
  readonly isTied: boolean;
  /** Whether embeddings are multiplied by √hiddenSize, as in Gemma. */
  readonly scalesEmbeddings: boolean;
  /** Factor on q·k. */
  readonly attentionScale: number;
  /** Replaces scores by softcap · tanh(score / softcap), as in Gemma 2; null: none. */
  readonly attentionSoftcap: number | null;
  /** Replaces logits by softcap · tanh(logit / softcap), as in Gemma 2; null: none. */
  readonly logitSoftcap: number | null;
  /** The dtype of the folder's weights. */
  readonly dtype: DType;
  /** eos_token_id; generation_config.json has precedence. */
  readonly eosTokenIds: readonly number[];
}

/**
 * Parses a config.json of Llama 2 and 3, Mistral, Qwen 2 and 3, or Gemma 2 and 3 (text), written by transformers 5 or
 * older versions. Missing fields have the defaults of transformers.
 *
 * @example
 * ```ts
 * import { parseConfig } from "@mosaic/models";
 * const config = parseConfig("config.json", {
 *   model_type: "qwen3",
 *   vocab_size: 151_936,
 *   hidden_size: 1024,
 *   intermediate_size: 3072,
 *   num_hidden_layers: 28,
 *   num_attention_heads: 16,
 *   num_key_value_heads: 8,
 *   head_dim: 128,
 *   rope_theta: 1_000_000,
 *   tie_word_embeddings: true,
 * });
 * [config.layers.length, config.hasHeadNorms, config.layers[0]!.rope.base]; // => [28, true, 1000000]
 * parseConfig("config.json", { model_type: "mamba" }); // throws expected one of llama, mistral, qwen2, qwen3, gemma2, gemma3_text, received "mamba"
 * ```
 * @throws FileError for another architecture, a field that is missing or of the wrong type, and anything unsupported.
 */
export function parseConfig(path: string, json: unknown): ModelConfig {
  expectValue("parseConfig: path", typeof path === "string", "the path of the file, used in messages", path);
  if (!isJsonObject(json)) {
    throw new FileError({ where: path, expected: "the JSON object of config.json", received: formatValue(json) });
  }
  const fields = new Fields(path, json);
  const architecture = findArchitecture(path, json);
  const { defaults } = architecture;
  const numHeads = fields.size("num_attention_heads");
  const hiddenSize = fields.size("hidden_size");
  const numLayers = fields.size("num_hidden_layers");
  const headDim = fields.size("head_dim", architecture.headDim ?? Math.floor(hiddenSize / numHeads));
  const defaultKvHeads = fields.isNull("num_key_value_heads") ? numHeads : (architecture.numKvHeads ?? numHeads);
  const numKvHeads = fields.size("num_key_value_heads", defaultKvHeads);
  if (numHeads % numKvHeads !== 0) {
    const isAbsent = json.num_key_value_heads === undefined;
    const remedy = isAbsent
      ? `add the field; its default in transformers, ${numKvHeads}, does not divide ${numHeads}`
      : "correct the file";
    throw fields.error("num_key_value_heads", `a divisor of num_attention_heads, ${numHeads}`, remedy);
  }
  if (headDim % 2 !== 0) throw createHeadDimError(path, json, headDim);
  rejectQuantization(fields, json);
  const maxPositions = fields.size("max_position_embeddings", defaults.maxLength);
  const rope = { where: path, json, maxLength: maxPositions, ...architecture.rope };
  // One object for all layers of a type.
  const fullAttention = { window: null, rope: parseRope("full_attention", rope) };
  const slidingAttention = { window: parseSlidingWindow(fields), rope: parseRope("sliding_attention", rope) };
  const layerConfigs = { full_attention: fullAttention, sliding_attention: slidingAttention };
  const layers = architecture.layerTypes(fields, numLayers).map((type) => layerConfigs[type]);
  const ropes = [...new Set(layers.map((layer) => layer.rope))];
  const maxLength = Math.max(...ropes.map((each) => each.maxLength));
  const queryPreAttentionScalar = architecture.hasPostNorms ? fields.number("query_pre_attn_scalar", 256) : headDim;
  return {
    modelType: fields.string("model_type"),
    vocabSize: fields.size("vocab_size"),
    hiddenSize,
    intermediateSize: fields.size("intermediate_size"),
    numHeads,
    numKvHeads,
    headDim,
    layers,
    maxLength,
    maxBatchLength: ropes.some(({ scaling }) => scaling?.dependsOnLength) ? maxPositions : maxLength,
    activation: parseActivation(fields, architecture.activationField),
    normEpsilon: fields.number("rms_norm_eps", 1e-6),
    normWeightOffset: architecture.hasPostNorms ? 1 : 0,
    hasPostNorms: architecture.hasPostNorms,
    hasHeadNorms: architecture.hasHeadNorms,
    ...architecture.biases(fields),
    isTied: fields.boolean("tie_word_embeddings", defaults.isTied),
    scalesEmbeddings: architecture.hasPostNorms,
    attentionScale: queryPreAttentionScalar ** -0.5,
    attentionSoftcap: architecture.hasSoftcaps ? parseSoftcap(fields, "attn_logit_softcapping", 50) : null,
    logitSoftcap: architecture.hasPostNorms
      ? parseSoftcap(fields, "final_logit_softcapping", architecture.hasSoftcaps ? 30 : null)
      : null,
    dtype: fields.oneOf("dtype", ["float32", "bfloat16", "float16"], parseTorchDType(fields)),
    eosTokenIds: parseTokenIds(
      `${path}: eos_token_id`,
      json.eos_token_id === undefined ? defaults.eosTokenIds : json.eos_token_id,
    ),
  };
}

function createHeadDimError(where: string, json: Json, headDim: number): FileError {
  const isDerived = (json.head_dim ?? undefined) === undefined;
  return new FileError({
    where: `${where}: ${isDerived ? "hidden_size / num_attention_heads" : "head_dim"}`,
    expected: "an even number, because rotary embeddings rotate pairs of features",
    received: String(headDim),
    remedy: "correct the file",
  });
}

/** Throws a FileError for a config with which transformers would quantize or dequantize the weights. */
function rejectQuantization(fields: Fields, json: Json): void {
  if ((json.quantization_config ?? undefined) === undefined) return;
  const remedy = "save the model without quantization, or remove the field if the weights are not quantized";
  throw fields.error("quantization_config", "null or no such field", remedy);
}

/** Before transformers 5, the field `dtype` was named `torch_dtype`. */
const parseTorchDType = (fields: Fields): DType =>
  fields.oneOf("torch_dtype", ["float32", "bfloat16", "float16"], "float32");

const parseSlidingWindow = (fields: Fields): number | null =>
  fields.isNull("sliding_window") ? null : fields.size("sliding_window", 4096);

const parseSoftcap = (fields: Fields, name: string, fallback: number | null): number | null =>
  fields.isNull(name) ? null : fields.number(name, fallback);

const activations = { silu: "silu", swish: "silu", gelu: "gelu", gelu_pytorch_tanh: "geluTanh" } as const;

function parseActivation(fields: Fields, field: "hidden_act" | "hidden_activation"): ModelConfig["activation"] {
  const activationNames = Object.keys(activations) as (keyof typeof activations)[];
  const fallback = field === "hidden_act" ? "silu" : "gelu_pytorch_tanh";
  return activations[fields.oneOf(field, activationNames, fallback)];
}

/** Parses a token id, an array of token ids, or none. */
export function parseTokenIds(where: string, value: unknown): readonly number[] {
  const ids: readonly unknown[] = Array.isArray(value) ? value : value === undefined || value === null ? [] : [value];
  const isTokenId = (id: unknown): id is number => Number.isSafeInteger(id) && (id as number) >= 0;
  if (ids.every(isTokenId)) return ids;
  throw new FileError({ where, expected: "a token id, an array of token ids, or null", received: formatValue(value) });
}

/** Reads and parses a JSON file of a folder. Returns undefined if the file is optional and does not exist. */
export async function readJson(folder: string, name: string, isOptional = false): Promise<Json | undefined> {
  const text = await readText(folder, name, isOptional);
  return text === undefined ? undefined : parseJson(join(folder, name), text);
}

/** Reads the text of a file of a folder. Returns undefined if the file is optional and does not exist. */
export async function readText(folder: string, name: string, isOptional = false): Promise<string | undefined> {
  const path = join(folder, name);
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    if (isOptional) return undefined;
    throw new FileError(
      {
        where: path,
        expected: "a file of a Hugging Face model folder",
        received: "no such file",
        remedy: "download all files of the folder",
      },
      { cause: error },
    );
  }
}

export function parseJson(path: string, text: string): Json {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    const received = (cause as Error).message;
    throw new FileError({ where: path, expected: "JSON", received, remedy: "download the file again" }, { cause });
  }
  if (isJsonObject(json)) return json;
  throw new FileError({ where: path, expected: "a JSON object", received: text.slice(0, 40) });
}
