import { type Context, fromArray, masks, shard, type Tensor } from "@mosaic/attention";
import type { PlacementOfMask } from "@mosaic/attention/nn";
import { Random } from "@mosaic/program";
import type { Batches, TrainingBatch } from "../batches.ts";
import { createNeedleText, drawFacts, type FactTokens, type NeedleText } from "./needle-text.ts";

/** What the rows of a training are drawn from. */
export interface NeedleSource {
  readonly tokens: FactTokens;
  /** Other text, without end tokens. */
  readonly filler: ArrayLike<number>;
  /** Whether keys are those that no training has. */
  readonly unseen: boolean;
}

export interface NeedleBatchOptions {
  /** Tokens of a row at a step. */
  readonly lengthAt: (step: number) => number;
  /** Tokens of all rows of a step. */
  readonly batchTokens: number;
  readonly seed: number;
  readonly placement: "zigzag" | "contiguous" | PlacementOfMask;
}

/** Tokens of the first rows: what a key is for is learnt in short rows, then used in longer ones. */
const shortestLength = 32;

/** The curriculum: rows of 32 tokens first, then twice as long and twice as long again, up to `length`, for as many steps each. */
export function curriculum(
  step: number,
  { steps, length }: { readonly steps: number; readonly length: number },
): number {
  const stages = 1 + Math.max(0, Math.ceil(Math.log2(length / shortestLength)));
  const stage = Math.min(stages - 1, Math.floor((step * stages) / steps));
  return Math.min(length, shortestLength * 2 ** stage);
}

/** One fact for so many tokens of a row at most, and no more than `mostFacts`. */
const [tokensPerFact, mostFacts] = [12, 128] as const;

/** A row: other text from anywhere, facts anywhere in it, and as many questions, each for any of them: no answer follows from those before. */
export function drawNeedleRow(source: NeedleSource, length: number, random: Random): NeedleText {
  const { tokens, filler, unseen } = source;
  const most = Math.max(1, Math.min(mostFacts, Math.floor(length / tokensPerFact)));
  const facts = drawFacts(
    1 + random.integer(most),
    { words: tokens.words.length, values: tokens.values.length, unseen },
    random,
  );
  const start = random.integer(filler.length - length);
  const parts = {
    filler: Array.from({ length }, (_, i) => filler[start + i]!),
    facts,
    depths: facts.map(() => random.uniform()),
    asked: facts.map(() => random.integer(facts.length)),
    length,
  };
  return createNeedleText(parts, tokens);
}

/** Rows that follow from the seed and the step alone: on every mesh the same, and after a restart. */
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
    const { lengthAt, batchTokens, seed, placement } = this.#options;
    const { shape, coordinate } = this.#ctx.mesh;
    const length = lengthAt(this.#step);
    const rows = Math.floor(batchTokens / length / (shape.dp ?? 1));
    const first = (coordinate.dp ?? 0) * rows;
    const tokens = new Float32Array(rows * length);
    const labels = new Float32Array(rows * length).fill(-100);
    for (let row = 0; row < rows; row++) {
      const random = new Random(seed, Number(this.#source.unseen), this.#step, first + row);
      const text = drawNeedleRow(this.#source, length, random);
      tokens.set(text.tokens, row * length);
      for (const [i, at] of text.questions.entries()) labels[row * length + at] = text.answers[i]!;
    }
    this.#step++;
    const cut = typeof placement === "function" ? placement(this.#mask, length) : placement;
    const ofRank = (values: Float32Array): Tensor => {
      using whole = fromArray(this.#ctx, values, [rows, length]);
      return shard(this.#ctx, whole, 1, { placement: cut });
    };
    const shards = { tokens: ofRank(tokens), labels: ofRank(labels) };
    return {
      ...{ ...shards, length, mask: this.#mask, placement: cut },
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
