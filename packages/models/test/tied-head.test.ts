import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fromArray, type HostTensor, noGrad } from "@mosaic/core";
import { readSafetensors, writeSafetensors } from "@mosaic/nn";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { loadModel } from "../src/index.ts";
import { arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, tokens } from "./reference/references.ts";
import { generateWeight, generateWeights, writeFolder } from "./reference/weights.ts";

const tiedModel = models.qwen3!;
const headShape = tiedModel.shapes["model.embed_tokens.weight"]!;
/** Writes a model with the same weights and a separate head, whose config ties the output projection or not. */
const writeModel = (isTied: boolean, shape: readonly number[] = headShape, shards = 3) =>
  writeFolder(
    {
      ...tiedModel,
      config: { ...tiedModel.config, tie_word_embeddings: isTied },
      shapes: { ...tiedModel.shapes, "lm_head.weight": shape },
    },
    { shards },
  );

const computeLogits = async (folder: string): Promise<readonly ArrayLike<number>[]> =>
  onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder);
    using x = fromArray(ctx, tokens.values.slice(0, 9), [1, 9]);
    using logits = noGrad(() => model.forward(x));
    return logits.read();
  });

beforeEach(() => void vi.spyOn(process, "emitWarning").mockImplementation(() => {}));
afterEach(() => void vi.restoreAllMocks());

test.each([1, 3])("a stored head that differs from the embedding is used, with a warning: %i files", async (shards) => {
  await using tied = await writeModel(true, headShape, shards);
  await using untied = await writeModel(false, headShape, shards);
  await using withoutHead = await writeFolder(tiedModel);
  const logits = await computeLogits(tied.path);
  expect(process.emitWarning).toHaveBeenCalledWith(
    expect.stringMatching(/config.json: tie_word_embeddings is true, but .* lm_head.weight that differs/),
    { type: "MosaicWarning", code: "MOSAIC_UNTIED_HEAD" },
  );
  expect(logits).toEqual(await computeLogits(untied.path));
  expect(logits).not.toEqual(await computeLogits(withoutHead.path));
  expect(process.emitWarning).toHaveBeenCalledTimes(1);
});

test("a stored head that differs is a separate parameter on every rank, and is saved and loaded again", async () => {
  await using folder = await writeModel(true);
  const saved = join(folder.path, "saved");
  const ring = arrangements[0]!;
  await onRanks(ring, async (ctx) => {
    using model = await loadModel(ctx, folder.path, loadOptions(ring));
    expect(model.config.isTied).toBe(false);
    expect([...model.namedParameters()].map(([name]) => name)).toContain("lm_head.weight");
    await model.save(saved);
  });
  expect(JSON.parse(await readFile(join(saved, "config.json"), "utf8"))).toMatchObject({ tie_word_embeddings: false });
  const { tensors } = await readSafetensors(join(saved, "model.safetensors"));
  expect((tensors.get("lm_head.weight") as HostTensor).values).toEqual(
    generateWeight("lm_head.weight", headShape, false),
  );
  expect(await computeLogits(saved)).toEqual(await computeLogits(folder.path));
});

test("a stored head that equals the embedding is tied", async () => {
  await using folder = await writeFolder(tiedModel, { shards: 1 });
  const logits = await computeLogits(folder.path);
  const weights = generateWeights(tiedModel);
  const embedding = weights.get("model.embed_tokens.weight")!;
  await writeSafetensors(
    join(folder.path, "model.safetensors"),
    new Map([...weights, ["lm_head.weight", { ...embedding, dtype: "bfloat16" }]]),
    { format: "pt" },
  );
  await onRanks(oneRank, async (ctx) => {
    using model = await loadModel(ctx, folder.path);
    expect(model.config.isTied).toBe(true);
    expect([...model.namedParameters()].map(([name]) => name)).not.toContain("lm_head.weight");
  });
  expect(await computeLogits(folder.path)).toEqual(logits);
  expect(process.emitWarning).not.toHaveBeenCalled();
});

test("a stored head of another shape is rejected", async () => {
  await using folder = await writeModel(true, [63, 48]);
  await expect(computeLogits(folder.path)).rejects.toThrow(
    /"lm_head.weight" has shape \[63,48\] instead of \[64,48\]; .*nothing was loaded/,
  );
});
