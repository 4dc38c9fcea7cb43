import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { loadTokenizer, parseConfig, type Tokenizer } from "@mosaic/models";
import { UsageError } from "../settings.ts";

/** Properties of the served model. The server does not load its weights. */
export interface ServedModel {
  /** Name of the model in requests. */
  readonly name: string;
  /** Time of creation, in seconds since 1970. */
  readonly created: number;
  readonly tokenizer: Tokenizer;
  readonly vocabSize: number;
  /** Maximum tokens of a text, including its prompt: the smaller of the model's and the cache's maximum. */
  readonly maxLength: number;
}

/** Reads the tokenizer and the sizes of a folder. Throws a UsageError for a folder without them. */
export async function readServedModel(folder: string, cacheTokens: number): Promise<ServedModel> {
  const path = join(folder, "config.json");
  if (!existsSync(path)) {
    throw new UsageError(
      `--model: expected a folder with config.json, received ${folder}; train a model, or pass a different folder`,
    );
  }
  const config = parseConfig(path, readJson(path));
  return {
    name: basename(resolve(folder)),
    created: Math.floor(statSync(path).mtimeMs / 1000),
    tokenizer: await loadTokenizer(folder),
    vocabSize: config.vocabSize,
    maxLength: Math.min(config.maxBatchLength, cacheTokens),
  };
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (cause) {
    const received = (cause as Error).message;
    throw new UsageError(`${path}: expected JSON, received ${received}; download the file again`, { cause });
  }
}
