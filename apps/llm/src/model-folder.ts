import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Context } from "@mosaic/attention";
import {
  type CausalLM,
  createModel as createCausalLM,
  loadModel,
  type ModelConfig,
  parseConfig,
  Tokenizer,
} from "@mosaic/models";
import { readCorpus } from "./corpus.ts";
import { type ArchitectureSettings, UsageError } from "./settings.ts";
import { tokenizeCorpus } from "./tokenizer/corpus-tokens.ts";

/** Returns the file paths of a folder of this program: a Hugging Face folder, with the state of its training. */
export const folderFilePaths = (folder: string) =>
  ({
    config: join(folder, "config.json"),
    generation: join(folder, "generation_config.json"),
    tokenizer: join(folder, "tokenizer.json"),
    tokenizerConfig: join(folder, "tokenizer_config.json"),
    trainTokens: join(folder, "training", "train.bin"),
    heldOutTokens: join(folder, "training", "held-out.bin"),
    checkpoint: join(folder, "training", "checkpoint.safetensors"),
    curve: join(folder, "training", "curve.jsonl"),
    picture: join(folder, "loss.svg"),
  }) as const;

/** The id of the end token. */
export const END_TOKEN_ID = 0;

/** Returns config.json of a Llama model with these sizes. */
export function createConfig(architecture: ArchitectureSettings): Readonly<Record<string, unknown>> {
  const { vocabulary, hidden, layers, heads, kvHeads, length, ropeBase, embeddingStd } = architecture;
  return {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    vocab_size: vocabulary,
    hidden_size: hidden,
    // Three matrices of 8/3 · hidden have as many parameters as two of 4 · hidden. Rounded up to a multiple of 32.
    intermediate_size: 32 * Math.ceil((8 * hidden) / 3 / 32),
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: hidden / heads,
    max_position_embeddings: length,
    hidden_act: "silu",
    rms_norm_eps: 1e-5,
    rope_theta: ropeBase,
    initializer_range: embeddingStd,
    tie_word_embeddings: true,
    attention_bias: false,
    mlp_bias: false,
    bos_token_id: null,
    eos_token_id: END_TOKEN_ID,
    torch_dtype: "float32",
  };
}

/** Writes a file atomically, because ranks may be reading it. */
function writeAtomically(path: string, contents: string | Uint8Array): void {
  const temporaryPath = `${path}.${process.pid}`;
  try {
    writeFileSync(temporaryPath, contents);
    renameSync(temporaryPath, path);
  } catch (cause) {
    rmSync(temporaryPath, { force: true });
    throw createWriteError(path, cause);
  }
}

function createWriteError(path: string, cause: unknown): UsageError {
  const received = (cause as Error).message;
  return new UsageError(
    `--out: expected a folder that can be written, received ${path}: ${received}; free space, correct its permissions, or pass a different folder`,
    { cause },
  );
}

/**
 * Prepares a folder for training: writes tokenizer, tokens and config. An existing folder is kept.
 *
 * @throws UsageError if the folder contains a model of other sizes, or cannot be written.
 */
export function prepareFolder(folder: string, architecture: ArchitectureSettings): void {
  const paths = folderFilePaths(folder);
  const config = createConfig(architecture);
  if (existsSync(paths.config)) {
    const storedConfig = readJson(paths.config);
    const differingFields = Object.keys(config).filter(
      (name) => name !== "torch_dtype" && String(storedConfig[name]) !== String(config[name]),
    );
    if (differingFields.length === 0) return;
    const differencesText = differingFields
      .map((name) => `${name} ${String(storedConfig[name])}, expected ${String(config[name])}`)
      .join(", ");
    throw new UsageError(
      `${folder}: the existing model does not match the options: ${differencesText}; remove the folder, or set --out`,
    );
  }
  try {
    mkdirSync(join(folder, "training"), { recursive: true });
  } catch (cause) {
    throw createWriteError(folder, cause);
  }
  const { tokenizerFiles, train, heldOut } = tokenizeCorpus(readCorpus(), architecture.vocabulary);
  writeAtomically(paths.trainTokens, new Uint8Array(Uint16Array.from(train.flat()).buffer));
  writeAtomically(paths.heldOutTokens, new Uint8Array(Uint16Array.from(heldOut.flat()).buffer));
  writeAtomically(paths.tokenizer, `${JSON.stringify(tokenizerFiles.tokenizer)}\n`);
  writeAtomically(paths.tokenizerConfig, `${JSON.stringify(tokenizerFiles.config, null, 2)}\n`);
  const generationConfig = { eos_token_id: END_TOKEN_ID, do_sample: true, temperature: 0.8, top_k: 50, top_p: 0.95 };
  writeAtomically(paths.generation, `${JSON.stringify(generationConfig, null, 2)}\n`);
  // Written last: a folder with this file has all files.
  writeAtomically(paths.config, `${JSON.stringify(config, null, 2)}\n`);
}

/** Reads the config.json of a model. Throws a UsageError for a folder without one. */
export function readModelConfig(folder: string): ModelConfig {
  const path = folderFilePaths(folder).config;
  if (!existsSync(path)) {
    throw new UsageError(
      `--model: expected a folder with config.json, received ${folder}; train a model, or pass a different folder`,
    );
  }
  let json: unknown;
  try {
    json = readJson(path);
  } catch (cause) {
    const received = (cause as Error).message;
    throw new UsageError(`${path}: expected JSON, received ${received}; download the file again`, { cause });
  }
  return parseConfig(path, json);
}

/** The standard deviation of the embeddings that @mosaic/models creates. */
const DEFAULT_EMBEDDING_STD = 0.02;

/** Creates the model of a prepared folder with its initial weights. Collective. */
export function createModel(ctx: Context, folder: string, backend: string): CausalLM {
  const config = readJson(folderFilePaths(folder).config);
  const model = createCausalLM(ctx, config, { backend, placement: "zigzag", dtype: "float32" });
  const { weight } = model.decoder.embedding;
  ctx.device.kernels.scalar("mul", weight, weight, Number(config["initializer_range"]) / DEFAULT_EMBEDDING_STD);
  return model;
}

/** Returns the placement of sequences: balanced for a causal mask, unless sequences are not sharded. */
export const choosePlacement = (backend: string): "zigzag" | "contiguous" =>
  backend === "local" ? "contiguous" : "zigzag";

/** Loads the model of a folder, with its weights. Collective. */
export function openModel(ctx: Context, folder: string, backend: string): Promise<CausalLM> {
  return loadModel(ctx, folder, { backend, placement: choosePlacement(backend) });
}

/** Reads the tokenizer of a prepared folder. */
export function readTokenizer(folder: string): Tokenizer {
  const { tokenizer: tokenizerPath, tokenizerConfig: tokenizerConfigPath } = folderFilePaths(folder);
  return new Tokenizer(tokenizerPath, { tokenizer: readJson(tokenizerPath), config: readJson(tokenizerConfigPath) });
}

function readJson(path: string): Record<string, unknown> {
  return JSON.parse(readFileSync(path, "utf8")) as Record<string, unknown>;
}
