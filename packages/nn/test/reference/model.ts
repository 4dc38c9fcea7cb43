import {
  add,
  checkpoint,
  type Context,
  fromArray,
  Linear,
  Module,
  MultiAxisAttention,
  reduceGradients,
  shard,
  type Tensor,
} from "@mosaic/core";
import {
  clipGradNorm,
  crossEntropy,
  Dropout,
  Embedding,
  LayerNorm,
  MLP,
  type Optimizer,
  RotaryEmbedding,
} from "../../src/index.ts";
import { generateNumbers } from "./numbers.ts";
import { getBatchShare } from "./world.ts";

// A small transformer that is trained to output the previous token, on every mesh.

const [batch, length, vocabulary, embedDim] = [4, 12, 7, 16];

export class Model extends Module {
  readonly embed: Embedding;
  readonly attention: MultiAxisAttention;
  readonly mlp: MLP;
  readonly norm: LayerNorm;
  readonly head: Linear;
  readonly dropout: Dropout;

  constructor(ctx: Context) {
    super();
    const placement = "zigzag";
    const layoutOptions = { placement, sequenceLength: length } as const;
    this.embed = this.addChild("embed", new Embedding(ctx, vocabulary, embedDim, { std: 0.5 }));
    this.attention = this.addChild(
      "attention",
      new MultiAxisAttention(ctx, {
        embedDim,
        numHeads: 2,
        attentionAxis: 1,
        causal: true,
        backend: "ring",
        placement,
        positions: new RotaryEmbedding(embedDim / 2),
        sequenceLength: length,
      }),
    );
    this.mlp = this.addChild("mlp", new MLP(ctx, { embedDim, hiddenDim: 32, dropout: 0.1, sharding: layoutOptions }));
    this.norm = this.addChild("norm", new LayerNorm(ctx, embedDim));
    this.head = this.addChild("head", new Linear(ctx, embedDim, vocabulary));
    this.dropout = this.addChild("drop", new Dropout(ctx, 0.1, layoutOptions));
  }

  forward(tokens: Tensor): Tensor {
    using embeddings = this.embed.forward(tokens);
    using x = this.dropout.forward(embeddings);
    using attentionOutput = this.attention.forward(x);
    using y = add(x, attentionOutput);
    using mlpOutput = checkpoint((y) => this.mlp.forward(y), y);
    using z = add(y, mlpOutput);
    using normOutput = this.norm.forward(z);
    return this.head.forward(normOutput);
  }
}

/** Returns this rank's rows of a batch [B,S]. */
export function sliceForRank(ctx: Context, fullValues: readonly number[]): Tensor {
  const { index, count } = getBatchShare(ctx);
  const rowsPerRank = batch / count;
  const rankValues = fullValues.slice(index * rowsPerRank * length, (index + 1) * rowsPerRank * length);
  using rankBatch = fromArray(ctx, rankValues, [rowsPerRank, length]);
  return shard(ctx, rankBatch, 1, { placement: "zigzag" });
}

export function generateSamples(step: number): { tokens: number[]; targets: number[] } {
  const tokens = generateNumbers(batch * length, step).map((x) => Math.floor(((x + 1) / 2) * vocabulary));
  // Some rows are ignored, a different number on every rank.
  const targets = tokens.map((_, i) => (i % length < 1 || i % 11 === 3 ? -100 : tokens[i - 1]!));
  return { tokens, targets };
}

/** Runs one step. Resolves to the loss. */
export async function trainStep(
  ctx: Context,
  { model, optimizer }: { model: Model; optimizer: Optimizer },
): Promise<number> {
  const { tokens, targets } = generateSamples(optimizer.steps);
  using x = sliceForRank(ctx, tokens);
  using y = sliceForRank(ctx, targets);
  using logits = model.forward(x);
  using loss = crossEntropy(ctx, logits, y);
  loss.backward();
  reduceGradients(ctx, model);
  clipGradNorm(model, 1).dispose();
  optimizer.step();
  optimizer.zeroGrad();
  return loss.item();
}
