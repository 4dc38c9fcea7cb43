import { describe, expect, test } from "vitest";
import { parseGenerationConfig } from "../src/config/generation-config.ts";
import { type CausalLM, GenerationBatch, type GenerateOptions, loadModel, parseConfig } from "../src/index.ts";
import { resolveGeneration } from "../src/generate/generate.ts";
import { onRanks, oneRank } from "./reference/arrangements.ts";
import { models } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

const tokens = [1, 2, 3];

/** Loads a model whose folder has the given generation_config.json. Loading must succeed with any content. */
async function onModel(
  generationConfig: Readonly<Record<string, unknown>>,
  body: (model: CausalLM) => void | Promise<void>,
): Promise<void> {
  await using folder = await writeFolder(models.llama3!, { files: { "generation_config.json": generationConfig } });
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    await body(model);
  });
}

describe("the number of new tokens", () => {
  test.each<[Readonly<Record<string, unknown>>, GenerateOptions, number]>([
    [{}, { tokens }, 256],
    [{ max_new_tokens: 300 }, { tokens }, 300],
    [{ max_new_tokens: 300, max_length: 10 }, { tokens }, 300],
    [{ max_length: 10 }, { tokens }, 7],
    [{ max_length: 10 }, { tokens, maxNewTokens: 20 }, 20],
    [{ max_new_tokens: 2048 }, { tokens }, 509],
    [{ max_length: 4096 }, { tokens }, 509],
    [{ max_new_tokens: null, max_length: null }, { tokens }, 256],
  ])("with generation_config.json %o and options %o is %i", async (generationConfig, options, expected) => {
    await onModel(generationConfig, (model) => {
      expect(resolveGeneration(model, options).maxNewTokens).toBe(expected);
    });
  });

  test("is an error for a prompt as long as max_length", async () => {
    await onModel({ max_length: 3 }, (model) => {
      expect(() => model.generate({ tokens })).toThrow(
        /generate: maxNewTokens: expected fewer than 3 tokens in the prompt, the max_length of generation_config.json, received a prompt of 3 tokens; pass maxNewTokens/,
      );
    });
  });

  test("limits the generated tokens", async () => {
    await onModel({ max_new_tokens: 3, eos_token_id: [] }, async (model) => {
      const steps = [];
      for await (const step of model.generate({ tokens })) steps.push(step);
      expect(steps.map(({ finishReason }) => finishReason)).toEqual([null, null, "length"]);
    });
  });
});

test("min_p of generation_config.json is the default of minP", async () => {
  await onModel({ do_sample: true, min_p: 0.25 }, (model) => {
    expect(resolveGeneration(model, { tokens }).settings.minP).toBe(0.25);
    expect(resolveGeneration(model, { tokens, minP: 0 }).settings.minP).toBe(0);
  });
  await onModel({ do_sample: true, temperature: 5, min_p: 1 }, async (model) => {
    const draws = [];
    for await (const { token, logProbability } of model.generate({ tokens, eosTokenIds: [], maxNewTokens: 5 }))
      draws.push({ token, logProbability });
    expect(draws.map(({ logProbability }) => logProbability)).toEqual([0, 0, 0, 0, 0]);
  });
  const config = parseConfig("config.json", models.llama3!.config);
  expect(() => parseGenerationConfig("generation_config.json", { min_p: 1.5 }, config)).toThrow(
    /generation_config.json: min_p: expected a number from 0 to 1, received 1.5/,
  );
});

test.each<[Readonly<Record<string, unknown>>, number]>([
  [{ do_sample: true }, 50],
  [{ do_sample: true, top_k: null }, 50],
  [{ do_sample: true, top_k: 0 }, 0],
  [{ do_sample: true, top_k: 7 }, 7],
])("with generation_config.json %o, topK is %i by default", async (generationConfig, expected) => {
  await onModel(generationConfig, (model) => {
    expect(resolveGeneration(model, { tokens }).settings.topK).toBe(expected);
  });
});

test("the seed is that of the context by default", async () => {
  await onModel({}, (model) => {
    const { ctx, config, settings, decoder, tokenizer, generationConfig } = model;
    const otherModel = { ctx: { ...ctx, seed: 7 }, config, settings, decoder, tokenizer, generationConfig };
    const resolveSeed = (options: GenerateOptions) =>
      resolveGeneration({ ...otherModel, project: (hidden) => model.project(hidden) }, options).seed;
    expect(resolveSeed({ tokens })).toBe(7);
    expect(resolveSeed({ tokens, seed: 3 })).toBe(3);
  });
});

