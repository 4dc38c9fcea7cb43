import { alphabet, byteCharacters, splitWords } from "./byte-level.ts";

/** The token at the end of every document. */
export const endToken = "</s>";

/** A byte-pair tokenizer: IDs by token, and pairs of tokens in the order in which they are merged. */
export interface BytePairs {
  readonly vocabulary: ReadonlyMap<string, number>;
  readonly merges: readonly (readonly [string, string])[];
}

/** A distinct word as token IDs, and the number of its occurrences. */
interface WordCount {
  ids: number[];
  readonly count: number;
}

/** Encodes a pair of IDs as one number. */
const pairKey = (a: number, b: number): number => a * 2 ** 20 + b;

/**
 * Trains byte-pair encoding (Sennrich et al. 2016) on bytes. The most frequent pair of adjacent tokens is merged into a
 * new token until there are `vocabSize` tokens. Of equally frequent pairs, the one with the smaller IDs is merged. The
 * same texts give the same tokenizer, byte by byte. Merges never span two words.
 */
export function trainBytePairs(texts: readonly string[], vocabSize: number): BytePairs {
  const tokens = [endToken, ...alphabet];
  if (!(Number.isSafeInteger(vocabSize) && vocabSize >= tokens.length)) {
    throw new RangeError(
      `trainBytePairs: expected an integer ≥ ${tokens.length} as the vocabulary size, received ${vocabSize}`,
    );
  }
  const tokenIds = new Map(tokens.map((token, id) => [token, id]));
  const words = countWords(texts, tokenIds);
  const pairCounts = new PairCounts(words);
  const merges: [string, string][] = [];
  while (tokens.length < vocabSize) {
    const bestPair = pairCounts.findMostFrequent();
    if (!bestPair) break;
    const [a, b] = bestPair;
    merges.push([tokens[a]!, tokens[b]!]);
    tokens.push(tokens[a]! + tokens[b]!);
    pairCounts.merge(bestPair, tokens.length - 1);
  }
  return { vocabulary: new Map(tokens.map((token, id) => [token, id])), merges };
}

function countWords(texts: readonly string[], tokenIds: ReadonlyMap<string, number>): readonly WordCount[] {
  const counts = new Map<string, number>();
  for (const text of texts) for (const word of splitWords(text)) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].map(([word, count]) => ({
    ids: byteCharacters(word).map((byteCharacter) => tokenIds.get(byteCharacter)!),
    count,
  }));
}

/** Number of occurrences of each pair of adjacent tokens, and the words that contain it. */
class PairCounts {
  readonly #pairCounts = new Map<number, number>();
  readonly #wordsByPair = new Map<number, Set<WordCount>>();

  constructor(words: readonly WordCount[]) {
    for (const word of words) this.#addWord(word, 1);
  }

  #addWord(word: WordCount, sign: 1 | -1): void {
    const { ids, count } = word;
    for (let i = 0; i + 1 < ids.length; i++) {
      const key = pairKey(ids[i]!, ids[i + 1]!);
      const newCount = (this.#pairCounts.get(key) ?? 0) + sign * count;
      if (newCount > 0) this.#pairCounts.set(key, newCount);
      else this.#pairCounts.delete(key);
      const containingWords = this.#wordsByPair.get(key) ?? new Set();
      if (sign > 0) this.#wordsByPair.set(key, containingWords.add(word));
      else containingWords.delete(word);
    }
  }

  /** Returns the most frequent pair, or undefined if no pair occurs more than once. */
  findMostFrequent(): readonly [number, number] | undefined {
    let [bestKey, maxCount] = [-1, 1];
    for (const [key, count] of this.#pairCounts) {
      if (count > maxCount || (count === maxCount && bestKey >= 0 && key < bestKey)) [bestKey, maxCount] = [key, count];
    }
    return bestKey < 0 ? undefined : [Math.floor(bestKey / 2 ** 20), bestKey % 2 ** 20];
  }

  /** Replaces the pair by the new token in every word. */
  merge([a, b]: readonly [number, number], mergedTokenId: number): void {
    for (const word of [...(this.#wordsByPair.get(pairKey(a, b)) ?? [])]) {
      this.#addWord(word, -1);
      const ids: number[] = [];
      for (let i = 0; i < word.ids.length; i++) {
        const isPairMatch = word.ids[i] === a && word.ids[i + 1] === b;
        ids.push(isPairMatch ? mergedTokenId : word.ids[i]!);
        if (isPairMatch) i++;
      }
      word.ids = ids;
      this.#addWord(word, 1);
    }
  }
}

/** Converts the tokenizer to Hugging Face's tokenizer.json. */
export function toTokenizerJson({ vocabulary, merges }: BytePairs): Readonly<Record<string, unknown>> {
  const byteLevel = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  return {
    ...{ version: "1.0", truncation: null, padding: null, normalizer: null, post_processor: null },
    added_tokens: [{ id: vocabulary.get(endToken)!, content: endToken, ...flags }],
    pre_tokenizer: byteLevel,
    decoder: byteLevel,
    model: {
      ...{ type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null },
      ...{ fuse_unk: false, byte_fallback: false, ignore_merges: false },
      vocab: Object.fromEntries(vocabulary),
      merges,
    },
  };
}
