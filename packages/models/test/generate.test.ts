import { readFile } from "node:fs/promises";
import { maxError } from "@mosaic/conformance";
import { fromArray, noGrad } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { GenerationCache, type GeneratedToken, type GenerateOptions, loadModel } from "../src/index.ts";
import { type Arrangement, arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, resolvePath, reference, type ReferenceModel, tokens } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

const ring = arrangements[0]!;
const readJson = async (name: string) =>
  JSON.parse(await readFile(resolvePath(name), "utf8")) as Record<string, unknown>;

/** Writes a model of `vocabSize` tokens with a tokenizer of 422 tokens, whose text consists of bytes. */
async function writeTextModel(vocabSize = 422) {
  const { config, shapes, errors } = models.llama3!;
  const model: ReferenceModel = {
    config: { ...config, vocab_size: vocabSize },
    shapes: { ...shapes, "model.embed_tokens.weight": [vocabSize, 48], "lm_head.weight": [vocabSize, 48] },
    errors,
  };
  const files = {
    "tokenizer.json": await readJson("tokenizers/byte-level/tokenizer.json"),
    "tokenizer_config.json": { bos_token: "<s>", chat_template: "{{ bos_token }}{{ messages[0].content }}" },
    "generation_config.json": { do_sample: true, temperature: 0.9, top_k: 30, top_p: 0.95, eos_token_id: 2 },
  };
  return writeFolder(model, { files });
}

/** Returns the tokens that every rank generates. */
async function generateOnRanks(
  folder: string,
  arrangement: Arrangement,
  options: GenerateOptions,
): Promise<GeneratedToken[][]> {
  return onRanks(arrangement, async (ctx) => {
    using model = await loadModel(ctx, folder, loadOptions(arrangement));
    const steps: GeneratedToken[] = [];
    for await (const step of model.generate(options)) steps.push(step);
    return steps;
  });
}

const ids = (steps: readonly GeneratedToken[]): number[] => steps.map(({ token }) => token);
const joinText = (steps: readonly GeneratedToken[]): string => steps.map(({ text }) => text).join("");

test("a folder of several files that save_pretrained wrote gives the logits of transformers", async () => {
  const [logits] = await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, resolvePath("saved"), { dtype: "float32" });
    expect(model.generationConfig).toEqual({
      ...{ doSample: true, temperature: 0.6, topK: 20, topP: 0.95, minP: 0, repetitionPenalty: 1 },
      ...{ maxNewTokens: null, maxLength: null, unsupportedSettings: [] },
      eosTokenIds: [2, 5],
    });
    using fullTokens = fromArray(ctx, tokens.values, [tokens.batch, tokens.length]);
    using out = noGrad(() => model.forward(fullTokens));
    return out.read();
  });
  expect(maxError(logits!, reference("saved.logits"))).toBeLessThanOrEqual(2 * reference("saved.float32Error")[0]!);
});

describe("sampled tokens", () => {
  const samplingOptions = {
    tokens: tokens.values.slice(0, 9),
    doSample: true,
    temperature: 1.2,
    maxNewTokens: 30,
    eosTokenIds: [],
  };

  test("depend on the seed, and are the same on every rank and mesh", async () => {
    await using folder = await writeFolder(models.qwen3!);
    const [singleRankTokens] = await generateOnRanks(folder.path, oneRank, { ...samplingOptions, seed: 7 });
    const [otherSeedTokens] = await generateOnRanks(folder.path, oneRank, { ...samplingOptions, seed: 8 });
    expect(ids(otherSeedTokens!)).not.toEqual(ids(singleRankTokens!));
    expect(new Set(ids(singleRankTokens!)).size).toBeGreaterThan(10);
    for (const arrangement of arrangements) {
      for (const steps of await generateOnRanks(folder.path, arrangement, { ...samplingOptions, seed: 7 })) {
        expect(ids(steps), arrangement.name).toEqual(ids(singleRankTokens!));
      }
    }
  });

  test("follow the probabilities given by the logits after the prompt", async () => {
    await using folder = await writeFolder(models.qwen3!);
    const logits = reference("qwen3.logits")
      .slice(0, tokens.length * 64)
      .slice(8 * 64, 9 * 64);
    const weights = Array.from(logits, (logit) => Math.exp(logit / samplingOptions.temperature));
    const total = weights.reduce((sum, each) => sum + each, 0);
    const numDraws = 600;
    const counts = weights.map(() => 0);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      for (let seed = 0; seed < numDraws; seed++) {
        const call = { ...samplingOptions, topK: 0, maxNewTokens: 1, seed };
        for await (const { token, logProbability } of model.generate(call)) {
          counts[token]!++;
          expect(logProbability).toBeCloseTo(Math.log(weights[token]! / total), 4);
        }
      }
    });
    // Pearson's statistic with 63 degrees of freedom exceeds 120 by chance once in 50 000 tests. Seeds are fixed.
    const chiSquare = counts.reduce((sum, count, i) => {
      const expected = (numDraws * weights[i]!) / total;
      return sum + (count - expected) ** 2 / expected;
    }, 0);
    expect(chiSquare).toBeLessThan(120);
  });
});

