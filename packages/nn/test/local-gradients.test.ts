import { type Coordinate, Linear, type Module, ones, OptionError, reduceGradients, scope } from "@mosaic/core";
import { expect, test } from "vitest";
import { AdamW, clipGradNorm, fullyShard, type OptimizerOptions, ScheduleFreeAdamW } from "../src/index.ts";
import { getShard } from "../src/sharding/flat-parameters.ts";
import { onMesh } from "./reference/world.ts";

// Gradients that were not reduced over the ranks. If they were not rejected, ranks would diverge without a visible
// sign.

function runBackward(model: Linear, lossScale = 1): void {
  const { device } = model.weight;
  using loss = scope(() =>
    model
      .forward(ones(device, [1, 2]))
      .sum()
      .scale(lossScale),
  );
  loss.backward();
}

const optimizers: readonly [string, (model: Module, options?: OptimizerOptions) => AdamW | ScheduleFreeAdamW][] = [
  ["AdamW", (model, options) => new AdamW(model, options)],
  ["ScheduleFreeAdamW", (model, options) => new ScheduleFreeAdamW(model, options)],
];

test.each(optimizers)(
  "%s rejects unreduced gradients on every rank, changes no parameter, and steps once they are reduced",
  async (kind, createOptimizer) => {
    const weights = await onMesh({ dp: 2, sp: 2 }, async (ctx) => {
      using model = new Linear(ctx, 2, 2);
      using optimizer = createOptimizer(model);
      const weightBefore = await model.weight.read();
      runBackward(model, ctx.rank + 1);
      expect(() => optimizer.step()).toThrow(OptionError);
      expect(() => optimizer.step()).toThrow(
        `${kind}.step 0: expected gradients reduced over the 4 ranks, received a gradient of "weight" from this rank only; ` +
          "call reduceGradients(ctx, model) between backward() and step(), or pass allowLocalGradients: true",
      );
      expect(await model.weight.read()).toEqual(weightBefore);
      reduceGradients(ctx, model);
      optimizer.step();
      expect(await model.weight.read()).not.toEqual(weightBefore);
      return Array.from(await model.weight.read());
    });
    for (const rankWeights of weights) expect(rankWeights).toEqual(weights[0]);
  },
);

test("accumulated gradients must be reduced after the last backward", () =>
  onMesh({ sp: 2 }, (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model);
    runBackward(model);
    reduceGradients(ctx, model);
    runBackward(model); // adds this rank's part to what was reduced
    expect(() => optimizer.step()).toThrow(/gradients reduced over the 2 ranks/);
    optimizer.zeroGrad();
    for (let i = 0; i < 3; i++) runBackward(model);
    reduceGradients(ctx, model);
    optimizer.step();
    optimizer.zeroGrad();
    optimizer.step(); // without gradients nothing moves
  }));

test.each<Coordinate>([
  { sp: 2 },
  { dp: 2 },
  { dp: 2, sp: 2 },
  { dp: 2, sp: 2, tp: 3 },
  { dp_replicate: 2, dp_shard: 2, sp: 2 },
])(
  "gradients that are reduced after each backward add up on %j, and a second reduction changes nothing",
  async (mesh) => {
    const axis = ["dp", "dp_shard", "sp"].find((each) => each in mesh)!;
    for (const stage of [0, 1, 2, 3] as const) {
      await onMesh(mesh, async (ctx) => {
        using model = new Linear(ctx, 2, 2);
        if (stage > 0) fullyShard(ctx, model, { stage: stage as 1 | 2 | 3, axis });
        const readGradient = async (): Promise<number[]> =>
          Array.from(await (getShard(model.weight)?.tensor ?? model.weight).grad!.read());
        runBackward(model, 6 * ctx.rank + 6);
        reduceGradients(ctx, model);
        const gradient = await readGradient();
        reduceGradients(ctx, model);
        expect(await readGradient()).toEqual(gradient);
        // Only some ranks have a second part of the gradient, and it is 0.
        if (stage === 0 && ctx.rank > 0) runBackward(model, 0);
        reduceGradients(ctx, model);
        expect(await readGradient()).toEqual(gradient);
        for (const numParts of [2, 3]) {
          runBackward(model, 6 * ctx.rank + 6);
          reduceGradients(ctx, model);
          expect(await readGradient()).toEqual(gradient.map((each) => numParts * each));
        }
      });
    }
  },
);

test("a gradient that the program sets and a frozen parameter are accepted", () =>
  onMesh({ sp: 2 }, async (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model);
    const weightBefore = await model.weight.read();
    runBackward(model);
    model.weight.grad!.dispose();
    model.weight.grad = ones(ctx, [2, 2]); // as a program that reduces by itself would
    model.bias!.requiresGrad = false;
    optimizer.step();
    expect(await model.weight.read()).not.toEqual(weightBefore);
  }));

test("allowLocalGradients lets each rank train a model of its own", async () => {
  const weights = await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model, { allowLocalGradients: true });
    runBackward(model, ctx.rank === 0 ? 1 : -1);
    optimizer.step();
    return Array.from(await model.weight.read());
  });
  expect(weights[0]).not.toEqual(weights[1]);
});

test("one rank steps without reduceGradients", () =>
  onMesh({ sp: 1 }, async (ctx) => {
    using model = new Linear(ctx, 2, 2);
    using optimizer = new AdamW(model);
    const weightBefore = await model.weight.read();
    runBackward(model);
    optimizer.step();
    expect(await model.weight.read()).not.toEqual(weightBefore);
  }));

test("clipGradNorm ignores gradients of frozen parameters, which differ by rank", async () => {
  const gradients = await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Linear(ctx, 2, 2);
    runBackward(model, ctx.rank + 1);
    model.weight.requiresGrad = false;
    const frozenGradient = await model.weight.grad!.read();
    reduceGradients(ctx, model);
    using norm = clipGradNorm(model, 1);
    expect(await norm.item()).toBeCloseTo(Math.hypot(3, 3), 6);
    expect(await model.weight.grad!.read()).toEqual(frozenGradient);
    return model.bias!.grad!.read();
  });
  expect(gradients[0]).toEqual(gradients[1]);
});

test("clipGradNorm rejects unreduced gradients on every rank, unless they are allowed", () =>
  onMesh({ sp: 2 }, async (ctx) => {
    using model = new Linear(ctx, 2, 2);
    runBackward(model, ctx.rank + 1);
    expect(() => clipGradNorm(model, 1)).toThrow(OptionError);
    expect(() => clipGradNorm(model, 1)).toThrow(
      'clipGradNorm: expected gradients reduced over the 2 ranks, received a gradient of "weight" from this rank only; ' +
        "call reduceGradients(ctx, model) between backward() and clipGradNorm(), or pass allowLocalGradients: true",
    );
    using localNorm = clipGradNorm(model, Infinity, { allowLocalGradients: true });
    expect(await localNorm.item()).toBeCloseTo((ctx.rank + 1) * Math.sqrt(6), 5);
    reduceGradients(ctx, model);
    using norm = clipGradNorm(model, Infinity);
    expect(await norm.item()).toBeCloseTo(3 * Math.sqrt(6), 5);
  }));
