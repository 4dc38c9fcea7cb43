import { join } from "node:path";
import { fromArray, noGrad, reduceGradients, scope, StateDictError } from "@mosaic/core";
import { addLoRA, AdamW, crossEntropy, mergeLoRA } from "@mosaic/nn";
import { expect, test } from "vitest";
import { loadModel } from "../src/index.ts";
import { onRanks, oneRank } from "./reference/arrangements.ts";
import { models, tokens } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

test("a model that was fine-tuned by LoRA is saved after its adapters are merged", async () => {
  await using folder = await writeFolder(models.qwen3!);
  const savedFolder = join(folder.path, "merged");
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    using fullTokens = fromArray(ctx, tokens.values, [tokens.batch, tokens.length]);
    using x = fullTokens.slice(1, 0, tokens.length - 1);
    using y = fullTokens.slice(1, 1);
    const readLogits = (each: typeof model) => {
      using logits = noGrad(() => each.forward(x));
      return logits.read();
    };
    const initialLogits = await readLogits(model);
    addLoRA(ctx, model, { targets: ["qkv_proj", "down_proj"], rank: 2 });
    using optimizer = new AdamW(model, { lr: 0.02 });
    for (let step = 0; step < 3; step++) {
      using loss = scope(() => crossEntropy(ctx, model.forward(x), y));
      loss.backward();
      reduceGradients(ctx, model);
      optimizer.step();
      optimizer.zeroGrad();
    }
    model.eval();
    const tunedLogits = await readLogits(model);
    const saveWithAdapters = model.save(savedFolder);
    await expect(saveWithAdapters).rejects.toThrow(StateDictError);
    await expect(saveWithAdapters).rejects.toThrow(/a layer of the model was replaced; call mergeLoRA\(model\)/);
    expect(mergeLoRA(model).length).toBeGreaterThan(2);
    await model.save(savedFolder);
    using saved = await loadModel(ctx, savedFolder);
    const savedLogits = await readLogits(saved.eval());
    expect(savedLogits).toEqual(await readLogits(model));
    const difference = (a: Float32Array, b: Float32Array) => Math.max(...a.map((each, i) => Math.abs(each - b[i]!)));
    expect(difference(savedLogits, tunedLogits)).toBeLessThan(1e-4);
    expect(difference(savedLogits, initialLogits)).toBeGreaterThan(1e-2);
  });
});