describe("a temperature or top_k from which transformers samples no token", () => {
  test.each<[Readonly<Record<string, unknown>>, GenerateOptions, RegExp]>([
    [
      { temperature: 0 },
      { temperature: 0.5 },
      /generation_config.json: temperature: expected a number > 0 or no such field, received 0; .*pass temperature, or/,
    ],
    [
      { top_k: -1 },
      { topK: 0 },
      /generation_config.json: top_k: expected an integer ≥ 0 .*received -1; .*pass topK, or/,
    ],
  ])("is an error only if a token is sampled without the option: %o", async (generationConfig, options, message) => {
    await onModel(generationConfig, (model) => {
      expect(() => model.generate({ tokens })).not.toThrow();
      expect(() => model.generate({ tokens, doSample: true })).toThrow(message);
      expect(() => model.generate({ tokens, doSample: true, ...options })).not.toThrow();
    });
  });
});

test("fields of config.json are the defaults of a folder without generation_config.json, as in transformers", async () => {
  const fields = { do_sample: true, temperature: 0.25, repetition_penalty: 1.5, eos_token_id: 7, num_beams: 4 };
  const config = { ...models.llama3!.config, ...fields };
  await using folder = await writeFolder({ ...models.llama3!, config });
  await using folderWithFile = await writeFolder(
    { ...models.llama3!, config },
    { files: { "generation_config.json": { do_sample: false } } },
  );
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    const { doSample, temperature, repetitionPenalty, eosTokenIds } = model.generationConfig;
    expect([doSample, temperature, repetitionPenalty, eosTokenIds]).toEqual([true, 0.25, 1.5, [7]]);
    expect(() => model.generate({ tokens })).toThrow(/config.json: num_beams: expected 1 or no such field, received 4/);
    using modelWithFile = await loadModel(ctx, folderWithFile.path);
    expect(modelWithFile.generationConfig).toMatchObject({ doSample: false, temperature: 1, repetitionPenalty: 1 });
    expect(() => modelWithFile.generate({ tokens })).not.toThrow();
  });
});

describe("unsupported fields that change the text in transformers", () => {
  test.each<[Readonly<Record<string, unknown>>, RegExp]>([
    [
      { no_repeat_ngram_size: 3 },
      /generation_config.json: no_repeat_ngram_size: expected 0 or no such field, received 3; .* remove the field from the file/,
    ],
    [{ num_beams: 4 }, /num_beams: expected 1 or no such field, received 4/],
    [{ bad_words_ids: [[5]] }, /bad_words_ids: expected null or no such field, received \[\[…\]\]/],
    [{ suppress_tokens: [5] }, /suppress_tokens: /],
    [{ forced_bos_token_id: 0 }, /forced_bos_token_id: .* received 0/],
    [{ encoder_no_repeat_ngram_size: 2 }, /encoder_no_repeat_ngram_size: /],
    [{ penalty_alpha: 0.6 }, /penalty_alpha: /],
    [{ min_new_tokens: 5 }, /min_new_tokens: /],
    [{ stop_strings: ["a"] }, /stop_strings: .*pass stopStrings, or remove the field/],
    [{ do_sample: true, typical_p: 0.9 }, /typical_p: expected 1 .*pass doSample: false, or remove the field/],
    [{ do_sample: true, epsilon_cutoff: 3e-4 }, /epsilon_cutoff: /],
    [{ do_sample: true, eta_cutoff: 3e-4 }, /eta_cutoff: /],
  ])(
    "are rejected by generate and GenerationBatch.add, but not by loadModel: %o",
    async (generationConfig, message) => {
      await onModel(generationConfig, (model) => {
        expect(() => model.generate({ tokens })).toThrow(message);
        using batch = new GenerationBatch(model, { maxTokens: 512 });
        expect(() => batch.add({ tokens })).toThrow(message);
      });
    },
  );

  test("are accepted if their values have no effect, or if an option replaces them", async () => {
    const neutralFields = {
      ...{ num_beams: 1, typical_p: 1.0, epsilon_cutoff: 0.0, eta_cutoff: 0, min_p: 0, no_repeat_ngram_size: 0 },
      ...{ suppress_tokens: [], sequence_bias: {}, bad_words_ids: null, forced_bos_token_id: null, min_length: 0 },
      ...{ token_healing: false, use_cache: true, transformers_version: "5.0.0", renormalize_logits: false },
    };
    await onModel(neutralFields, (model) => expect(() => model.generate({ tokens })).not.toThrow());
    await onModel({ do_sample: true, typical_p: 0.9 }, (model) => {
      expect(() => model.generate({ tokens, doSample: false })).not.toThrow();
    });
    await onModel({ stop_strings: ["a"] }, (model) => {
      expect(() => model.generate({ tokens, stopStrings: [] })).not.toThrow();
    });
  });
});
