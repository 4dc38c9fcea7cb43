import { fromArray, noGrad, reduceGradients, scope, shard } from "@mosaic/core";
import { AdamW, crossEntropy } from "@mosaic/nn";
import { expect, test } from "vitest";
import { createModel, loadModel } from "../src/index.ts";
import { type Arrangement, arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, tokens } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

/** Returns the losses of some steps of next-token training, on rank 0. */
async function trainLosses(arrangement: Arrangement, folder: string, steps: number): Promise<number[]> {
  const [rankLosses] = await onRanks(arrangement, async (ctx) => {
    const options = loadOptions(arrangement);
    using model = await loadModel(ctx, folder, options);
    using optimizer = new AdamW(model, { lr: 0.01 });
    const length = tokens.length - 1;
    using fullTokens = fromArray(ctx, tokens.values, [tokens.batch, tokens.length]);
    using inputs = fullTokens.slice(1, 0, length);
    using targets = fullTokens.slice(1, 1);
    const shardOptions = { placement: options.placement, axes: arrangement.backend?.axes ?? [] };
    using x = shard(ctx, inputs, 1, shardOptions);
    using y = shard(ctx, targets, 1, shardOptions);
    const values: number[] = [];
    for (let step = 0; step < steps; step++) {
      using loss = scope(() => crossEntropy(ctx, model.forward(x, { sequenceLength: length }), y));
      loss.backward();
      reduceGradients(ctx, model);
      optimizer.step();
      model.zeroGrad();
      values.push(await loss.item());
    }
    return values;
  });
  return rankLosses!;
}

test("a loaded model trains with the same losses on every mesh", async () => {
  await using folder = await writeFolder(models.gemma3!);
  const singleRankLosses = await trainLosses(oneRank, folder.path, 8);
  expect(singleRankLosses.at(-1)).toBeLessThan(0.7 * singleRankLosses[0]!);
  for (const arrangement of arrangements.filter(({ name }) => /ring of 4|mesh2d on 2×2|flex on 4/.test(name))) {
    const values = await trainLosses(arrangement, folder.path, 8);
    for (const [step, loss] of values.entries()) expect(loss).toBeCloseTo(singleRankLosses[step]!, 3);
  }
});

test("createModel returns a model with the parameter count of transformers and finite logits", async () => {
  await onRanks(oneRank, async (ctx) => {
    const { config, shapes } = models.qwen2!;
    using model = createModel(ctx, config);
    const size = Object.values(shapes).reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
    expect(model.parameters().reduce((sum, parameter) => sum + parameter.size, 0)).toBe(size);
    using x = fromArray(ctx, tokens.values, [tokens.batch, tokens.length]);
    using logits = noGrad(() => model.forward(x));
    expect(logits.shape).toEqual([tokens.batch, tokens.length, 64]);
    expect((await logits.read()).every(Number.isFinite)).toBe(true);
  });
});

test("padding on either side does not change the logits of the tokens", async () => {
  await using folder = await writeFolder(models.qwen3!);
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    const text = tokens.values.slice(0, 8);
    using unpaddedTokens = fromArray(ctx, text, [1, 8]);
    using expected = noGrad(() => model.forward(unpaddedTokens));
    const [values, zeros] = [await expected.read(), [0, 0, 0]];
    for (const padding of ["left", "right"] as const) {
      const row = padding === "left" ? [...zeros, ...text] : [...text, ...zeros];
      using paddedTokens = fromArray(ctx, row, [1, 11]);
      using out = noGrad(() => model.forward(paddedTokens, { lengths: [8], padding }));
      using validLogits = padding === "left" ? out.slice(1, 3) : out.slice(1, 0, 8);
      for (const [i, value] of (await validLogits.read()).entries())
        expect(Math.abs(value - values[i]!)).toBeLessThan(1e-5);
    }
  });
});
