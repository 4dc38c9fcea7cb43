import { isJsonObject, type Json } from "../config/fields.ts";

/** Returns a lower bound of the number of tokens of a text. */
export type TokenBound = (text: string) => number;

/**
 * Creates the lower bound: the bytes of the text divided by those of the longest token. It is 0, which is always true,
 * unless each byte of every text is part of a token, as it is in a byte-level BPE tokenizer whose vocabulary has all
 * bytes, and which neither removes nor composes characters.
 */
export function createTokenBound({ model, normalizer, pre_tokenizer: preTokenizer, added_tokens }: Json): TokenBound {
  const addedTokens = (Array.isArray(added_tokens) ? added_tokens : []).filter((token) => isJsonObject(token));
  const isComposing = isJsonObject(normalizer) && normalizer.type === "NFC";
  const hasAllBytes =
    isJsonObject(model) &&
    model.type === "BPE" &&
    isJsonObject(model.vocab) &&
    byteCharacters.every((character) => Object.hasOwn(model.vocab as Json, character));
  const keepsText =
    ((normalizer ?? null) === null || isComposing) &&
    splitsWithoutRemoval(preTokenizer) &&
    isByteLevel(preTokenizer) &&
    // The token includes the white space around it.
    !addedTokens.some((token) => token.lstrip === true || token.rstrip === true);
  if (!hasAllBytes || !keepsText) return () => 0;
  let longest = 1;
  // A character is a byte.
  for (const token of Object.keys(model.vocab as Json)) longest = Math.max(longest, token.length);
  for (const { content } of addedTokens) longest = Math.max(longest, Buffer.byteLength(String(content)));
  return (text) => (isComposing && text.normalize() !== text ? 0 : Math.ceil(Buffer.byteLength(text) / longest));
}

/** The character of each byte in a byte-level vocabulary: the byte itself if it is printable, else one from 256 on. */
const byteCharacters: readonly string[] = (() => {
  const isPrintable = (byte: number): boolean => (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
  let nextCodePoint = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : nextCodePoint++));
})();

const listParts = (preTokenizer: Json): readonly unknown[] =>
  Array.isArray(preTokenizer.pretokenizers) ? preTokenizer.pretokenizers : [];

function splitsWithoutRemoval(preTokenizer: unknown): boolean {
  if (!isJsonObject(preTokenizer)) return false;
  const { type, behavior } = preTokenizer;
  if (type === "Sequence") return listParts(preTokenizer).every(splitsWithoutRemoval);
  return type === "ByteLevel" || type === "Digits" || (type === "Split" && behavior === "Isolated");
}

function isByteLevel(preTokenizer: unknown): boolean {
  if (!isJsonObject(preTokenizer)) return false;
  return preTokenizer.type === "ByteLevel" || listParts(preTokenizer).some(isByteLevel);
}
