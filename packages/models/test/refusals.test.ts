import { truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fromArray, noGrad } from "@mosaic/core";
import { writeSafetensors } from "@mosaic/nn";
import { describe, expect, test } from "vitest";
import { createModel, GenerationCache, loadModel } from "../src/index.ts";
import type { GenerateOptions } from "../src/index.ts";
import { arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, type ReferenceModel } from "./reference/references.ts";
import { type FolderOptions, generateWeights, writeFolder } from "./reference/weights.ts";

const model = models.llama3!;

/** Returns the error of loading a folder, which both of two ranks throw before anything is sent. */
async function getLoadError(
  modifyFolder: (path: string) => Promise<unknown>,
  { referenceModel = model, ...options }: FolderOptions & { readonly referenceModel?: ReferenceModel } = {},
): Promise<string> {
  await using folder = await writeFolder(referenceModel, options);
  await modifyFolder(folder.path);
  const [ring] = arrangements;
  const [rank0Error, rank1Error] = await onRanks(ring!, async (ctx) => {
    const error = await loadModel(ctx, folder.path, loadOptions(ring!)).catch((caught: unknown) => caught);
    expect(ctx.world.traffic().messagesSent).toBe(0);
    return String(error).replaceAll(folder.path, "FOLDER");
  });
  expect(rank1Error).toBe(rank0Error);
  return rank0Error!;
}

const keepFolder = () => Promise.resolve();
const changeConfig = (fields: Readonly<Record<string, unknown>>) => (path: string) =>
  writeFile(join(path, "config.json"), JSON.stringify({ ...model.config, ...fields }));

/** Writes model.safetensors with some weights replaced, or omitted if undefined. */
const changeWeights = (changes: Readonly<Record<string, unknown>>) => (path: string) => {
  const weights = new Map<string, unknown>(
    Object.entries({ ...Object.fromEntries(generateWeights(model)), ...changes }),
  );
  for (const [name, value] of weights) if (value === undefined) weights.delete(name);
  return writeSafetensors(join(path, "model.safetensors"), weights as ReturnType<typeof generateWeights>, {
    format: "pt",
  });
};

const singleShard = { shards: 1 };
const norm = { dtype: "float32", shape: [47], values: new Float32Array(47) };

describe("loadModel, before it sends any message", () => {
  test("rejects a folder of an unsupported architecture", async () => {
    expect(await getLoadError(changeConfig({ model_type: "bert" }))).toMatch(
      /FileError: FOLDER\/config.json: model_type: expected one of llama, .*, received "bert"; this model type is not supported/,
    );
  });

  test("rejects a folder whose config is missing or not valid JSON", async () => {
    expect(await getLoadError((path) => writeFile(join(path, "config.json"), "{"))).toMatch(
      /FileError: FOLDER\/config.json: expected JSON, received .*; download the file again/,
    );
    expect(
      await getLoadError((path) => import("node:fs/promises").then(({ rm }) => rm(join(path, "config.json")))),
    ).toMatch(
      /FOLDER\/config.json: expected a file of a Hugging Face model folder, received no such file; download all files/,
    );
  });

  test("rejects a folder that lacks a tensor", async () => {
    expect(await getLoadError(changeWeights({ "model.norm.weight": undefined }), singleShard)).toMatch(
      /FileError: FOLDER: expected the 21 weights that config.json describes, received missing "model.norm.weight"; .*nothing was loaded/,
    );
  });

  test("rejects a folder with a tensor of another shape", async () => {
    expect(await getLoadError(changeWeights({ "model.norm.weight": norm }), singleShard)).toMatch(
      /received "model.norm.weight" has shape \[47\] instead of \[48\]; use the config.json of these weights/,
    );
  });

  test("rejects a folder with a tensor that the model does not have", async () => {
    expect(await getLoadError(changeWeights({ "model.layers.0.self_attn.q_proj.bias": norm }), singleShard)).toMatch(
      /received unexpected "model.layers.0.self_attn.q_proj.bias"/,
    );
  });

  test("rejects a folder whose config has more layers than the weights", async () => {
    expect(await getLoadError(changeConfig({ num_hidden_layers: 3 }))).toMatch(
      /expected the 30 weights .*, received missing "model.layers.2.self_attn.q_proj.weight"; .* and 1 more/,
    );
  });

  test("rejects a folder with a truncated or missing shard", async () => {
    const shard = "model-00002-of-00003.safetensors";
    expect(await getLoadError((path) => truncate(join(path, shard), 5000))).toMatch(
      /FileError: FOLDER\/model-00002-of-00003.safetensors: expected \d+ bytes of tensor data, received \d+; restore the file from a copy; nothing was loaded/,
    );
    expect(await getLoadError((path) => import("node:fs/promises").then(({ rm }) => rm(join(path, shard))))).toMatch(
      /FOLDER\/model-00002-of-00003.safetensors: expected weights in safetensors format, received no such file; the folder contains model-00001/,
    );
  });

  test("rejects a folder whose index names the wrong file or a file outside the folder", async () => {
    const index = (path: string) =>
      writeFile(
        join(path, "model.safetensors.index.json"),
        JSON.stringify({
          weight_map: {
            "model.norm.weight": "model-00001-of-00003.safetensors",
            x: "model-00002-of-00003.safetensors",
          },
        }),
      );
    expect(await getLoadError(index)).toMatch(
      /expected tensor ".*", as specified by model.safetensors.index.json, received/,
    );
    const indexOutside = (path: string) =>
      writeFile(join(path, "model.safetensors.index.json"), JSON.stringify({ weight_map: { a: "../x.safetensors" } }));
    expect(await getLoadError(indexOutside)).toMatch(
      /weight_map: expected an object that maps tensor names to .safetensors file names/,
    );
  });

  test("rejects a folder whose tokenizer has a larger vocabulary or is not supported", async () => {
    const vocab = Object.fromEntries(Array.from({ length: 70 }, (_, id) => [`t${id}`, id]));
    const tokenizerFields = {
      normalizer: null,
      pre_tokenizer: null,
      post_processor: null,
      decoder: { type: "ByteLevel" },
    };
    const tokenizer = { model: { type: "BPE", vocab, merges: [] }, added_tokens: [], ...tokenizerFields };
    expect(await getLoadError(keepFolder, { files: { "tokenizer.json": tokenizer } })).toMatch(
      /FOLDER\/tokenizer.json: expected at most 64 tokens, the vocab_size of config.json, received 70; use the tokenizer of this model/,
    );
    const unknownPart = { ...tokenizer, pre_tokenizer: { type: "Other" } };
    expect(await getLoadError(keepFolder, { files: { "tokenizer.json": unknownPart } })).toMatch(
      /FOLDER\/tokenizer.json: expected a tokenizer that @huggingface\/tokenizers supports, received/,
    );
  });
});

