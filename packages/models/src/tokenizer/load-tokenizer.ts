import { join } from "node:path";
import { expectValue } from "@mosaic/core";
import { FileError } from "@mosaic/nn";
import { readJson, readText } from "../config/config.ts";
import { Tokenizer } from "./tokenizer.ts";

/** Throws an OptionError unless `folder` can be a path. */
export function checkFolder(where: string, folder: unknown): asserts folder is string {
  const isValidPath = typeof folder === "string" && folder !== "" && !folder.includes("\0");
  expectValue(`${where}: folder`, isValidPath, "the path of a folder", folder);
}

/** Reads a folder's tokenizer and chat template; null if the folder has no tokenizer. */
export async function readTokenizer(folder: string): Promise<Tokenizer | null> {
  const json = await readJson(folder, "tokenizer.json", true);
  if (!json) return null;
  const statedConfig = (await readJson(folder, "tokenizer_config.json", true)) ?? {};
  // As in transformers, older folders have their special tokens in this file.
  const isOlderFolder = (statedConfig.added_tokens_decoder ?? undefined) === undefined;
  const specialTokens = isOlderFolder ? await readJson(folder, "special_tokens_map.json", true) : undefined;
  const config = { ...statedConfig, ...specialTokens };
  const chatTemplate = await readText(folder, "chat_template.jinja", true);
  return new Tokenizer(join(folder, "tokenizer.json"), { tokenizer: json, config, chatTemplate });
}

/**
 * Loads the tokenizer of a Hugging Face folder without its model, for programs that prepare texts: the equivalent of
 * transformers' `AutoTokenizer.from_pretrained`.
 *
 * @example
 * ```ts
 * import { mkdtemp, writeFile } from "node:fs/promises";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { loadTokenizer } from "@mosaic/models";
 * const folder = await mkdtemp(join(tmpdir(), "mosaic-"));
 * const none = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
 * const model = { type: "BPE", vocab: { a: 0, b: 1, ab: 2 }, merges: [["a", "b"]] };
 * await writeFile(join(folder, "tokenizer.json"), JSON.stringify({ model, added_tokens: [], ...none }));
 * const tokenizer = await loadTokenizer(folder);
 * tokenizer.encode("aab"); // => [0, 2]
 * ```
 * @throws FileError for a folder without tokenizer.json, and for a tokenizer that is not supported.
 */
export async function loadTokenizer(folder: string): Promise<Tokenizer> {
  checkFolder("loadTokenizer", folder);
  const tokenizer = await readTokenizer(folder);
  if (tokenizer) return tokenizer;
  throw new FileError({
    where: folder,
    expected: "a folder with tokenizer.json",
    received: "a folder without tokenizer.json",
  });
}
