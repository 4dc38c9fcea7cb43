import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readServedModel } from "../src/serve/served-model.ts";
import { createConfig } from "../src/model-folder.ts";
import { UsageError } from "../src/settings.ts";
import { sizes } from "./served-folder.ts";

const promptWorker = new URL("../dist/prompt-worker.js", import.meta.url);
let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "mosaic-served-"));
});
afterEach(() => rm(folder, { recursive: true }));

async function writeConfig(fields: object): Promise<void> {
  await writeFile(join(folder, "config.json"), JSON.stringify({ ...createConfig(sizes), ...fields }));
  const none = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
  const model = { type: "BPE", vocab: { a: 0, b: 1 }, merges: [] };
  await writeFile(join(folder, "tokenizer.json"), JSON.stringify({ model, added_tokens: [], ...none }));
}

test("a config.json that is not JSON is a UsageError with its path", async () => {
  await writeFile(join(folder, "config.json"), "{");
  const error = await readServedModel(folder, { cacheTokens: 1024, promptWorker, maxWaitingPrompts: 1 }).catch(
    (caught: unknown) => caught,
  );
  expect(error).toBeInstanceOf(UsageError);
  expect(String(error)).toMatch(/config.json: expected JSON, received .*; download the file again/);
});

test("the maximum length is that of texts in a batch, and at most the capacity of the cache", async () => {
  const rope = { rope_type: "dynamic", rope_theta: 1e4, factor: 4 };
  await writeConfig({ rope_parameters: rope });
  expect((await readServedModel(folder, { cacheTokens: 1024, promptWorker, maxWaitingPrompts: 1 })).maxLength).toBe(
    128,
  );
  await writeConfig({ rope_parameters: { ...rope, rope_type: "yarn" } });
  expect((await readServedModel(folder, { cacheTokens: 1024, promptWorker, maxWaitingPrompts: 1 })).maxLength).toBe(
    512,
  );
  expect((await readServedModel(folder, { cacheTokens: 256, promptWorker, maxWaitingPrompts: 1 })).maxLength).toBe(256);
});