describe("generate and forward", () => {
  const tokens = [1, 2, 3];
  const invalidCalls: readonly (readonly [name: string, options: GenerateOptions, message: RegExp])[] = [
    ["nothing to continue", {}, /generate: expected exactly one of prompt, messages and tokens, received none/],
    ["two things to continue", { tokens, prompt: "a" }, /received prompt and tokens/],
    [
      "no token",
      { tokens: [] },
      /tokens: expected at least one token, each below 64, the vocabulary size of the model, received none/,
    ],
    ["a token of another vocabulary", { tokens: [64] }, /received 64; use the tokenizer of this model/],
    [
      "text without a tokenizer",
      { prompt: "a" },
      /prompt: expected a model with a tokenizer, received a folder without tokenizer.json/,
    ],
    [
      "messages without a tokenizer",
      { messages: [{ role: "user", content: "a" }] },
      /messages: expected a model with a tokenizer/,
    ],
    [
      "a stop string without a tokenizer",
      { tokens, stopStrings: ["a"] },
      /stopStrings: expected a model with a tokenizer/,
    ],
    [
      "an empty stop string",
      { tokens, stopStrings: [""] },
      /stopStrings: expected an array, each element a non-empty string, received \[""\]/,
    ],
    [
      "a context beyond the model's",
      { tokens, maxNewTokens: 510 },
      /maxNewTokens: expected at most 512 tokens in total, the maximum length of the model by max_position_embeddings and rope_parameters, received a prompt of 3 tokens and maxNewTokens of 510; shorten/,
    ],
    [
      "a prompt as long as the model's context",
      { tokens: Array.from({ length: 512 }, () => 1) },
      /received a prompt of 512 tokens and maxNewTokens of 1/,
    ],
    ["a temperature of 0", { tokens, temperature: 0 }, /temperature: expected a number > 0, received 0/],
  ];

  test.each(invalidCalls)("reject a call with %s", async (_, options, message) => {
    await using folder = await writeFolder(model);
    await onRanks(oneRank, async (ctx) => {
      using loadedModel = await loadModel(ctx, folder.path);
      expect(() => loadedModel.generate(options)).toThrow(message);
    });
  });

  test("reject an added token for which the model has no embedding", async () => {
    const vocab = { a: 0, b: 1 };
    const imageToken = { id: 64, content: "<image>", special: true, normalized: false, lstrip: false, rstrip: false };
    const tokenizerFields = {
      normalizer: null,
      pre_tokenizer: null,
      post_processor: null,
      decoder: { type: "ByteLevel" },
    };
    const tokenizer = { model: { type: "BPE", vocab, merges: [] }, added_tokens: [imageToken], ...tokenizerFields };
    await using folder = await writeFolder(model, { files: { "tokenizer.json": tokenizer } });
    await onRanks(oneRank, async (ctx) => {
      using loaded = await loadModel(ctx, folder.path);
      expect(loaded.tokenizer!.vocabSize()).toBe(65);
      expect(() => loaded.generate({ prompt: "ab<image>" })).toThrow(
        /prompt: expected .* each below 64, .*, received 64/,
      );
      expect(() => loaded.generate({ prompt: "ab" })).not.toThrow();
    });
  });

  test("reject a sequence that does not fit in the cache, before any message is sent", async () => {
    await using folder = await writeFolder(model);
    await onRanks(arrangements[0]!, async (ctx) => {
      using loaded = await loadModel(ctx, folder.path, loadOptions(arrangements[0]!));
      using cache = new GenerationCache(loaded, { maxTokens: 16, blockSize: 4 });
      expect(cache.freeTokens).toBe(16);
      expect(() => loaded.generate({ tokens, cache, maxNewTokens: 14 })).toThrow(
        /generate: cache: expected free memory for 17 tokens, received free memory for 16 tokens; create the cache with a larger maxTokens/,
      );
      expect(ctx.world.traffic().messagesSent).toBe(0);
    });
  });

  test("reject a cache of an equal model in another context", async () => {
    await onRanks(oneRank, async (ctx) => {
      using created = createModel(ctx, model.config, loadOptions(oneRank));
      using cache = new GenerationCache(created, { maxTokens: 64 });
      await onRanks(oneRank, async (otherCtx) => {
        using other = createModel(otherCtx, model.config, loadOptions(oneRank));
        expect(() => other.generate({ tokens, cache, maxNewTokens: 2 })).toThrow(
          /generate: cache: expected a cache created with this model, .* in another context; create a GenerationCache/,
        );
      });
      for await (const { token } of created.generate({ tokens, cache, maxNewTokens: 1 }))
        expect(token).toBeTypeOf("number");
    });
  });

  test("reject a cache of a model with another number of layers", async () => {
    await onRanks(arrangements[0]!, async (ctx) => {
      const create = (fields: object) =>
        createModel(ctx, { ...model.config, ...fields }, loadOptions(arrangements[0]!));
      using created = create({ num_hidden_layers: 2 });
      using cache = new GenerationCache(created, { maxTokens: 64 });
      for (const numLayers of [1, 3]) {
        using other = create({ num_hidden_layers: numLayers });
        expect(() => other.generate({ tokens, cache, maxNewTokens: 2 })).toThrow(
          new RegExp(
            `generate: cache: expected a cache created with this model, of numLayers ${numLayers}, .* numLayers 2`,
          ),
        );
      }
      using deep = create({ num_hidden_layers: 3 });
      using sequence = cache.createSequence();
      using x = fromArray(ctx, tokens, [1, tokens.length]);
      expect(() => noGrad(() => deep.forward(x, { cache: cache.forCall([sequence]) }))).toThrow(
        /GenerationCache: layer: expected a layer from 0 to 1 of the model of the cache, received 2/,
      );
      using alike = create({ num_hidden_layers: 2 });
      for await (const { token } of alike.generate({ tokens, cache, maxNewTokens: 2 })) expect(token).toBeLessThan(512);
    });
  });

  test("reject a sequence longer than the model's context", async () => {
    await using folder = await writeFolder(model);
    await onRanks(oneRank, async (ctx) => {
      using loaded = await loadModel(ctx, folder.path);
      using tooManyTokens = fromArray(ctx, new Float32Array(513), [1, 513]);
      expect(() => loaded.forward(tooManyTokens)).toThrow(/CausalLM: expected at most 512 tokens, .*, received 513/);
    });
  });

  test.each([oneRank, arrangements[0]!])(
    "reject a sequence longer than the context together with its cached tokens, on $name",
    async (arrangement) => {
      await using folder = await writeFolder(model);
      await onRanks(arrangement, async (ctx) => {
        using loaded = await loadModel(ctx, folder.path, loadOptions(arrangement));
        using cache = new GenerationCache(loaded, { maxTokens: 1024 });
        using sequence = cache.createSequence();
        const forward = (count: number, sharded = false) => {
          const rows = sharded ? count / ctx.size : count;
          using tokens = fromArray(ctx, new Float32Array(rows), [1, rows]);
          noGrad(() => loaded.forward(tokens, { cache: cache.forCall([sequence], { sharded }) })).dispose();
        };
        // Every rank has all tokens, not a shard of them.
        forward(400);
        forward(100, true);
        expect(() => forward(13)).toThrow(/CausalLM: expected at most 512 tokens, .*, received 513/);
        expect(() => forward(14, true)).toThrow(/received 514/);
        forward(12);
        expect(sequence.length).toBe(512);
      });
    },
  );
});

test("createModel rejects a config with values that JSON cannot represent", async () => {
  const messagesSent = await onRanks(arrangements[0]!, (ctx) => {
    expect(() => createModel(ctx, { ...model.config, seed: 10n })).toThrow(
      /^createModel: config: expected fields that JSON can represent, received .*BigInt/,
    );
    return Promise.resolve(ctx.world.traffic().messagesSent);
  });
  expect(messagesSent).toEqual([0, 0]);
});
