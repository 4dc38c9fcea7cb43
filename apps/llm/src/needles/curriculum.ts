/** What the rows of a step are like. */
export interface NeedleRowOptions {
  /** Tokens of a row. */
  readonly length: number;
  /** Facts of a row, at most. */
  readonly maxFacts: number;
  /** How often each fact is asked for: once, or again and again until the row is full. */
  readonly questionMode: "once" | "again";
  /** Tokens of all rows of a step, unless one row has more. */
  readonly tokensPerStep: number;
}

/** The first rows: nothing but few facts and many questions. Keys come to be matched here; later it is done over ever more tokens. */
const firstRowOptions: NeedleRowOptions = { length: 64, maxFacts: 4, questionMode: "again", tokensPerStep: 1024 };

/** The shares of the steps after which rows have other text, after which they grow, and after which they are the longest. */
const stageStartShares = { text: 0.25, growth: 0.4, longest: 0.65 } as const;

/** Facts of longer rows, at most, and tokens of a row for each. */
const [MAX_FACTS, TOKENS_PER_FACT] = [32, 12];

/** Rows of `length` tokens after the first ones. */
export function createLaterRowOptions(length: number): NeedleRowOptions {
  const facts = Math.max(2, Math.min(MAX_FACTS, Math.floor(length / TOKENS_PER_FACT)));
  return { length, maxFacts: facts, questionMode: "once", tokensPerStep: 4096 };
}

/**
 * The curriculum: dense rows of 64 tokens first, then rows of 128 with other text, then rows that double up to `length`, for as many steps each,
 * but for the longest. While rows grow, every other step has one of the shorter ones, so that what is near is still found.
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
  // Of the lengths between the second and the last one.
  const numIntermediateLengths = Math.max(0, rowKinds.length - 3);
  const kindIndex =
    step < longestStartStep!
      ? 2 + Math.floor(((step - growingStartStep!) * numIntermediateLengths) / (longestStartStep! - growingStartStep!))
      : rowKinds.length - 1;
  const lastKindIndex = Math.min(kindIndex, rowKinds.length - 1);
  return step % 2 === 0 ? rowKinds[lastKindIndex]! : rowKinds[((step - 1) / 2) % lastKindIndex]!;
}

/** The kinds of rows, from the first to the longest. */
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

/** Rows of a step, for a `batch` of the longest. */
export function countRows({ length, tokensPerStep }: NeedleRowOptions, batch: number): number {
  return batch * Math.max(1, Math.floor(tokensPerStep / length));
}