describe("generated text", () => {
  test("is the text of all decoded tokens, and the same for a prompt, messages and tokens", async () => {
    await using folder = await writeTextModel();
    await onRanks(ring, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(ring));
      const tokenizer = model.tokenizer!;
      const prompt = "The ring passes keys";
      const commonOptions = { maxNewTokens: 24, seed: 3, eosTokenIds: [] };
      const results: GeneratedToken[][] = [];
      const calls = [
        { prompt },
        { messages: [{ role: "user", content: prompt }] },
        { tokens: tokenizer.encode(prompt) },
      ];
      for (const call of calls) {
        const steps: GeneratedToken[] = [];
        for await (const step of model.generate({ ...call, ...commonOptions })) steps.push(step);
        results.push(steps);
      }
      expect(results[1]).toEqual(results[0]);
      expect(results[2]).toEqual(results[0]);
      const decodedText = tokenizer.decode([...tokenizer.encode(prompt), ...ids(results[0]!)]);
      expect(joinText(results[0]!)).toBe(decodedText.slice(prompt.length));
      expect(results[0]!.map(({ finishReason }) => finishReason)).toEqual([
        ...Array.from({ length: 23 }, () => null),
        "length",
      ]);
    });
  });

  test("continues after ids of the model's padded vocabulary that the tokenizer does not have", async () => {
    await using folder = await writeTextModel(512);
    const call = { tokens: [1, 500, 9], maxNewTokens: 40, temperature: 5, topK: 0, topP: 1, eosTokenIds: [], seed: 1 };
    const [steps] = await generateOnRanks(folder.path, oneRank, call);
    expect(steps!.length).toBe(40);
    const unknownSteps = steps!.filter(({ token }) => token >= 422);
    expect(unknownSteps.length).toBeGreaterThan(0);
  });

  test("ends before a stop string and at an end token", async () => {
    await using folder = await writeTextModel();
    const call = { prompt: "The ring", maxNewTokens: 30, seed: 5, eosTokenIds: [] };
    const [fullGeneration] = await generateOnRanks(folder.path, ring, call);
    const text = joinText(fullGeneration!);
    const stopString = text.slice(10, 13);
    for (const steps of await generateOnRanks(folder.path, ring, { ...call, stopStrings: ["never", stopString] })) {
      expect(joinText(steps)).toBe(text.slice(0, text.indexOf(stopString)));
      expect(steps.at(-1)!.finishReason).toBe("stop");
    }
    const end = ids(fullGeneration!)[6]!;
    const [eosGeneration] = await generateOnRanks(folder.path, ring, { ...call, eosTokenIds: [end] });
    expect(ids(eosGeneration!)).toEqual(ids(fullGeneration!).slice(0, ids(fullGeneration!).indexOf(end) + 1));
    expect(eosGeneration!.at(-1)).toMatchObject({ token: end, text: "", finishReason: "stop" });
  });
});

test("concurrent and successive calls share a cache and free its memory", async () => {
  await using folder = await writeFolder(models.gemma3!);
  await onRanks(ring, async (ctx) => {
    using model = await loadModel(ctx, folder.path, loadOptions(ring));
    using cache = new GenerationCache(model, { maxTokens: 64, blockSize: 4 });
    const call = { tokens: tokens.values.slice(0, 9), maxNewTokens: 12, eosTokenIds: [], cache };
    const results: number[][] = [[], []];
    const generations = [model.generate(call), model.generate(call)];
    for (let step = 0; step < 12; step++) {
      for (const [i, generation] of generations.entries())
        results[i]!.push(((await generation.next()).value as GeneratedToken).token);
    }
    for (const generation of generations) expect((await generation.next()).done).toBe(true);
    const repeatedTokens: number[] = [];
    for await (const { token } of model.generate(call)) repeatedTokens.push(token);
    expect(results).toEqual([repeatedTokens, repeatedTokens]);
    expect(cache.freeTokens).toBe(64);
    for await (const _ of model.generate(call)) break;
    expect(cache.freeTokens).toBe(64);
  });
});

