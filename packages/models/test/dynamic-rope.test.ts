import { readFile } from "node:fs/promises";
import { maxError } from "@mosaic/conformance";
import { type Context, fromArray, noGrad, shard, unshard } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { type CausalLM, GenerationBatch, GenerationCache, loadModel } from "../src/index.ts";
import { type Arrangement, arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { type ReferenceModel, resolvePath, tokens } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

/** Output of make.py for a model of max_position_embeddings 16 and rope_type "dynamic" with a factor of 4. */
const { model, logits, generated } = JSON.parse(await readFile(resolvePath("dynamic.json"), "utf8")) as {
  readonly model: ReferenceModel;
  /** By length, the logits after the last token in float64. */
  readonly logits: Readonly<Record<string, readonly number[]>>;
  /** By length of the prompt, the greedy ids of transformers. */
  readonly generated: Readonly<Record<string, readonly number[]>>;
};
const names = [oneRank, arrangements[0]!].map((each) => [each.name, each] as const);

async function onModel<T>(arrangement: Arrangement, body: (model: CausalLM, ctx: Context) => Promise<T>): Promise<T[]> {
  await using folder = await writeFolder(model);
  return await onRanks(arrangement, async (ctx) => {
    using loaded = await loadModel(ctx, folder.path, loadOptions(arrangement));
    return await body(loaded, ctx);
  });
}

describe.each(names)('rope_type "dynamic", %s', (_, arrangement) => {
  test.each(Object.keys(logits).map(Number))(
    "logits of %i tokens are those of transformers, with frequencies for this length",
    async (length) => {
      const outputs = await onModel(arrangement, async (loaded, ctx) => {
        const { placement } = loadOptions(arrangement);
        const shardOptions = { placement, axes: arrangement.backend?.axes ?? [], length };
        using fullTokens = fromArray(ctx, tokens.values.slice(0, length), [1, length]);
        using localTokens = shard(ctx, fullTokens, 1, shardOptions);
        using out = noGrad(() => loaded.forward(localTokens, { sequenceLength: length }));
        using fullOut = unshard(ctx, out, 1, shardOptions);
        return (await fullOut.read()).slice(-tokens.vocabSize);
      });
      for (const output of outputs)
        expect(maxError(output, Float64Array.from(logits[length]!))).toBeLessThanOrEqual(2 * model.errors.float32);
    },
  );

  test.each(Object.keys(generated).map(Number))(
    "greedy ids after a prompt of %i tokens are those of transformers",
    async (length) => {
      const outputs = await onModel(arrangement, async (loaded) => {
        const ids: number[] = [];
        const prompt = tokens.values.slice(0, length);
        for await (const { token } of loaded.generate({ tokens: prompt, maxNewTokens: 30, eosTokenIds: [] }))
          ids.push(token);
        return ids;
      });
      for (const ids of outputs) expect(ids).toEqual(generated[length]);
    },
  );
});

test("limits texts to factor times max_position_embeddings", async () => {
  await onModel(oneRank, (loaded, ctx) => {
    expect([loaded.config.maxLength, loaded.config.maxBatchLength]).toEqual([64, 16]);
    using tooManyTokens = fromArray(ctx, new Float32Array(65), [1, 65]);
    expect(() => loaded.forward(tooManyTokens)).toThrow(/CausalLM: expected at most 64 tokens, .*, received 65/);
    return Promise.resolve();
  });
});

test("rejects texts that depend on their length in a batch, and prompts that a cache divides into parts", async () => {
  await onModel(oneRank, (loaded) => {
    const prompt = tokens.values.slice(0, 9);
    using batch = new GenerationBatch(loaded, { maxTokens: 128 });
    expect(() => batch.add({ tokens: prompt, maxNewTokens: 8 })).toThrow(
      /maxNewTokens: expected at most 16 tokens in total, .* rope_type "dynamic", received a prompt of 9 tokens and maxNewTokens of 8; .* generate the text alone/,
    );
    expect(batch.add({ tokens: prompt })).toBe(0);
    using cache = new GenerationCache(loaded, { maxTokens: 128, maxPrefillTokens: 16 });
    expect(() => loaded.generate({ tokens: tokens.values.slice(0, 17), cache })).toThrow(
      /generate: cache: expected maxPrefillTokens of at least 17, .* "dynamic", received 16; create the cache with a larger/,
    );
    expect(() => loaded.generate({ tokens: tokens.values.slice(0, 16), cache })).not.toThrow();
    using largeCache = new GenerationCache(loaded, { maxTokens: 128, maxPrefillTokens: 17 });
    expect(() => loaded.generate({ tokens: tokens.values.slice(0, 17), cache: largeCache })).not.toThrow();
    return Promise.resolve();
  });
});
