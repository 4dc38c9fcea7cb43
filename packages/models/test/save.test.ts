import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readSafetensors } from "@mosaic/nn";
import { describe, expect, test } from "vitest";
import { editJson } from "../src/config/json-text.ts";
import { type CausalLM, createModel, loadModel } from "../src/index.ts";
import { arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, resolvePath } from "./reference/references.ts";
import { generateWeights, writeFolder } from "./reference/weights.ts";

const readJson = async (...path: string[]) =>
  JSON.parse(await readFile(join(...path), "utf8")) as Record<string, unknown>;

describe.each(Object.keys(models))("%s", (name) => {
  const model = models[name]!;

  test("saves the loaded values with the names and shapes of transformers", async () => {
    await using folder = await writeFolder(model, {
      dtype: "bfloat16",
      files: { "generation_config.json": { top_k: 7 } },
    });
    const savedFolder = join(folder.path, "saved");
    await onRanks(oneRank, async (ctx) => {
      using loadedModel = await loadModel(ctx, folder.path);
      await loadedModel.save(savedFolder);
    });
    expect((await readdir(savedFolder)).sort()).toEqual(["config.json", "generation_config.json", "model.safetensors"]);
    const { tensors, metadata } = await readSafetensors(join(savedFolder, "model.safetensors"));
    expect(metadata.get("format")).toBe("pt");
    const expected = generateWeights(model);
    expect(Object.fromEntries([...tensors].map(([key, { shape }]) => [key, shape]))).toEqual(model.shapes);
    for (const [key, { values, format }] of tensors) {
      expect(format).toBe("BF16");
      expect(Buffer.from(values.buffer).equals(Buffer.from(expected.get(key)!.values.buffer)), key).toBe(true);
    }
    expect(await readJson(savedFolder, "config.json")).toEqual({ ...model.config, dtype: "bfloat16" });
    expect(await readJson(savedFolder, "generation_config.json")).toEqual({ top_k: 7 });
  });
});

test("loadModel reads the shards, index and tokenizer that two ranks saved", async () => {
  const model = models.llama3!;
  const tokenizer = await readJson(resolvePath("tokenizers/unigram/tokenizer.json"));
  const config = { ...model.config, vocab_size: 200 };
  const shapes = { ...model.shapes, "model.embed_tokens.weight": [200, 48], "lm_head.weight": [200, 48] };
  const files = { "tokenizer.json": tokenizer, "tokenizer_config.json": { eos_token: "</s>" } };
  await using folder = await writeFolder({ ...model, config, shapes }, { files });
  const savedFolder = join(folder.path, "saved");
  const [ring] = arrangements;
  const logitsBefore = await onRanks(ring!, async (ctx) => {
    using loaded = await loadModel(ctx, folder.path, loadOptions(ring!));
    await loaded.save(savedFolder, { maxShardBytes: 30_000 });
    return loaded.decoder.layers.at(1)!.attention.qkvProjection.weight.read();
  });
  const index = (await readJson(savedFolder, "model.safetensors.index.json")) as unknown as {
    metadata: { total_size: number };
    weight_map: Record<string, string>;
  };
  const bytes = Object.values(shapes).reduce((sum, shape) => sum + 4 * shape.reduce((a, b) => a * b, 1), 0);
  expect(index.metadata.total_size).toBe(bytes);
  expect(new Set(Object.values(index.weight_map)).size).toBeGreaterThan(3);
  await onRanks(oneRank, async (ctx) => {
    using reloadedModel = await loadModel(ctx, savedFolder);
    expect(await reloadedModel.decoder.layers.at(1)!.attention.qkvProjection.weight.read()).toEqual(logitsBefore[0]);
    expect(reloadedModel.tokenizer!.decode(reloadedModel.tokenizer!.encode("merge"))).toBe("merge");
  });
});

test("a save in several files replaces an earlier one in a single file, and vice versa", async () => {
  const sizes = {
    vocab_size: 20,
    hidden_size: 16,
    intermediate_size: 16,
    num_hidden_layers: 1,
    num_attention_heads: 2,
  };
  await using folder = await writeFolder(models.llama2!);
  const savedFolder = join(folder.path, "saved");
  await onRanks(oneRank, async (ctx) => {
    const readEmbedding = async (model: CausalLM) => Array.from(await model.decoder.embedding.weight.read());
    for (const maxShardBytes of [1_000_000, 1000, 1_000_000]) {
      using created = createModel(ctx, { model_type: "llama", ...sizes });
      await created.save(savedFolder, { maxShardBytes });
      const fileNames = await readdir(savedFolder);
      expect(fileNames.includes("model.safetensors")).toBe(maxShardBytes !== 1000);
      expect(fileNames.includes("model.safetensors.index.json")).toBe(maxShardBytes === 1000);
      using loaded = await loadModel(ctx, savedFolder);
      expect(await readEmbedding(loaded)).toEqual(await readEmbedding(created));
    }
  });
});

