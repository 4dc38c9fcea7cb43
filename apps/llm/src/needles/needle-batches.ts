import { type Context, fromArray, masks, shard, type Tensor } from "@mosaic/attention";
import { dataParallelRank, dataParallelSize } from "@mosaic/attention/core";
import type { PlacementFunction } from "@mosaic/attention/nn";
import { Random } from "@mosaic/program";
import type { Batches, TrainingBatch } from "../batches.ts";
import { type NeedleRowOptions, countRows } from "./curriculum.ts";
import {
  createNeedleText,
  drawFacts,
  factLength,
  type FactTokens,
  type NeedleText,
  questionLength,
} from "./needle-text.ts";

/** Source of the rows of a training. */
export interface NeedleSource {
  readonly tokens: FactTokens;
  /** Other text, without end tokens. */
  readonly filler: ArrayLike<number>;
  /** Whether only keys that do not occur in training are used. */
  readonly usesUnseenKeysOnly: boolean;
}

export interface NeedleBatchOptions {
  readonly rowOptionsForStep: (step: number) => NeedleRowOptions;
  /** Number of rows of a step, if they are long. */
  readonly batch: number;
  readonly seed: number;
  readonly placement: "zigzag" | "contiguous" | PlacementFunction;
}

/** Returns a random depth. One fact in twelve is at each end, because otherwise almost none would be exactly there. */
function drawDepth(random: Random): number {
  return Math.min(1, Math.max(0, 1.2 * random.uniform() - 0.1));
}

/**
 * Returns a row of other text from a random position, with facts at random depths and questions in random order at its
 * end. There are equally many questions for each fact.
 */
export function drawNeedleRow(
  source: NeedleSource,
  { length, maxFacts, questionMode }: NeedleRowOptions,
  random: Random,
): NeedleText {
  const { tokens, filler, usesUnseenKeysOnly } = source;
  // The row must have room for as many questions as facts. The last question has no value.
  const maxRowFacts = Math.min(maxFacts, Math.floor((length + factLength - questionLength) / (2 * factLength)));
  const numFacts = Math.min(maxRowFacts, 2 + random.integer(maxFacts - 1));
  const facts = drawFacts(
    numFacts,
    { numWords: tokens.words.length, numValues: tokens.values.length, usesUnseenKeysOnly },
    random,
  );
  const start = random.integer(filler.length - length);
  const numQuestions =
    questionMode === "once" ? numFacts : Math.floor((length + factLength - questionLength) / factLength) - numFacts;
  const questionOrders = Array.from({ length: Math.ceil(numQuestions / numFacts) }, () => [
    ...random.permutation(numFacts),
  ]);
  const needleParts = {
    filler: Array.from({ length }, (_, i) => filler[start + i]!),
    facts,
    depths: facts.map(() => drawDepth(random)),
    askedFactIndices: questionOrders.flat().slice(0, numQuestions),
    length,
  };
  return createNeedleText(needleParts, tokens);
}

/** Batches of rows that depend only on the seed and the step. They are the same on every mesh and after a restart. */
export class NeedleBatches implements Batches<number> {
  readonly #ctx: Context;
  readonly #source: NeedleSource;
  readonly #options: NeedleBatchOptions;
  readonly #mask = masks.causal();
  #step = 0;

  constructor(ctx: Context, source: NeedleSource, options: NeedleBatchOptions) {
    this.#ctx = ctx;
    this.#source = source;
    this.#options = options;
  }

  next(): TrainingBatch {
    const { rowOptionsForStep, batch, seed, placement } = this.#options;
    const { mesh } = this.#ctx;
    const rowOptions = rowOptionsForStep(this.#step);
    const { length } = rowOptions;
    const rows = countRows(rowOptions, batch) / dataParallelSize(mesh);
    const firstRow = dataParallelRank(mesh) * rows;
    const tokens = new Float32Array(rows * length);
    const labels = new Float32Array(rows * length).fill(-100);
    for (let row = 0; row < rows; row++) {
      const random = new Random(seed, Number(this.#source.usesUnseenKeysOnly), this.#step, firstRow + row);
      const text = drawNeedleRow(this.#source, rowOptions, random);
      tokens.set(text.tokens, row * length);
      for (const [i, questionPosition] of text.questionPositions.entries()) {
        // A key's second word can be predicted from the first, as a value from both. This easier match of one token is
        // learned first.
        labels[row * length + questionPosition - 1] = text.tokens[questionPosition]!;
        labels[row * length + questionPosition] = text.answers[i]!;
      }
    }
    this.#step++;
    const batchPlacement = typeof placement === "function" ? placement(this.#mask, length) : placement;
    const shardRows = (values: Float32Array): Tensor => {
      using fullRows = fromArray(this.#ctx, values, [rows, length]);
      return shard(this.#ctx, fullRows, 1, { placement: batchPlacement });
    };
    const shards = { tokens: shardRows(tokens), labels: shardRows(labels) };
    return {
      ...{ ...shards, length, mask: this.#mask, placement: batchPlacement },
      [Symbol.dispose]() {
        shards.tokens.dispose();
        shards.labels.dispose();
      },
    };
  }

  state(): number {
    return this.#step;
  }

  load(step: number): void {
    this.#step = step;
  }
}
