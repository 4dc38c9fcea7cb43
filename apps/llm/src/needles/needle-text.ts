import type { Tokenizer } from "@mosaic/models";
import type { Random } from "@mosaic/program";

// A fact is "(key key value)", each of one token: two words of the books and a digit or capital, "( God hand7)". A question lacks the value.

/** The tokens that facts are made of. */
export interface FactTokens {
  readonly openTokenId: number;
  readonly closeTokenId: number;
  /** Tokens of a space and letters: the words of keys. */
  readonly words: readonly number[];
  /** Tokens of one digit or capital. */
  readonly values: readonly number[];
}

/** The words of a key, by their numbers in `FactTokens.words`, and its value, by its number in `FactTokens.values`. */
export interface Fact {
  readonly key: readonly [number, number];
  readonly value: number;
}

/** Tokens of a fact, and of a question. */
export const [factLength, questionLength] = [5, 3] as const;

/** The tokens that facts are made of, in a tokenizer's vocabulary. */
export function findFactTokens(tokenizer: Tokenizer): FactTokens {
  const ids = Array.from({ length: tokenizer.vocabSize() }, (_, id) => id);
  const words = ids.filter((id) => /^ [A-Za-z]+$/.test(tokenizer.decode([id])));
  const encodeCharacter = (character: string): number => tokenizer.encode(character)[0]!;
  const values = [..."0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"].map(encodeCharacter);
  return { openTokenId: encodeCharacter("("), closeTokenId: encodeCharacter(")"), words, values };
}

/** One key of so many is unseen: no text of a training has it. */
const UNSEEN_DIVISOR = 4;

/** Whether a key is kept out of the training. It follows from the key alone, so that it is so for every seed. */
export function isUnseen([firstWord, secondWord]: Fact["key"]): boolean {
  return ((Math.imul(firstWord + 1, 0x9e3779b1) ^ Math.imul(secondWord + 1, 0x85ebca6b)) >>> 16) % UNSEEN_DIVISOR === 0;
}

/** So many facts with different keys, either all unseen or none. Values differ as long as there are others. */
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

/** A text with facts, and the questions at its end. */
export interface NeedleText {
  readonly tokens: readonly number[];
  /** Where the answer of each question is due: the index of the question's last token. */
  readonly questionPositions: readonly number[];
  /** The token that is due there. */
  readonly answers: readonly number[];
}

/** What a text is made of. */
export interface NeedleParts {
  /** Tokens of other text, at least as many as the text has. */
  readonly filler: ArrayLike<number>;
  readonly facts: readonly Fact[];
  /** Where each fact stands: 0, at the begin of the text, to 1, before the questions. */
  readonly depths: readonly number[];
  /** The facts that are asked for, by their numbers. All but the last are answered. */
  readonly askedFactIndices: readonly number[];
  readonly length: number;
}

/** A text of `length` tokens: other text, facts in it at their depths, and at the end the questions, one after another. */
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
