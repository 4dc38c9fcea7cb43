import { type Context, fromArray, Module, reduceGradients, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import {
  AdamW,
  clipGradNorm,
  crossEntropy,
  Embedding,
  loadCheckpoint,
  readSafetensors,
  saveCheckpoint,
  TiedLinear,
} from "../src/index.ts";
import { directory } from "./reference/directory.ts";
import { numericalDerivative, maxDifference, generateNumbers } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const [count, dim] = [5, 3];
const tokens = [4, 0, 4, 2];
const targets = [1, 4, 3, 0];

class TiedModel extends Module {
  readonly embed: Embedding;
  readonly head: TiedLinear;

  constructor(ctx: Context) {
    super();
    this.embed = this.addChild("embed", new Embedding(ctx, count, dim));
    this.head = this.addChild("head", new TiedLinear(this.embed));
  }

  forward(tokens: Tensor): Tensor {
    return this.head.forward(this.embed.forward(tokens).tanh());
  }
}

/** Returns the mean cross-entropy of the model, which uses one weight in both layers, in float64. */
function reference(weight: readonly number[]): number {
  const row = (token: number) => weight.slice(token * dim, (token + 1) * dim);
  const losses = tokens.map((token, i) => {
    const x = row(token).map(Math.tanh);
    const logits = Array.from({ length: count }, (_, c) => row(c).reduce((sum, w, k) => sum + w * x[k]!, 0));
    return Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0)) - logits[targets[i]!]!;
  });
  return losses.reduce((a, b) => a + b) / tokens.length;
}

/** Returns the loss, after a backward whose reduced gradients are those of the whole batch. */
function computeLoss(ctx: Context, model: TiedModel): Tensor {
  const tokensPerRank = tokens.length / ctx.size;
  const sliceForRank = (values: readonly number[]) =>
    values.slice(ctx.rank * tokensPerRank, (ctx.rank + 1) * tokensPerRank);
  using rankTokens = fromArray(ctx, sliceForRank(tokens), [tokensPerRank]);
  using rankTargets = fromArray(ctx, sliceForRank(targets), [tokensPerRank]);
  using logits = model.forward(rankTokens);
  const loss = crossEntropy(ctx, logits, rankTargets);
  loss.backward();
  reduceGradients(ctx, model);
  return loss;
}

test.each([1, 2, 4])("both uses of the weight contribute once to its gradient, on %d ranks", async (sp) => {
  const weight = generateNumbers(count * dim, 1);
  const expected = numericalDerivative(reference, weight);
  await onMesh({ sp }, async (ctx) => {
    using model = new TiedModel(ctx);
    ctx.device.write(model.embed.weight, weight);
    using loss = computeLoss(ctx, model);
    expect(await loss.item()).toBeCloseTo(reference(weight), 5);
    expect(maxDifference(await model.embed.weight.grad!.read(), expected)).toBeLessThan(1e-5);
    using norm = clipGradNorm(model, 1e9);
    expect(await norm.item()).toBeCloseTo(Math.hypot(...expected), 5);
    expect(model.head.weight).toBe(model.embed.weight);
  });
});

test("the weight has one entry in the optimizer and in a checkpoint, from which training resumes", () =>
  onOneRank(async (ctx) => {
    const path = `${directory()}/tied.safetensors`;
    const step = (model: TiedModel, optimizer: AdamW) => {
      computeLoss(ctx, model).dispose();
      optimizer.step();
      optimizer.zeroGrad();
    };
    using model = new TiedModel(ctx);
    using optimizer = new AdamW(model, { lr: 0.1 });
    expect([...optimizer.stateDict().tensors.keys()]).toEqual(["embed.weight.exp_avg", "embed.weight.exp_avg_sq"]);
    step(model, optimizer);
    await saveCheckpoint(ctx, path, { model, optimizer });
    const { tensors } = await readSafetensors(path);
    expect([...tensors.keys()].filter((name) => name.endsWith(".weight"))).toHaveLength(1);
    step(model, optimizer);
    using otherModel = new TiedModel(ctx);
    using resumedOptimizer = new AdamW(otherModel, { lr: 0.1 });
    await loadCheckpoint(ctx, path, { model: otherModel, optimizer: resumedOptimizer });
    step(otherModel, resumedOptimizer);
    expect(await otherModel.embed.weight.read()).toEqual(await model.embed.weight.read());
  }));

test("a parameter with several names has only the first one in the state dict", () =>
  onOneRank(async (ctx) => {
    class TwiceRegistered extends Module {
      readonly embed = this.addChild("embed", new Embedding(ctx, 2, 2));
      readonly again = this.addChild("again", this.embed);
      readonly head = this.addParameter("head", this.embed.weight);
    }
    using model = new TwiceRegistered();
    expect([...model.stateDict().keys()]).toEqual(["head"]);
    expect(model.parameters()).toEqual([model.embed.weight]);
    model.loadStateDict(new Map([["head", { dtype: "float32", shape: [2, 2], values: Float32Array.of(1, 2, 3, 4) }]]));
    expect(Array.from(await model.embed.weight.read())).toEqual([1, 2, 3, 4]);
  }));

test("TiedLinear does not own the weight of its embedding, and accepts only an Embedding", () =>
  onOneRank((ctx) => {
    using embed = new Embedding(ctx, 2, 2);
    new TiedLinear(embed).dispose();
    expect(embed.weight.isDisposed).toBe(false);
    expect(() => new TiedLinear(embed.weight as never)).toThrow(/TiedLinear: expected an Embedding/);
    expect(() => new TiedLinear(undefined as never)).toThrow(/TiedLinear: expected an Embedding/);
  }));
