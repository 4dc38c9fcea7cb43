import { statSync } from "node:fs";
import { basename, resolve } from "node:path";
import { loadTokenizer, type Tokenizer } from "@mosaic/models";
import { PromptEncoder } from "./prompt-encoder.ts";
import { folderFilePaths, readModelConfig } from "../model-folder.ts";

/** Properties of the served model. The server does not load its weights. */
export interface ServedModel {
  /** Name of the model in requests. */
  readonly name: string;
  /** Time of creation, in seconds since 1970. */
  readonly created: number;
  readonly tokenizer: Tokenizer;
  readonly encoder: PromptEncoder;
  readonly vocabSize: number;
  /** Maximum tokens of a text, including its prompt: the smaller of the model's and the cache's maximum. */
  readonly maxLength: number;
}

/** Options of `readServedModel`. */
export interface ServedModelOptions {
  readonly cacheTokens: number;
  /** The program of the thread that encodes long prompts. */
  readonly promptWorker: URL;
  /** Maximum number of long prompts that wait for this thread. */
  readonly maxWaitingPrompts: number;
}

/** Reads the tokenizer and the sizes of a folder. Throws a UsageError for a folder without them. */
export async function readServedModel(
  folder: string,
  { cacheTokens, promptWorker, maxWaitingPrompts }: ServedModelOptions,
): Promise<ServedModel> {
  const config = readModelConfig(folder);
  const tokenizer = await loadTokenizer(folder);
  return {
    name: basename(resolve(folder)),
    created: Math.floor(statSync(folderFilePaths(folder).config).mtimeMs / 1000),
    tokenizer,
    encoder: new PromptEncoder(tokenizer, { folder, workerEntry: promptWorker, maxWaiting: maxWaitingPrompts }),
    vocabSize: config.vocabSize,
    maxLength: Math.min(config.maxBatchLength, cacheTokens),
  };
}
