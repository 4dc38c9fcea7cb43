import { describe, expect, it } from "vitest";
import * as mosaic from "../src/index.ts";
import { AdamW, crossEntropy, Embedding, MLP, RMSNorm, RotaryEmbedding } from "../src/nn.ts";

// Tests the steps of a training program: loader → dispatch → shard → forward(x, { mask, placement }). Documents of
// unequal length are packed into one sequence. In each document, tokens increase by a fixed step.

const [VOCABULARY, EMBED, CHUNK, STEPS, IGNORED] = [11, 16, 4, 12, -100];

interface Batch {
  readonly lengths: readonly number[];
  readonly tokens: readonly number[];
  readonly length: number;
}

/** The loader: a different packing at every step, the same on every rank. */
function loadBatch(step: number): Batch {
  const lengths = [
    [29, 2, 9, 1, 7],
    [3, 40, 5],
    [1, 1, 50, 6, 2],
    [17, 16, 15],
  ][step % 4]!;
  const tokens = lengths.flatMap((length, document) =>
    Array.from({ length }, (_, i) => (step + document * 3 + i * (1 + (document % 2))) % VOCABULARY),
  );
  return { lengths, tokens, length: tokens.length };
}

class Model extends mosaic.Module {
  readonly embed: Embedding;
  readonly norm1: RMSNorm;
  readonly attention: mosaic.MultiAxisAttention;
  readonly norm2: RMSNorm;
  readonly mlp: MLP;
  readonly head: mosaic.Linear;

  constructor(ctx: mosaic.Context, backend: string) {
    super();
    const heads = { embedDim: EMBED, numHeads: 4, numKvHeads: 2, attentionAxis: 1, backend } as const;
    this.embed = this.addChild("embed", new Embedding(ctx, VOCABULARY, EMBED, { std: 0.5 }));
    this.norm1 = this.addChild("norm1", new RMSNorm(ctx, EMBED));
    const positions = new RotaryEmbedding(EMBED / 4);
    this.attention = this.addChild("attention", new mosaic.MultiAxisAttention(ctx, { ...heads, positions }));
    this.norm2 = this.addChild("norm2", new RMSNorm(ctx, EMBED));
    this.mlp = this.addChild("mlp", new MLP(ctx, { embedDim: EMBED, hiddenDim: 32, dropout: 0.1 }));
    this.head = this.addChild("head", new mosaic.Linear(ctx, EMBED, VOCABULARY));
  }

  forward(
    tokens: mosaic.Tensor,
    mask: mosaic.Mask,
    placementOptions: { placement: mosaic.Placement; sequenceLength: number },
  ): mosaic.Tensor {
    const x = this.embed.forward(tokens);
    const y = x.add(this.attention.forward(this.norm1.forward(x), { mask, ...placementOptions }));
    return this.head.forward(y.add(this.mlp.forward(this.norm2.forward(y), placementOptions)));
  }
}

/** Computes the labels of all tokens: the next token of the same document. */
function computeLabels(ctx: mosaic.Context, tokens: mosaic.Tensor, { lengths, length }: Batch): mosaic.Tensor {
  const lastPositions = new Set(
    lengths.map((_, i) => lengths.slice(0, i + 1).reduce((sum, each) => sum + each, 0) - 1),
  );
  const keepFactors = Array.from({ length }, (_, i) => (lastPositions.has(i) ? 0 : 1));
  const keepMask = mosaic.fromArray(ctx, keepFactors, [1, length]);
  const ignoredLabels = mosaic.fromArray(
    ctx,
    keepFactors.map((each) => (each ? 0 : IGNORED)),
    [1, length],
  );
  return mosaic.roll(tokens, -1, 1).mul(keepMask).add(ignoredLabels);
}

async function train(ctx: mosaic.Context, backend: string): Promise<number[]> {
  using model = new Model(ctx, backend);
  using optimizer = new AdamW(model, { lr: 2e-2 });
  const losses: number[] = [];
  for (let step = 0; step < STEPS; step++) {
    const batch = loadBatch(step);
    const mask = mosaic.masks.documents(batch.lengths, "causal");
    const placement = mosaic.dispatch({ mask, length: batch.length, ranks: ctx.size, chunkSize: CHUNK });
    using loss = mosaic.scope(() => {
      const tokens = mosaic.fromArray(ctx, batch.tokens, [1, batch.length]);
      const labels = computeLabels(ctx, tokens, batch); // before sharding: the next token may be on another rank
      const shardRows = (x: mosaic.Tensor): mosaic.Tensor => mosaic.shard(ctx, x, 1, { placement });
      const logits = model.forward(shardRows(tokens), mask, { placement, sequenceLength: batch.length });
      const loss = crossEntropy(ctx, logits, shardRows(labels));
      loss.backward();
      return loss;
    });
    mosaic.reduceGradients(ctx, model);
    optimizer.step();
    optimizer.zeroGrad();
    losses.push(await loss.item());
  }
  return losses;
}

async function trainCurves(size: number, backend: string): Promise<number[][]> {
  const contexts = await mosaic.world(size, { mesh: { sp: size }, seed: 5 });
  try {
    return await Promise.all(contexts.map((ctx) => train(ctx, backend)));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

describe("training with a dispatch at every step", () => {
  it("has the loss curve of one rank, with flex and with ring", async () => {
    const [singleRankCurve] = await trainCurves(1, "flex");
    const mean = (losses: readonly number[]): number => losses.reduce((sum, each) => sum + each, 0) / losses.length;
    expect(mean(singleRankCurve!.slice(-4))).toBeLessThan(0.7 * mean(singleRankCurve!.slice(0, 4)));
    for (const [size, backend] of [
      [4, "flex"],
      [3, "flex"],
      [4, "ring"],
    ] as const) {
      for (const losses of await trainCurves(size, backend)) {
        expect(losses).toHaveLength(STEPS);
        for (const [step, loss] of losses.entries()) {
          const relativeError = Math.abs(loss - singleRankCurve![step]!) / singleRankCurve![step]!;
          expect([size, backend, step, relativeError < 1e-5]).toEqual([size, backend, step, true]);
        }
      }
    }
  });

  it("shards a sequence into several spans per rank, and unshard restores it", async () => {
    const { lengths, length, tokens } = loadBatch(0);
    const mask = mosaic.masks.documents(lengths, "causal");
    const placement = mosaic.dispatch({ mask, length, ranks: 4, chunkSize: CHUNK });
    const rows = [0, 1, 2, 3].map((rank) => placement.spans(rank, 4, length));
    expect(Math.max(...rows.map((spans) => spans.length))).toBeGreaterThan(1);
    const contexts = await mosaic.world(4, { mesh: { sp: 4 } });
    try {
      await Promise.all(
        contexts.map(async (ctx) => {
          const fullTokens = mosaic.fromArray(ctx, tokens, [1, length]);
          const localTokens = mosaic.shard(ctx, fullTokens, 1, { placement });
          expect(Array.from(await localTokens.read())).toEqual(
            rows[ctx.rank]!.flatMap(({ start, length: count }) => tokens.slice(start, start + count)),
          );
          const gatheredTokens = mosaic.unshard(ctx, localTokens, 1, { placement, length });
          expect(Array.from(await gatheredTokens.read())).toEqual(tokens);
        }),
      );
    } finally {
      await Promise.all(contexts.map((ctx) => ctx.close()));
    }
  });
});
