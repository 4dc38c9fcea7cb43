import { type Context, fromArray, noGrad, scope, shard, unshard } from "@mosaic/attention";
import type { CausalLM } from "@mosaic/models";
import { Random } from "@mosaic/program";
import { readCorpus } from "../corpus.ts";
import { END_TOKEN_ID, openModel } from "../model-folder.ts";
import type { ModelSettings } from "../settings.ts";
import { encodeBooks } from "../tokenizer/corpus-tokens.ts";
import { createNeedleText, drawFacts, findFactTokens, type NeedleText } from "./needle-text.ts";

/** Accuracy of a model for facts at one depth in texts of one length. */
export interface NeedleCell {
  readonly length: number;
  /** 0: at the beginning of the text. 1: just before the question. */
  readonly depth: number;
  /** Share of the texts in which the correct value is the most probable of all values. */
  readonly accuracy: number;
}

/** Result of a needle measurement. */
export interface NeedleResult {
  readonly cells: readonly NeedleCell[];
  /** Number of texts of each cell. */
  readonly trials: number;
  readonly seed: number;
  /** Number of facts in a text, one of which the question asks for. */
  readonly facts: number;
  /** Number of possible values of an answer. */
  readonly values: number;
  /** Accuracy of choosing the value of a random fact in the text. Choosing a random value has accuracy 1 / values. */
  readonly chance: number;
  /** max_position_embeddings: the maximum length of rows in training. */
  readonly trainedLength: number;
}

const depths = [0, 0.25, 0.5, 0.75, 1] as const;
/** Number of facts in a text. */
const FACT_COUNT = 8;
/** Maximum total number of tokens of the texts in a batch. */
const MAX_BATCH_TOKENS = 8192;
/** Distinguishes these texts from those of a training of the same seed. */
const RANDOM_STREAM = 2;

/** Returns the lengths to measure: `maxLength`, halved repeatedly down to a sixteenth. */
export function textLengths(maxLength: number): readonly number[] {
  return [16, 8, 4, 2, 1].map((divisor) => Math.floor(maxLength / divisor)).filter((textLength) => textLength >= 64);
}

/** Returns the texts of a cell: held-out books with unseen keys, one fact at the depth and the others anywhere. */
export function drawNeedleTexts(
  tokenSource: Readonly<{ tokens: ReturnType<typeof findFactTokens>; filler: ArrayLike<number> }>,
  cellOptions: Readonly<{ length: number; depth: number; trials: number; seed: number }>,
): readonly NeedleText[] {
  const { tokens, filler } = tokenSource;
  return Array.from({ length: cellOptions.trials }, (_, trial) => {
    const random = new Random(cellOptions.seed, RANDOM_STREAM, cellOptions.length, 100 * cellOptions.depth, trial);
    const facts = drawFacts(
      FACT_COUNT,
      { numWords: tokens.words.length, numValues: tokens.values.length, usesUnseenKeysOnly: true },
      random,
    );
    const start = random.integer(filler.length - cellOptions.length);
    const fillerTokens = Array.from({ length: cellOptions.length }, (__, i) => filler[start + i]!);
    const factDepths = facts.map((__, i) => (i === 0 ? cellOptions.depth : random.uniform()));
    return createNeedleText(
      { filler: fillerTokens, facts, depths: factDepths, askedFactIndices: [0], length: cellOptions.length },
      tokens,
    );
  });
}

/**
 * Measures needle in a haystack (Kamradt 2023) with keys that do not occur in training (multi-query associative recall,
 * Arora et al. 2023). Texts are held-out text with facts in it and one of their keys at the end. Counts how often the
 * key's value is the most probable value. Collective.
 */
export async function measureNeedles(
  ctx: Context,
  settings: ModelSettings,
  onProgress: (share: number) => void,
): Promise<NeedleResult> {
  const { backend, trials, seed } = settings;
  using model = await openModel(ctx, settings.model, backend);
  const tokens = findFactTokens(model.tokenizer!);
  const heldOut = encodeBooks(model.tokenizer!, readCorpus().heldOut);
  const filler = heldOut.flat().filter((token) => token !== END_TOKEN_ID);
  const trainedLength = model.config.maxLength;
  const lengths = textLengths(settings.length || 2 * trainedLength);
  const cells: NeedleCell[] = [];
  for (const length of lengths) {
    for (const depth of depths) {
      const texts = drawNeedleTexts({ tokens, filler }, { length, depth, trials, seed });
      const numCorrect = await countCorrect(ctx, model, { texts, values: tokens.values });
      cells.push({ length, depth, accuracy: numCorrect / texts.length });
      onProgress(cells.length / (lengths.length * depths.length));
    }
  }
  return {
    cells,
    trials,
    seed,
    facts: FACT_COUNT,
    values: tokens.values.length,
    chance: 1 / FACT_COUNT,
    trainedLength,
  };
}

/** Returns the number of texts whose question is answered with the correct value. */
async function countCorrect(
  ctx: Context,
  model: CausalLM,
  { texts, values }: { readonly texts: readonly NeedleText[]; readonly values: readonly number[] },
): Promise<number> {
  const { length } = texts[0]!.tokens;
  const textsPerBatch = Math.max(1, Math.floor(MAX_BATCH_TOKENS / length));
  let numCorrect = 0;
  for (let firstTextIndex = 0; firstTextIndex < texts.length; firstTextIndex += textsPerBatch) {
    const batch = texts.slice(firstTextIndex, firstTextIndex + textsPerBatch);
    const logits = await computeLastLogits(ctx, model, batch);
    const vocabSize = logits.length / batch.length;
    for (const [i, { answers }] of batch.entries()) {
      const row = logits.subarray(i * vocabSize, (i + 1) * vocabSize);
      const bestToken = values.reduce((bestTokenSoFar, token) =>
        row[token]! > row[bestTokenSoFar]! ? token : bestTokenSoFar,
      );
      if (bestToken === answers[0]) numCorrect++;
    }
  }
  return numCorrect;
}

/** Returns the logits after the last token of texts of one length, [texts,V], on every rank. */
async function computeLastLogits(ctx: Context, model: CausalLM, texts: readonly NeedleText[]): Promise<Float32Array> {
  const { length } = texts[0]!.tokens;
  const { placement } = model.settings;
  using logits = scope(() =>
    noGrad(() => {
      const fullBatch = fromArray(
        ctx,
        texts.flatMap(({ tokens }) => tokens),
        [texts.length, length],
      );
      const hidden = model.decoder.forward(shard(ctx, fullBatch, 1, { placement }), { sequenceLength: length });
      const lastHidden = unshard(ctx, hidden, 1, { placement, length }).slice(1, length - 1);
      return model.project(lastHidden);
    }),
  );
  return Float32Array.from(await logits.read());
}
