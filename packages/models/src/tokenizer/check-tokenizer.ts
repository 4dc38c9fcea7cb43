import { formatValue } from "@mosaic/core";
import { FileError } from "@mosaic/nn";
import { isJsonObject, type Json } from "../config/fields.ts";

/** Token ids are passed in float32 tensors, which represent integers below this limit exactly. */
const MAX_TOKEN_ID = 2 ** 24;

const isTokenId = (value: unknown): boolean =>
  Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) < MAX_TOKEN_ID;

/**
 * Checks the parts of a tokenizer.json that @huggingface/tokenizers does not check: the vocabulary, the merges and the
 * added tokens. Throws a FileError for the first that is invalid.
 */
export function checkTokenizer(path: string, { model, added_tokens: addedTokens }: Json): void {
  const reject = (field: string, expected: string, value: unknown, remedy = "download the file again"): never => {
    throw new FileError({ where: `${path}: ${field}`, expected, received: formatValue(value), remedy });
  };
  if (!isJsonObject(model)) return reject("model", "an object", model);
  checkVocabulary(model.vocab, reject);
  if (model.merges !== undefined) checkMerges(model.merges, reject);
  if (!Array.isArray(addedTokens)) return reject("added_tokens", "an array", addedTokens);
  for (const [i, token] of (addedTokens as readonly unknown[]).entries()) {
    const field = `added_tokens[${i}]`;
    if (!isJsonObject(token)) return reject(field, "an object", token);
    const { id, content, single_word: isSingleWord } = token;
    if (!isTokenId(id)) return reject(`${field}.id`, `an integer from 0 to ${MAX_TOKEN_ID - 1}`, id);
    if (typeof content !== "string" || content === "") {
      return reject(`${field}.content`, "a string that is not empty", content);
    }
    if (isSingleWord === true) {
      const remedy = `set the field to false: tokens that match whole words only, such as "${content}", are not supported`;
      return reject(`${field}.single_word`, "false", isSingleWord, remedy);
    }
  }
}

type Reject = (field: string, expected: string, value: unknown) => never;

/** Checks the vocabulary: ids by token, or an array of tokens with their scores. */
function checkVocabulary(vocab: unknown, reject: Reject): void {
  if (Array.isArray(vocab)) {
    const isEntry = (entry: unknown): boolean =>
      Array.isArray(entry) && entry.length === 2 && typeof entry[0] === "string" && typeof entry[1] === "number";
    const invalidIndex = vocab.findIndex((entry) => !isEntry(entry));
    if (invalidIndex >= 0) reject(`model.vocab[${invalidIndex}]`, "a token and its score", vocab[invalidIndex]);
    return;
  }
  if (!isJsonObject(vocab)) return reject("model.vocab", "an object or an array", vocab);
  for (const [token, id] of Object.entries(vocab)) {
    if (!isTokenId(id)) reject(`model.vocab: "${token}"`, `an integer from 0 to ${MAX_TOKEN_ID - 1}`, id);
  }
}

/** Checks the merges of BPE: pairs of tokens, or strings "a b" in older files. */
function checkMerges(merges: unknown, reject: Reject): void {
  if (!Array.isArray(merges)) return reject("model.merges", "an array", merges);
  const isMerge = (merge: unknown): boolean =>
    typeof merge === "string" ||
    (Array.isArray(merge) && merge.length === 2 && merge.every((part) => typeof part === "string"));
  const invalidIndex = merges.findIndex((merge) => !isMerge(merge));
  if (invalidIndex >= 0) reject(`model.merges[${invalidIndex}]`, "a pair of tokens", merges[invalidIndex]);
}
