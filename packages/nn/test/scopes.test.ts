import {
  type Context,
  fromArray,
  init,
  Module,
  MultiAxisAttention,
  randn,
  reduceGradients,
  scope,
  type Tensor,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  AdamW,
  clipGradNorm,
  crossEntropy,
  LayerNorm,
  mseLoss,
  MLP,
  RotaryEmbedding,
  ScheduleFreeAdamW,
  Sequential,
} from "../src/index.ts";

let ctx: Context;
beforeEach(async () => {
  ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1, seed: 3 });
});
afterEach(() => ctx.close());

const readAllocatedBytes = () => ctx.device.memory().allocated;

class Block extends Module {
  readonly rotary = new RotaryEmbedding(4);
  readonly norm = this.addChild("norm", new LayerNorm(ctx, 8));
  readonly attention = this.addChild(
    "attention",
    new MultiAxisAttention(ctx, { embedDim: 8, numHeads: 2, attentionAxis: 1, positions: this.rotary }),
  );
  readonly mlp = this.addChild("mlp", new MLP(ctx, { embedDim: 8, dropout: 0.1 }));

  forward(x: Tensor): Tensor {
    const y = x.add(this.attention.forward(this.norm.forward(x)));
    return y.add(this.mlp.forward(y));
  }
}

describe("training steps in scopes", () => {
  test("keep device memory constant, without a `using` in the model or the step", async () => {
    const model = new Sequential(new Block(), new Block());
    const optimizer = new AdamW(model, { lr: 1e-2 });
    const x = randn(ctx, [2, 6, 8], { seed: 1 });
    const targets = fromArray(ctx, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3], [2, 6]);
    const step = () =>
      scope(() => {
        const loss = crossEntropy(ctx, model.forward(x), targets);
        loss.backward();
        reduceGradients(ctx, model);
        clipGradNorm(model, 1);
        optimizer.step();
        optimizer.zeroGrad();
        return loss;
      });
    const losses: number[] = [];
    let allocatedBefore = 0;
    for (let i = 0; i < 20; i++) {
      using loss = step();
      losses.push(await loss.item());
      if (i === 0) allocatedBefore = readAllocatedBytes();
      expect(readAllocatedBytes()).toBe(allocatedBefore);
    }
    expect(losses.at(-1)).toBeLessThan(0.7 * losses[0]!);
  });

  test("do not dispose optimizers and tables that are created in a scope", () => {
    using model = new Block();
    const optimizer = scope(() => new AdamW(model));
    const scheduleFreeOptimizer = scope(() => new ScheduleFreeAdamW(model).eval());
    using x = randn(ctx, [1, 6, 8]);
    for (let i = 0; i < 2; i++) scope(() => mseLoss(ctx, model.forward(x), x).backward());
    expect([...optimizer.stateDict().tensors.values()].some((each) => "isDisposed" in each && each.isDisposed)).toBe(
      false,
    );
    expect(() => scheduleFreeOptimizer.train().step()).not.toThrow();
    expect(() => optimizer.step()).not.toThrow();
    optimizer.dispose();
    scheduleFreeOptimizer.dispose();
  });

  test("reject a backward after an optimizer step, and name the parameter's operation and the kernel", () => {
    using model = new MLP(ctx, { embedDim: 4 });
    using optimizer = new AdamW(model);
    using x = randn(ctx, [3, 4]);
    scope(() => model.forward(x).sum().backward());
    const loss = scope(() => model.forward(x).sum());
    optimizer.step();
    expect(() => loss.backward()).toThrow(/backward of linear: expected "weight" \[4,16\] float32 .*mutated by "adam"/);
  });
});
