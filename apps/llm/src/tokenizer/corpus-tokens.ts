import { Tokenizer, type TokenizerFiles } from "@mosaic/models";
import type { Book, Corpus } from "../corpus.ts";
import { splitWords } from "./byte-level.ts";
import { endToken, toTokenizerJson, trainBytePairs } from "./train-bpe.ts";

/** Tokens of a corpus. Every book ends with the end token. */
export interface CorpusTokens {
  readonly tokenizer: Tokenizer;
  /** tokenizer.json and tokenizer_config.json. */
  readonly tokenizerFiles: TokenizerFiles;
  readonly train: readonly (readonly number[])[];
  readonly heldOut: readonly (readonly number[])[];
}

/** Trains a tokenizer on the training books, and encodes all books. */
export function tokenizeCorpus({ train, heldOut }: Corpus, vocabulary: number): CorpusTokens {
  const texts = train.map(({ text }) => text);
  const json = toTokenizerJson(trainBytePairs(texts, vocabulary));
  const config = { tokenizer_class: "PreTrainedTokenizerFast", eos_token: endToken, model_max_length: 2 ** 20 };
  const tokenizerFiles: TokenizerFiles = { tokenizer: json, config };
  const tokenizer = new Tokenizer("tokenizer.json", tokenizerFiles);
  return { tokenizer, tokenizerFiles, train: encodeBooks(tokenizer, train), heldOut: encodeBooks(tokenizer, heldOut) };
}

/** Encodes books. Every book ends with the end token. */
export function encodeBooks(tokenizer: Tokenizer, books: readonly Book[]): readonly (readonly number[])[] {
  const encode = createWordEncoder(tokenizer);
  const endTokenId = tokenizer.tokenId(endToken)!;
  return books.map(({ text }) => [...encode(text), endTokenId]);
}

/** Returns an equivalent of `tokenizer.encode` that encodes each distinct word once. Tokens never span two words. */
export function createWordEncoder(tokenizer: Tokenizer): (text: string) => number[] {
  const idsByWord = new Map<string, readonly number[]>();
  return (text) =>
    splitWords(text).flatMap((word) => {
      let ids = idsByWord.get(word);
      if (!ids) idsByWord.set(word, (ids = tokenizer.encode(word)));
      return ids;
    });
}
