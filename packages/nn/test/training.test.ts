import {
  add,
  type Context,
  type Coordinate,
  fromArray,
  Linear,
  Module,
  MultiAxisAttention,
  shard,
  type Tensor,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  checkpoint,
  clipGradNorm,
  crossEntropy,
  Dropout,
  Embedding,
  LayerNorm,
  linearWarmup,
  MLP,
  type Optimizer,
  ScheduleFreeAdamW,
  syncGradients,
} from "../src/index.ts";
import { numbers } from "./reference/numbers.ts";
import { onMesh } from "./reference/world.ts";

// A small transformer that learns to map each token to another, on every mesh.

const [batch, length, vocabulary, embedDim] = [4, 12, 7, 16];

class Model extends Module {
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
        sequenceLength: length,
      }),
    );
    this.mlp = this.addChild("mlp", new MLP(ctx, { embedDim, hiddenDim: 32, dropout: 0.1, where }));
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
function part(ctx: Context, whole: readonly number[]): Tensor {
  const { dp = 1 } = ctx.mesh.shape;
  const [own, each] = [ctx.mesh.coordinate.dp ?? 0, batch / dp];
  const mine = whole.slice(own * each * length, (own + 1) * each * length);
  using full = fromArray(ctx, mine, [each, length]);
  return shard(ctx, full, 1, { placement: "zigzag" });
}

function samples(step: number): { tokens: number[]; targets: number[] } {
  const tokens = numbers(batch * length, step).map((x) => Math.floor(((x + 1) / 2) * vocabulary));
  // Some rows do not count, a different number on every rank.
  const targets = tokens.map((_, i) => (i % length < 1 || i % 11 === 3 ? -100 : (3 * tokens[i]! + 1) % vocabulary));
  return { tokens, targets };
}

async function train(ctx: Context, make: (model: Module) => Optimizer, steps: number): Promise<number[]> {
  using model = new Model(ctx);
  using optimizer = make(model);
  const losses: number[] = [];
  for (let step = 0; step < steps; step++) {
    const { tokens, targets } = samples(step);
    using x = part(ctx, tokens);
    using y = part(ctx, targets);
    using logits = model.forward(x);
    using loss = crossEntropy(ctx, logits, y);
    loss.backward();
    syncGradients(ctx, model);
    clipGradNorm(model, 1).dispose();
    optimizer.step();
    optimizer.zeroGrad();
    losses.push(await loss.item());
  }
  return losses;
}

const meshes: readonly Coordinate[] = [{ sp: 2 }, { sp: 4 }, { dp: 2, sp: 1 }, { dp: 2, sp: 2 }, { dp: 4, sp: 1 }];
const optimizers = {
  AdamW: (model: Module) => new AdamW(model, { lr: 3e-2, schedule: linearWarmup(5) }),
  ScheduleFreeAdamW: (model: Module) => new ScheduleFreeAdamW(model, { lr: 3e-2, warmupSteps: 5 }),
};

describe.each(Object.entries(optimizers))("%s", (_, make) => {
  test("learns, and has the same loss curve on every mesh", async () => {
    const [expected] = await onMesh({ sp: 1 }, (ctx) => train(ctx, make, 40));
    expect(expected!.at(-1)!).toBeLessThan(0.5 * expected![0]!);
    for (const mesh of meshes) {
      const ranks = await onMesh(mesh, (ctx) => train(ctx, make, 40));
      for (const losses of ranks) {
        expect(losses).toEqual(ranks[0]);
        const difference = Math.max(...losses.map((loss, i) => Math.abs(loss - expected![i]!) / expected![i]!));
        expect(difference, JSON.stringify(mesh)).toBeLessThan(1e-3);
      }
    }
  });
});