test.each([oneRank, ring, arrangements[4]!])(
  "prompts processed in parts give the same tokens, and sliding-window layers cache only a window: $name",
  async (arrangement) => {
    await using folder = await writeFolder(models.gemma3!);
    await onRanks(arrangement, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(arrangement));
      const call = { tokens: tokens.values, maxNewTokens: 60, eosTokenIds: [] };
      const expectedTokens: GeneratedToken[] = [];
      for await (const generatedToken of model.generate(call)) expectedTokens.push(generatedToken);
      const settings = { maxTokens: 256, blockSize: 4, maxPrefillTokens: 5, maxSequences: 2 };
      const allocatedBefore = ctx.device.memory().allocated;
      using cache = new GenerationCache(model, settings);
      const ranks = arrangement === oneRank ? 1 : 2;
      const cacheBytes = (ctx.device.memory().allocated - allocatedBefore) * ranks;
      // One of three layers has full attention. In the others, each text holds the 7 tokens before a part of 5, in 3
      // blocks, and one more block because both may begin within a block.
      expect(cache.bytes).toBe((256 + 2 * (2 * 4 * 4)) * 2 * (16 + 16) * 4);
      expect(cacheBytes / cache.bytes).toBeCloseTo(1, 1);
      const generations = [model.generate({ ...call, cache }), model.generate({ ...call, cache })];
      for (const expected of expectedTokens) {
        for (const generation of generations) {
          const { token, logProbability } = (await generation.next()).value as GeneratedToken;
          expect(token).toBe(expected.token);
          expect(logProbability).toBeCloseTo(expected.logProbability, 4);
        }
      }
      expect(cache.freeTokens).toBe(256 - 2 * 104);
      expect(() => model.generate({ ...call, cache })).toThrow(
        /free memory for 102 tokens, received free memory for 48 tokens/,
      );
      using singleSequenceCache = new GenerationCache(model, { ...settings, maxSequences: 1 });
      using _ = singleSequenceCache.createSequence();
      expect(() => singleSequenceCache.createSequence()).toThrow(
        /at most 1 sequences at a time, received 1 sequences that are not disposed/,
      );
    });
  },
);

test.each(["bfloat16", "float16"] as const)(
  "a model in %s generates the reference tokens on one rank and on a ring",
  async (dtype) => {
    await using folder = await writeFolder(models.qwen2!, { dtype });
    const call = { tokens: tokens.values.slice(0, 9), maxNewTokens: 6, eosTokenIds: [] };
    const [singleRankTokens] = await generateOnRanks(folder.path, oneRank, call);
    expect(ids(singleRankTokens!)).toEqual(Array.from(reference("qwen2.ids").slice(0, 6)));
    for (const steps of await generateOnRanks(folder.path, ring, call))
      expect(ids(steps)).toEqual(ids(singleRankTokens!));
  },
);

test.each([
  ["float32", 4],
  ["bfloat16", 2],
  ["float16", 4],
] as const)("the cache of a model in %s has %i bytes per number by default", async (dtype, numBytes) => {
  await using folder = await writeFolder(models.qwen2!, { dtype });
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    const { layers, numKvHeads, headDim } = model.config;
    using cache = new GenerationCache(model, { maxTokens: 100, blockSize: 16 });
    expect(cache.maxTokens).toBe(112);
    expect(cache.bytes).toBe(112 * layers.length * 2 * numKvHeads * headDim * numBytes);
  });
});

test("a generation leaves nothing allocated on the device", async () => {
  await using folder = await writeFolder(models.llama3!);
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    const allocated: number[] = [];
    for (let run = 0; run < 3; run++) {
      for await (const _ of model.generate({ tokens: [1, 2, 3], maxNewTokens: 8, eosTokenIds: [], doSample: true }))
        void _;
      allocated.push(ctx.device.memory().allocated);
    }
    expect(allocated[2]).toBe(allocated[1]);
  });
});

test("generate runs the hooks of decoder and head once per step, and not those of the model itself", async () => {
  await using folder = await writeTextModel();
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    const events: string[] = [];
    for (const [name, module] of Object.entries({ model, decoder: model.decoder, head: model.head })) {
      module.registerForwardPreHook(() => void events.push(`before ${name}`));
      module.registerForwardHook(() => void events.push(`after ${name}`));
    }
    let count = 0;
    for await (const _ of model.generate({ tokens: [5, 6], maxNewTokens: 2, eosTokenIds: [] })) count++;
    expect(count).toBe(2);
    const step = ["before decoder", "after decoder", "before head", "after head"];
    expect(events).toEqual([...step, ...step]);
  });
});
