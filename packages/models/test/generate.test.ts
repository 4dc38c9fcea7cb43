import { readFile } from "node:fs/promises";
import { maxError } from "@mosaic/conformance";
import { fromArray, noGrad } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { GenerationCache, type GeneratedToken, type GenerateOptions, loadModel } from "../src/index.ts";
import { type Arrangement, arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, pathOf, reference, type ReferenceModel, tokens } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

const ring = arrangements[0]!;
const readJson = async (name: string) => JSON.parse(await readFile(pathOf(name), "utf8")) as Record<string, unknown>;

/** A model with a tokenizer of 422 tokens, whose text is made of bytes. */
async function writeTextModel() {
  const { config, shapes, errors } = models.llama3!;
  const model: ReferenceModel = {
    config: { ...config, vocab_size: 422 },
    shapes: { ...shapes, "model.embed_tokens.weight": [422, 48], "lm_head.weight": [422, 48] },
    errors,
  };
  const files = {
    "tokenizer.json": await readJson("tokenizers/byte-level/tokenizer.json"),
    "tokenizer_config.json": { bos_token: "<s>", chat_template: "{{ bos_token }}{{ messages[0].content }}" },
    "generation_config.json": { do_sample: true, temperature: 0.9, top_k: 30, top_p: 0.95, eos_token_id: 2 },
  };
  return writeFolder(model, { files });
}

/** What every rank generates. */
async function generateOn(
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
const textOf = (steps: readonly GeneratedToken[]): string => steps.map(({ text }) => text).join("");

test("a folder that save_pretrained wrote, of random weights in several files", async () => {
  const [logits] = await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, pathOf("saved"), { dtype: "float32" });
    expect(model.generationConfig).toEqual({
      ...{ doSample: true, temperature: 0.6, topK: 20, topP: 0.95, repetitionPenalty: 1 },
      eosTokenIds: [2, 5],
    });
    using whole = fromArray(ctx, tokens.values, [tokens.batch, tokens.length]);
    using out = noGrad(() => model.forward(whole));
    return out.read();
  });
  expect(maxError(logits!, reference("saved.logits"))).toBeLessThanOrEqual(2 * reference("saved.float32Error")[0]!);
});

describe("tokens drawn at random", () => {
  const sampled = {
    tokens: tokens.values.slice(0, 9),
    doSample: true,
    temperature: 1.2,
    maxNewTokens: 30,
    eosTokenIds: [],
  };

  test("are the same on every rank and mesh, and follow from the seed", async () => {
    await using folder = await writeFolder(models.qwen3!);
    const [alone] = await generateOn(folder.path, oneRank, { ...sampled, seed: 7 });
    const [other] = await generateOn(folder.path, oneRank, { ...sampled, seed: 8 });
    expect(ids(other!)).not.toEqual(ids(alone!));
    expect(new Set(ids(alone!)).size).toBeGreaterThan(10);
    for (const arrangement of arrangements) {
      for (const steps of await generateOn(folder.path, arrangement, { ...sampled, seed: 7 })) {
        expect(ids(steps), arrangement.name).toEqual(ids(alone!));
      }
    }
  });

  test("have the probabilities of the logits after the prompt", async () => {
    await using folder = await writeFolder(models.qwen3!);
    const logits = reference("qwen3.logits")
      .slice(0, tokens.length * 64)
      .slice(8 * 64, 9 * 64);
    const weights = Array.from(logits, (logit) => Math.exp(logit / sampled.temperature));
    const total = weights.reduce((sum, each) => sum + each, 0);
    const draws = 600;
    const counts = weights.map(() => 0);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      for (let seed = 0; seed < draws; seed++) {
        const call = { ...sampled, topK: 0, maxNewTokens: 1, seed };
        for await (const { token, logProbability } of model.generate(call)) {
          counts[token]!++;
          expect(logProbability).toBeCloseTo(Math.log(weights[token]! / total), 4);
        }
      }
    });
    // Pearson's statistic with 63 degrees of freedom exceeds 120 by chance once in 50 000 tests; seeds are fixed.
    const statistic = counts.reduce((sum, count, i) => {
      const expected = (draws * weights[i]!) / total;
      return sum + (count - expected) ** 2 / expected;
    }, 0);
    expect(statistic).toBeLessThan(120);
  });
});

