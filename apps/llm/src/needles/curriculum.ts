/** Options of the rows of a step. */
export interface NeedleRowOptions {
  /** Number of tokens in a row. */
  readonly length: number;
  /** Maximum number of facts in a row. */
  readonly maxFacts: number;
  /** Whether the row has one question for each fact ("once"), or is filled with repeated questions ("again"). */
  readonly questionMode: "once" | "again";
  /** Number of tokens in all rows of a step, unless one row has more. */
  readonly tokensPerStep: number;
}

/**
 * Options of the first rows: few facts and many questions, without other text. Here the model learns to match keys, and
 * later to do so over more and more tokens.
 */
const firstRowOptions: NeedleRowOptions = { length: 64, maxFacts: 4, questionMode: "again", tokensPerStep: 1024 };

/** Shares of the steps after which rows contain other text, start to grow, and have the full length. */
const stageStartShares = { text: 0.25, growth: 0.4, longest: 0.65 } as const;

/** Maximum number of facts in longer rows, and number of tokens of a row per fact. */
const [MAX_FACTS, TOKENS_PER_FACT] = [32, 12];

/** Returns the options of later rows of `length` tokens. */
export function createLaterRowOptions(length: number): NeedleRowOptions {
  const facts = Math.max(2, Math.min(MAX_FACTS, Math.floor(length / TOKENS_PER_FACT)));
  return { length, maxFacts: facts, questionMode: "once", tokensPerStep: 4096 };
}

/**
 * Returns the row options of a step. The curriculum begins with dense rows of 64 tokens, then rows of 128 tokens with
 * other text, then rows that double up to `length`. All doubled lengths except the longest have the same number of
 * steps. While rows grow, every other step has one of the shorter kinds, so that the model still finds facts that are
 * near.
 */
export function chooseNeedleRowOptions(
  step: number,
  { steps, length }: { readonly steps: number; readonly length: number },
): NeedleRowOptions {
  const [textStartStep, growingStartStep, longestStartStep] = [
    stageStartShares.text,
    stageStartShares.growth,
    stageStartShares.longest,
  ].map((stageShare) => Math.round(stageShare * steps));
  const rowKinds = [...rowKindsUpTo(length)];
  if (step < textStartStep! || rowKinds.length === 1) return rowKinds[0]!;
  if (step < growingStartStep!) return rowKinds[1]!;
  // Number of lengths between the second and the last.
  const numIntermediateLengths = Math.max(0, rowKinds.length - 3);
  const kindIndex =
    step < longestStartStep!
      ? 2 + Math.floor(((step - growingStartStep!) * numIntermediateLengths) / (longestStartStep! - growingStartStep!))
      : rowKinds.length - 1;
  const lastKindIndex = Math.min(kindIndex, rowKinds.length - 1);
  return step % 2 === 0 ? rowKinds[lastKindIndex]! : rowKinds[((step - 1) / 2) % lastKindIndex]!;
}

/** Yields the kinds of rows, from the first to the longest. */
function* rowKindsUpTo(length: number): Generator<NeedleRowOptions> {
  yield { ...firstRowOptions, length: Math.min(length, firstRowOptions.length) };
  for (
    let rowLength = 2 * firstRowOptions.length;
    rowLength < 2 * length && length > firstRowOptions.length;
    rowLength *= 2
  ) {
    yield createLaterRowOptions(Math.min(length, rowLength));
  }
}

/** Returns the number of rows of a step, for a `batch` of the longest rows. */
export function countRows({ length, tokensPerStep }: NeedleRowOptions, batch: number): number {
  return batch * Math.max(1, Math.floor(tokensPerStep / length));
}
