import { maxError } from "@mosaic/conformance";
import { type Context, fromArray, noGrad, shard, unshard } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { GenerationCache, loadModel } from "../src/index.ts";
import { type Arrangement, arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, reference, tokens } from "./reference/references.ts";
import { type FolderOptions, writeFolder } from "./reference/weights.ts";

/** Returns a rank's logits of the whole sequences, [batch,length,vocabulary]. */
async function computeLogits(ctx: Context, folder: string, arrangement: Arrangement): Promise<Float32Array> {
  const options = loadOptions(arrangement);
  using model = await loadModel(ctx, folder, options);
  using fullTokens = fromArray(ctx, tokens.values, [tokens.batch, tokens.length]);
  const shardOptions = { placement: options.placement, axes: arrangement.backend?.axes ?? [], length: tokens.length };
  using localTokens = shard(ctx, fullTokens, 1, shardOptions);
  using logits = noGrad(() => model.forward(localTokens, { sequenceLength: tokens.length }));
  using fullLogits = unshard(ctx, logits, 1, shardOptions);
  return fullLogits.read();
}

/** Returns the largest error of any rank's logits against float64. */
async function measureError(name: string, arrangement: Arrangement, options?: FolderOptions): Promise<number> {
  await using folder = await writeFolder(models[name]!, options);
  const outputs = await onRanks(arrangement, (ctx) => computeLogits(ctx, folder.path, arrangement));
  const expected = reference(`${name}.logits`);
  return Math.max(...outputs.map((logits) => maxError(logits, expected)));
}

/**
 * Returns the logits of the first sequence from the tenth token on, decoded one token at a time with a cache after a
 * prefill of nine tokens.
 */
async function decodeLogits(ctx: Context, folder: string, arrangement: Arrangement): Promise<number[]> {
  using model = await loadModel(ctx, folder, loadOptions(arrangement));
  using cache = new GenerationCache(model, {
    ...{ maxTokens: tokens.length, blockSize: 4 },
    // Layers with a sliding window of 8 tokens have capacity for 16 of the 21 tokens, plus one block.
    ...{ maxSequences: 1, maxPrefillTokens: 9 },
  });
  using sequence = cache.createSequence();
  const logits: number[] = [];
  for (let firstToken = 0; firstToken < tokens.length; firstToken += firstToken === 0 ? 9 : 1) {
    const chunkTokens = tokens.values.slice(firstToken, firstToken === 0 ? 9 : firstToken + 1);
    using x = fromArray(ctx, chunkTokens, [1, chunkTokens.length]);
    using out = noGrad(() => model.forward(x, { cache: cache.forCall([sequence]), sequenceLength: tokens.length }));
    if (firstToken > 0) logits.push(...(await out.read()));
  }
  return logits;
}

describe.each(Object.keys(models))("%s", (name) => {
  const { errors } = models[name]!;

  test("float32 logits differ from float64 by at most twice the float32 error of transformers", async () => {
    expect(await measureError(name, oneRank, { shards: 1 })).toBeLessThanOrEqual(2 * errors.float32);
  });

  test("bfloat16 logits differ from float64 by at most twice the bfloat16 error of transformers", async () => {
    expect(await measureError(name, oneRank, { dtype: "bfloat16" })).toBeLessThanOrEqual(2 * errors.bfloat16);
  });

  test.each([oneRank, arrangements[0]!].map((each) => [each.name, each] as const))(
    "logits decoded with a cache are as exact, %s",
    async (_, each) => {
      await using folder = await writeFolder(models[name]!);
      const outputs = await onRanks(each, (ctx) => decodeLogits(ctx, folder.path, each));
      const expected = reference(`${name}.logits`).slice(9 * tokens.vocabSize, tokens.length * tokens.vocabSize);
      for (const logits of outputs) expect(maxError(logits, expected)).toBeLessThanOrEqual(2 * errors.float32);
    },
  );

  test.each(arrangements.map((each) => [each.name, each] as const))(
    "logits of sharded sequences are as exact, %s",
    async (_, arrangement) => {
      expect(await measureError(name, arrangement)).toBeLessThanOrEqual(2 * errors.float32);
    },
  );
});
