/** What the rows of a step are like. */
export interface NeedleRows {
  /** Tokens of a row. */
  readonly length: number;
  /** Facts of a row, at most. */
  readonly mostFacts: number;
  /** How often each fact is asked for: once, or again and again until the row is full. */
  readonly asked: "once" | "again";
  /** Tokens of all rows of a step that has a row of `length` tokens at least. */
  readonly tokens: number;
}

/** The first rows: nothing but few facts and many questions. Keys come to be matched here; later it is done over ever more tokens. */
const firstRows: NeedleRows = { length: 64, mostFacts: 4, asked: "again", tokens: 1024 };

/** The shares of the steps after which rows have other text, and after which they grow. */
const [firstShare, growingShare] = [0.4, 0.6];

/** Facts of longer rows, at most, and tokens of a row for each. */
const [mostFacts, tokensPerFact] = [32, 12];

/** Rows of `length` tokens after the first ones. */
export function laterRows(length: number): NeedleRows {
  const facts = Math.max(2, Math.min(mostFacts, Math.floor(length / tokensPerFact)));
  return { length, mostFacts: facts, asked: "once", tokens: 4096 };
}

/**
 * The curriculum: dense rows of 64 tokens first, for 0.4 of the steps, then rows of 128 tokens with other text, for 0.2, and rows that double
 * up to `length`, for as many steps each.
 */
export function curriculum(
  step: number,
  { steps, length }: { readonly steps: number; readonly length: number },
): NeedleRows {
  const first = Math.min(length, firstRows.length);
  const [firstSteps, growing] = [Math.round(firstShare * steps), Math.round(growingShare * steps)];
  if (step < firstSteps) return { ...firstRows, length: first };
  const stages = Math.max(1, Math.ceil(Math.log2(length / first)) - 1);
  const stage = step < growing ? 0 : 1 + Math.floor(((step - growing) * stages) / (steps - growing));
  return laterRows(Math.min(length, 2 * first * 2 ** stage));
}

/** Rows of a step, for a `batch` of the longest. */
export function rowsOfStep({ length, tokens }: NeedleRows, batch: number): number {
  return batch * Math.max(1, Math.floor(tokens / length));
}