test("weights of exactly the maximum size are one file", async () => {
  await using folder = await writeFolder(models.llama2!);
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    const bytes = model.parameters().reduce((sum, { size }) => sum + 4 * size, 0);
    for (const [maxShardBytes, numFiles] of [
      [bytes, 1],
      [bytes - 1, 2],
    ] as const) {
      await model.save(join(folder.path, "saved"), { maxShardBytes });
      const fileNames = await readdir(join(folder.path, "saved"));
      expect(fileNames.filter((name) => /^model-.*\.safetensors$/.test(name)).length || 1).toBe(numFiles);
    }
  });
});

test("a single file has precedence over an index, as in transformers", async () => {
  await using folder = await writeFolder(models.llama2!, { shards: 1 });
  const index = { metadata: {}, weight_map: { "model.norm.weight": "model-00001-of-00001.safetensors" } };
  await writeFile(join(folder.path, "model.safetensors.index.json"), JSON.stringify(index));
  await onRanks(oneRank, async (ctx) => {
    using loaded = await loadModel(ctx, folder.path);
    expect(loaded.config.modelType).toBe("llama");
  });
});

test("editJson preserves the notation of numbers", () => {
  const text = '{"a": 4.0, "torch_dtype": "bfloat16", "b": [1e6, 7, 0.5], "c": {"d": "1.0", "e\\"": -2.0E0}}';
  const editedText = editJson(text, { dtype: "float32", torch_dtype: undefined });
  expect(editedText.replaceAll(/\s/g, "")).toBe(
    '{"a":4.0,"b":[1e6,7,0.5],"c":{"d":"1.0","e\\"":-2.0E0},"dtype":"float32"}',
  );
});

test("a folder that cannot be written causes an error on every rank", async () => {
  await using folder = await writeFolder(models.llama2!);
  const [ring] = arrangements;
  const errors = await onRanks(ring!, async (ctx) => {
    using loaded = await loadModel(ctx, folder.path, loadOptions(ring!));
    const error = await loaded.save(join(folder.path, "config.json", "below")).catch((caught: unknown) => caught);
    return String(error);
  });
  expect(errors[0]).toMatch(/ENOTDIR/);
  expect(errors[1]).toMatch(
    /saveModel, rank 1: expected success on every rank, received a failure on rank 0 \(.*ENOTDIR/,
  );
});

test("an invalid path on one rank is an error on every rank", async () => {
  await using folder = await writeFolder(models.llama2!);
  const [ring] = arrangements;
  const savedFolder = join(folder.path, "saved");
  const errors = await onRanks(ring!, async (ctx) => {
    using loaded = await loadModel(ctx, folder.path, loadOptions(ring!));
    return loaded.save(ctx.rank === 1 ? "" : savedFolder).catch((caught: unknown) => String(caught));
  });
  expect(errors[0]).toMatch(
    /saveModel, rank 0: .* received a failure on rank 1 \(saveModel: folder: expected the path/,
  );
  expect(errors[1]).toMatch(/^OptionError: saveModel: folder: expected the path of a folder, received ""/);
});

test("paths that differ between ranks are rejected on every rank, and nothing is written", async () => {
  await using folder = await writeFolder(models.llama2!);
  const [ring] = arrangements;
  const savedFolder = join(folder.path, "saved");
  const errors = await onRanks(ring!, async (ctx) => {
    using loaded = await loadModel(ctx, folder.path, loadOptions(ring!));
    return loaded.save(`${savedFolder}${ctx.rank}`).catch((caught: unknown) => String(caught));
  });
  expect(errors).toHaveLength(2);
  for (const error of errors)
    expect(error).toMatch(/^OptionError: saveModel: folder: expected the same path on every rank, .*1" on rank 1; /);
  expect((await readdir(folder.path)).filter((name) => name.startsWith("saved"))).toEqual([]);
});
