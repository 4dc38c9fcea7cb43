import type { Tokenizer } from "@mosaic/models";
import type { Random } from "@mosaic/program";

// A fact is "(key key value)", each one token: two words of the books and a digit or capital, "( God hand7)". A
// question has no value.

/** The tokens of which facts consist. */
export interface FactTokens {
  readonly openTokenId: number;
  readonly closeTokenId: number;
  /** Tokens of a space and letters, which are the words of keys. */
  readonly words: readonly number[];
  /** Tokens of one digit or capital. */
  readonly values: readonly number[];
}

/** The words of a key, as indices into `FactTokens.words`, and its value, as an index into `FactTokens.values`. */
export interface Fact {
  readonly key: readonly [number, number];
  readonly value: number;
}

/** Number of tokens in a fact, and in a question. */
export const [factLength, questionLength] = [5, 3] as const;

/** Finds the tokens of facts in a tokenizer's vocabulary. */
export function findFactTokens(tokenizer: Tokenizer): FactTokens {
  const ids = Array.from({ length: tokenizer.vocabSize() }, (_, id) => id);
  const words = ids.filter((id) => /^ [A-Za-z]+$/.test(tokenizer.decode([id])));
  const encodeCharacter = (character: string): number => tokenizer.encode(character)[0]!;
  const values = [..."0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"].map(encodeCharacter);
  return { openTokenId: encodeCharacter("("), closeTokenId: encodeCharacter(")"), words, values };
}

/** One in this many keys is unseen: it occurs in no training text. */
const UNSEEN_DIVISOR = 4;

/** Returns whether a key is excluded from training. It depends on the key only, so it is the same for every seed. */
export function isUnseen([firstWord, secondWord]: Fact["key"]): boolean {
  return ((Math.imul(firstWord + 1, 0x9e3779b1) ^ Math.imul(secondWord + 1, 0x85ebca6b)) >>> 16) % UNSEEN_DIVISOR === 0;
}

/** Returns `count` facts with different keys, either all unseen or none. Values repeat only after all are used. */
export function drawFacts(
  count: number,
  {
    numWords,
    numValues,
    usesUnseenKeysOnly,
  }: { readonly numWords: number; readonly numValues: number; readonly usesUnseenKeysOnly: boolean },
  random: Random,
): readonly Fact[] {
  const facts = new Map<number, Fact>();
  const shuffledValues = random.permutation(numValues);
  for (let attempt = 0; facts.size < count; attempt++) {
    if (attempt > 1000 * count)
      throw new Error(
        `drawFacts: expected ${count} keys, received ${facts.size} from ${numWords} words; enlarge the vocabulary`,
      );
    const key = [random.integer(numWords), random.integer(numWords)] as const;
    if (isUnseen(key) === usesUnseenKeysOnly)
      facts.set(key[0] * numWords + key[1], { key, value: shuffledValues[facts.size % numValues]! });
  }
  return [...facts.values()];
}

/** A text with facts, and questions at its end. */
export interface NeedleText {
  readonly tokens: readonly number[];
  /** Index of the last token of each question, at which the answer is predicted. */
  readonly questionPositions: readonly number[];
  /** Expected token of each answer. */
  readonly answers: readonly number[];
}

/** Parts of a text. */
export interface NeedleParts {
  /** Tokens of other text, at least `length` many. */
  readonly filler: ArrayLike<number>;
  readonly facts: readonly Fact[];
  /** Depth of each fact, from 0 at the beginning of the text to 1 before the questions. */
  readonly depths: readonly number[];
  /** Indices of the facts that are asked for. All questions but the last are answered. */
  readonly askedFactIndices: readonly number[];
  readonly length: number;
}

/** Creates a text of `length` tokens: other text with facts at their depths, followed by the questions. */
export function createNeedleText(
  { filler, facts, depths, askedFactIndices, length }: NeedleParts,
  factTokens: FactTokens,
): NeedleText {
  const { openTokenId, closeTokenId, words, values } = factTokens;
  const questionTokens = ({ key }: Fact): readonly number[] => [openTokenId, words[key[0]]!, words[key[1]]!];
  const statementTokens = (fact: Fact): readonly number[] => [
    ...questionTokens(fact),
    values[fact.value]!,
    closeTokenId,
  ];
  const fillerLength = length - factLength * (facts.length + askedFactIndices.length - 1) - questionLength;
  const tokens: number[] = [];
  let numUsedFillerTokens = 0;
  for (const index of facts.map((_, i) => i).sort((a, b) => depths[a]! - depths[b]!)) {
    for (const end = Math.round(depths[index]! * fillerLength); numUsedFillerTokens < end; numUsedFillerTokens++)
      tokens.push(filler[numUsedFillerTokens]!);
    tokens.push(...statementTokens(facts[index]!));
  }
  for (; numUsedFillerTokens < fillerLength; numUsedFillerTokens++) tokens.push(filler[numUsedFillerTokens]!);
  const [questionPositions, answers]: [number[], number[]] = [[], []];
  for (const index of askedFactIndices) {
    questionPositions.push(tokens.length + questionLength - 1);
    answers.push(values[facts[index]!.value]!);
    tokens.push(...statementTokens(facts[index]!));
  }
  return { tokens: tokens.slice(0, length), questionPositions, answers };
}
