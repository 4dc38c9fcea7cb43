import type { Context } from "@mosaic/attention";
import type { CausalLM } from "@mosaic/models";
import { readCorpus } from "./corpus.ts";
import { scoreText } from "./held-out.ts";
import { openModel } from "./model-folder.ts";
import type { ModelSettings } from "./settings.ts";
import { encodeBooks } from "./tokenizer/corpus-tokens.ts";

/** Loss of a model on the tokens [from, to) of texts. */
export interface PositionLoss {
  readonly from: number;
  readonly to: number;
  /** Mean cross-entropy of held-out tokens, nats. */
  readonly loss: number;
  /** Standard error of the loss over the texts. */
  readonly error: number;
}

/** Losses by position, and losses of the same tokens by context length. */
export interface PerplexityResult {
  readonly length: number;
  readonly texts: number;
  readonly positions: readonly PositionLoss[];
  /** Mean loss of tokens in the second half of the texts, by number of context tokens before them. */
  readonly contexts: readonly { readonly context: number; readonly loss: number }[];
}

/** Returns the bounds of position ranges, which double from 16 on. */
export function positionBounds(length: number): readonly number[] {
  const bounds = [0];
  for (let bound = 16; bound < length; bound *= 2) bounds.push(bound);
  return [...bounds, length];
}

/**
 * Measures the loss on held-out books by position in the text, and the loss of the same tokens with shorter contexts,
 * which shows the benefit of a long context. No text crosses the end of a book. Collective.
 */
export async function measurePerplexity(
  ctx: Context,
  settings: ModelSettings,
  onProgress: (share: number) => void,
): Promise<PerplexityResult> {
  using model = await openModel(ctx, settings.model, settings.backend);
  const length = settings.length || model.config.maxLength;
  const heldOut = encodeBooks(model.tokenizer!, readCorpus().heldOut);
  const texts = pickEvenly(
    heldOut.flatMap((book) => splitEvenly(book, length + 1)),
    settings.trials,
  );
  const bounds = positionBounds(length);
  const positionRanges = bounds.slice(0, -1).map((from, i) => [from, bounds[i + 1]!] as const);
  const lossesByText: number[][] = [];
  const contexts = contextLengths(length);
  const lossesByContext = contexts.map(() => [] as number[]);
  for (const [i, text] of texts.entries()) {
    const labels = text.slice(1);
    const rangeLabels = positionRanges.map(([from, to]) =>
      labels.map((label, position) => (position >= from && position < to ? label : -100)),
    );
    lossesByText.push(await scoreText(ctx, model, { tokens: text.slice(0, -1), questionLabels: rangeLabels }));
    for (const [contextIndex, context] of contexts.entries())
      lossesByContext[contextIndex]!.push(await scoreWithContext(ctx, { model, text, context }));
    onProgress((i + 1) / texts.length);
  }
  return {
    length,
    texts: texts.length,
    positions: positionRanges.map(([from, to], i) => ({
      from,
      to,
      ...estimateMeanLoss(lossesByText.map((losses) => losses[i]!)),
    })),
    contexts: contexts.map((context, contextIndex) => ({
      context,
      loss: estimateMeanLoss(lossesByContext[contextIndex]!).loss,
    })),
  };
}

/** Returns half the length, divided repeatedly by four. */
function contextLengths(length: number): readonly number[] {
  const halfLength = Math.floor(length / 2);
  return [Math.floor(halfLength / 64), Math.floor(halfLength / 16), Math.floor(halfLength / 4), halfLength].filter(
    (contextLength) => contextLength >= 4,
  );
}

/** Returns the mean loss of the first tokens in the second half of a text, with `context` tokens before them. */
async function scoreWithContext(
  ctx: Context,
  { model, text, context }: { model: CausalLM; text: readonly number[]; context: number },
): Promise<number> {
  const halfLength = Math.floor((text.length - 1) / 2);
  // The same tokens for every context: the first few of the second half.
  const numScoredTokens = Math.min(16, halfLength);
  const scoredWindow = text.slice(halfLength - context, halfLength + numScoredTokens + 1);
  const labels = scoredWindow.slice(1).map((label, position) => (position >= context ? label : -100));
  const [loss] = await scoreText(ctx, model, { tokens: scoredWindow.slice(0, -1), questionLabels: [labels] });
  return loss!;
}

function splitEvenly(book: readonly number[], length: number): readonly (readonly number[])[] {
  const count = Math.floor(book.length / length);
  return Array.from({ length: count }, (_, i) => book.slice(i * length, (i + 1) * length));
}

/** Returns `count` items of a list, evenly spaced. */
function pickEvenly<T>(items: readonly T[], count: number): readonly T[] {
  if (items.length <= count) return items;
  return Array.from({ length: count }, (_, i) => items[Math.floor((i * items.length) / count)]!);
}

function estimateMeanLoss(values: readonly number[]): { loss: number; error: number } {
  const loss = values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - loss) ** 2, 0) / Math.max(1, values.length - 1);
  return { loss, error: Math.sqrt(variance / values.length) };
}
