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
import { numbers } from "./numbers.ts";

// A small transformer that learns which token came before, on every mesh.

const [batch, length, vocabulary, embedDim] = [4, 12, 7, 16];

export class Model extends Module {
  readonly embed: Embedding;
  readonly attention: MultiAxisAttention;
  readonly mlp: MLP;
  readonly norm: LayerNorm;
  readonly head: Linear;
  readonly drop: Dropout;

  constructor(ctx: Context) {
    super();
    const placement = "zigzag";
    const where = { placement, sequenceLength: length } as const;
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
    this.mlp = this.addChild("mlp", new MLP(ctx, { embedDim, hiddenDim: 32, dropout: 0.1, sharding: where }));
    this.norm = this.addChild("norm", new LayerNorm(ctx, embedDim));
    this.head = this.addChild("head", new Linear(ctx, embedDim, vocabulary));
    this.drop = this.addChild("drop", new Dropout(ctx, 0.1, where));
  }

  forward(tokens: Tensor): Tensor {
    using embedded = this.embed.forward(tokens);
    using x = this.drop.forward(embedded);
    using attended = this.attention.forward(x);
    using y = add(x, attended);
    using wide = checkpoint((y) => this.mlp.forward(y), y);
    using z = add(y, wide);
    using normed = this.norm.forward(z);
    return this.head.forward(normed);
  }
}

/** This rank's rows of a batch [B,S]. */
export function part(ctx: Context, whole: readonly number[]): Tensor {
  const { dp = 1 } = ctx.mesh.shape;
  const [own, each] = [ctx.mesh.coordinate.dp ?? 0, batch / dp];
  const mine = whole.slice(own * each * length, (own + 1) * each * length);
  using full = fromArray(ctx, mine, [each, length]);
  return shard(ctx, full, 1, { placement: "zigzag" });
}

export function samples(step: number): { tokens: number[]; targets: number[] } {
  const tokens = numbers(batch * length, step).map((x) => Math.floor(((x + 1) / 2) * vocabulary));
  // Some rows do not count, a different number on every rank.
  const targets = tokens.map((_, i) => (i % length < 1 || i % 11 === 3 ? -100 : tokens[i - 1]!));
  return { tokens, targets };
}

/** One step; resolves to the loss. */
export async function trainStep(
  ctx: Context,
  { model, optimizer }: { model: Model; optimizer: Optimizer },
): Promise<number> {
  const { tokens, targets } = samples(optimizer.steps);
  using x = part(ctx, tokens);
  using y = part(ctx, targets);
  using logits = model.forward(x);
  using loss = crossEntropy(ctx, logits, y);
  loss.backward();
  reduceGradients(ctx, model);
  clipGradNorm(model, 1).dispose();
  optimizer.step();
  optimizer.zeroGrad();
  return loss.item();
}
