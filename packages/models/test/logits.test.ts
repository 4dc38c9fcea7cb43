import { maxError } from "@mosaic/conformance";
import { type Context, fromArray, noGrad, shard, unshard } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { GenerationCache, loadModel } from "../src/index.ts";
import { type Arrangement, arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, reference, tokens } from "./reference/references.ts";
import { type FolderOptions, writeFolder } from "./reference/weights.ts";

/** A rank's logits of the whole sequences, [batch,length,vocabulary]. */
async function logitsOn(ctx: Context, folder: string, arrangement: Arrangement): Promise<Float32Array> {
  const options = loadOptions(arrangement);
  using model = await loadModel(ctx, folder, options);
  using whole = fromArray(ctx, tokens.values, [tokens.batch, tokens.length]);
  const cut = { placement: options.placement, axes: arrangement.backend?.axes ?? [], length: tokens.length };
  using own = shard(ctx, whole, 1, cut);
  using logits = noGrad(() => model.forward(own, { sequenceLength: tokens.length }));
  using all = unshard(ctx, logits, 1, cut);
  return all.read();
}

/** The largest error of any rank's logits against float64. */
async function errorOf(name: string, arrangement: Arrangement, options?: FolderOptions): Promise<number> {
  await using folder = await writeFolder(models[name]!, options);
  const outputs = await onRanks(arrangement, (ctx) => logitsOn(ctx, folder.path, arrangement));
  const expected = reference(`${name}.logits`);
  return Math.max(...outputs.map((logits) => maxError(logits, expected)));
}

/** The logits of the first sequence, token after token with a cache, from the tenth on; the first nine tokens at once. */
async function decodedOn(ctx: Context, folder: string, arrangement: Arrangement): Promise<number[]> {
  using model = await loadModel(ctx, folder, loadOptions(arrangement));
  using cache = new GenerationCache(model, {
    ...{ maxTokens: tokens.length, blockSize: 4 },
    // Layers with a sliding window of 8 tokens have room for 16 of the 21, and one block.
    ...{ maxSequences: 1, maxPrefillTokens: 9 },
  });
  using sequence = cache.createSequence();
  const logits: number[] = [];
  for (let from = 0; from < tokens.length; from += from === 0 ? 9 : 1) {
    const part = tokens.values.slice(from, from === 0 ? 9 : from + 1);
    using x = fromArray(ctx, part, [1, part.length]);
    using out = noGrad(() => model.forward(x, { cache: cache.forCall([sequence]), sequenceLength: tokens.length }));
    if (from > 0) logits.push(...(await out.read()));
  }
  return logits;
}

describe.each(Object.keys(models))("%s", (name) => {
  const { errors } = models[name]!;

  test("float32 logits are those of transformers in float64, to twice its own float32 error", async () => {
    expect(await errorOf(name, oneRank, { shards: 1 })).toBeLessThanOrEqual(2 * errors.float32);
  });

  test("bfloat16 logits likewise", async () => {
    expect(await errorOf(name, oneRank, { dtype: "bfloat16" })).toBeLessThanOrEqual(2 * errors.bfloat16);
  });

  test.each([oneRank, arrangements[0]!].map((each) => [each.name, each] as const))(
    "with a cache, %s",
    async (_, each) => {
      await using folder = await writeFolder(models[name]!);
      const outputs = await onRanks(each, (ctx) => decodedOn(ctx, folder.path, each));
      const expected = reference(`${name}.logits`).slice(9 * tokens.vocabSize, tokens.length * tokens.vocabSize);
      for (const logits of outputs) expect(maxError(logits, expected)).toBeLessThanOrEqual(2 * errors.float32);
    },
  );

  test.each(arrangements.map((each) => [each.name, each] as const))("%s", async (_, arrangement) => {
    expect(await errorOf(name, arrangement)).toBeLessThanOrEqual(2 * errors.float32);
  });
});
