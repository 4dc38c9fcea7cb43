import { Linear, type Module, ones, OptionError, reduceGradients, scope } from "@mosaic/core";
import { expect, test } from "vitest";
import { AdamW, type OptimizerOptions, ScheduleFreeAdamW } from "../src/index.ts";
import { onMesh } from "./reference/world.ts";

// Gradients that were not reduced over the ranks: without a refusal, ranks diverge, and no number shows it.

function backward(model: Linear, scaled = 1): void {
  const { device } = model.weight;
  using loss = scope(() =>
    model
      .forward(ones(device, [1, 2]))
      .sum()
      .scale(scaled),
  );
  loss.backward();
}

const optimizers: readonly [string, (model: Module, options?: OptimizerOptions) => AdamW | ScheduleFreeAdamW][] = [
  ["AdamW", (model, options) => new AdamW(model, options)],
  ["ScheduleFreeAdamW", (model, options) => new ScheduleFreeAdamW(model, options)],
];

test.each(optimizers)(
  "%s rejects them on every rank, with nothing moved, and steps once they are reduced",
  async (kind, make) => {
    const weights = await onMesh({ dp: 2, sp: 2 }, async (ctx) => {
      using model = new Linear(ctx, 2, 2);
      using optimizer = make(model);
      const before = await model.weight.read();
      backward(model, ctx.rank + 1);
      expect(() => optimizer.step()).toThrow(OptionError);
      expect(() => optimizer.step()).toThrow(
        `${kind}.step 0: expected gradients reduced over the 4 ranks, received a gradient of "weight" from this rank only; ` +
          "call reduceGradients(ctx, model) between backward() and step(), or pass allowLocalGradients: true",
      );
      expect(await model.weight.read()).toEqual(before);
      reduceGradients(ctx, model);
      optimizer.step();
      expect(await model.weight.read()).not.toEqual(before);
      return Array.from(await model.weight.read());
    });
    for (const each of weights) expect(each).toEqual(weights[0]);
  },
);

test("accumulated gradients are reduced once, after the last backward", () =>
  onMesh({ sp: 2 }, (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model);
    backward(model);
    reduceGradients(ctx, model);
    backward(model); // adds this rank's part to what was reduced
    expect(() => optimizer.step()).toThrow(/gradients reduced over the 2 ranks/);
    optimizer.zeroGrad();
    for (let i = 0; i < 3; i++) backward(model);
    reduceGradients(ctx, model);
    optimizer.step();
    optimizer.zeroGrad();
    optimizer.step(); // without gradients nothing moves
  }));

test("a gradient that was set, and a frozen parameter, are not refused", () =>
  onMesh({ sp: 2 }, (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model);
    backward(model);
    model.weight.grad!.dispose();
    model.weight.grad = ones(ctx, [2, 2]); // as a program that reduces by itself would
    model.bias!.requiresGrad = false;
    optimizer.step();
  }));

test("allowLocalGradients is for ranks that train models of their own", async () => {
  const weights = await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model, { allowLocalGradients: true });
    backward(model, ctx.rank === 0 ? 1 : -1);
    optimizer.step();
    return Array.from(await model.weight.read());
  });
  expect(weights[0]).not.toEqual(weights[1]);
});

test("one rank reduces nothing", () =>
  onMesh({ sp: 1 }, (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model);
    backward(model);
    optimizer.step();
  }));