describe("text", () => {
  test("of the pieces is that of all tokens, for a prompt, messages and tokens alike", async () => {
    await using folder = await writeTextModel();
    await onRanks(ring, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(ring));
      const tokenizer = model.tokenizer!;
      const prompt = "The ring passes keys";
      const common = { maxNewTokens: 24, seed: 3, eosTokenIds: [] };
      const results: GeneratedToken[][] = [];
      const calls = [
        { prompt },
        { messages: [{ role: "user", content: prompt }] },
        { tokens: tokenizer.encode(prompt) },
      ];
      for (const call of calls) {
        const steps: GeneratedToken[] = [];
        for await (const step of model.generate({ ...call, ...common })) steps.push(step);
        results.push(steps);
      }
      expect(results[1]).toEqual(results[0]);
      expect(results[2]).toEqual(results[0]);
      const all = tokenizer.decode([...tokenizer.encode(prompt), ...ids(results[0]!)]);
      expect(textOf(results[0]!)).toBe(all.slice(prompt.length));
      expect(results[0]!.map(({ finishReason }) => finishReason)).toEqual([
        ...Array.from({ length: 23 }, () => null),
        "length",
      ]);
    });
  });

  test("ends before a stop string, and at an end token", async () => {
    await using folder = await writeTextModel();
    const call = { prompt: "The ring", maxNewTokens: 30, seed: 5, eosTokenIds: [] };
    const [whole] = await generateOn(folder.path, ring, call);
    const text = textOf(whole!);
    const stop = text.slice(10, 13);
    for (const steps of await generateOn(folder.path, ring, { ...call, stopStrings: ["never", stop] })) {
      expect(textOf(steps)).toBe(text.slice(0, text.indexOf(stop)));
      expect(steps.at(-1)!.finishReason).toBe("stop");
    }
    const end = ids(whole!)[6]!;
    const [ended] = await generateOn(folder.path, ring, { ...call, eosTokenIds: [end] });
    expect(ids(ended!)).toEqual(ids(whole!).slice(0, ids(whole!).indexOf(end) + 1));
    expect(ended!.at(-1)).toMatchObject({ token: end, text: "", finishReason: "stop" });
  });
});

test("calls share a cache, one after another and at once, and give its memory back", async () => {
  await using folder = await writeFolder(models.gemma3!);
  await onRanks(ring, async (ctx) => {
    using model = await loadModel(ctx, folder.path, loadOptions(ring));
    using cache = new GenerationCache(model, { maxTokens: 64, blockSize: 4 });
    const call = { tokens: tokens.values.slice(0, 9), maxNewTokens: 12, eosTokenIds: [], cache };
    const results: number[][] = [[], []];
    const both = [model.generate(call), model.generate(call)];
    for (let step = 0; step < 12; step++) {
      for (const [i, each] of both.entries()) results[i]!.push(((await each.next()).value as GeneratedToken).token);
    }
    for (const each of both) expect((await each.next()).done).toBe(true);
    const again: number[] = [];
    for await (const { token } of model.generate(call)) again.push(token);
    expect(results).toEqual([again, again]);
    expect(cache.freeTokens).toBe(64);
    for await (const _ of model.generate(call)) break;
    expect(cache.freeTokens).toBe(64);
  });
});

test.each([oneRank, ring, arrangements[4]!])(
  "layers with a sliding window keep what it shows; prompts in parts continue as whole ones: $name",
  async (arrangement) => {
    await using folder = await writeFolder(models.gemma3!);
    await onRanks(arrangement, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(arrangement));
      const call = { tokens: tokens.values, maxNewTokens: 60, eosTokenIds: [] };
      const whole: GeneratedToken[] = [];
      for await (const each of model.generate(call)) whole.push(each);
      const settings = { maxTokens: 256, blockSize: 4, maxPrefillTokens: 5, maxSequences: 2 };
      const before = ctx.device.memory().allocated;
      using cache = new GenerationCache(model, settings);
      const ranks = arrangement === oneRank ? 1 : 2;
      const reserved = (ctx.device.memory().allocated - before) * ranks;
      // A layer of three sees all tokens. Of the others each text has the 7 before a part of 5, in 3 blocks, and one for those that are cut.
      expect(cache.bytes).toBe((256 + 2 * (2 * 4 * 4)) * 2 * (16 + 16) * 4);
      expect(reserved / cache.bytes).toBeCloseTo(1, 1);
      const both = [model.generate({ ...call, cache }), model.generate({ ...call, cache })];
      for (const expected of whole) {
        for (const each of both) {
          const { token, logProbability } = (await each.next()).value as GeneratedToken;
          expect(token).toBe(expected.token);
          expect(logProbability).toBeCloseTo(expected.logProbability, 4);
        }
      }
      expect(cache.freeTokens).toBe(256 - 2 * 104);
      expect(() => model.generate({ ...call, cache })).toThrow(
        /free memory for 102 tokens, received free memory for 48 tokens/,
      );
      using one = new GenerationCache(model, { ...settings, maxSequences: 1 });
      using _ = one.createSequence();
      expect(() => one.createSequence()).toThrow(
        /at most 1 sequences at a time, received 1 sequences that are not disposed/,
      );
    });
  },
);

test.each(["bfloat16", "float16"] as const)("a model in %s generates on every mesh", async (dtype) => {
  await using folder = await writeFolder(models.qwen2!, { dtype });
  const call = { tokens: tokens.values.slice(0, 9), maxNewTokens: 6, eosTokenIds: [] };
  const [alone] = await generateOn(folder.path, oneRank, call);
  expect(ids(alone!)).toEqual(Array.from(reference("qwen2.ids").slice(0, 6)));
  for (const steps of await generateOn(folder.path, ring, call)) expect(ids(steps)).toEqual(ids(alone!));
});

test("nothing is left on the device after a generation", async () => {
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
