import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ring } from "@mosaic/backend-ring";
import { type Context, type Coordinate, fromArray, reduceGradients, scope, shard } from "@mosaic/core";
import { AdamW, fullyShard, type FullyShardOptions, linearCrossEntropy } from "@mosaic/nn";
import { expect, test } from "vitest";
import { type CausalLM, createModel, GenerationBatch } from "../src/index.ts";
import { onRanks } from "./reference/arrangements.ts";

type Stage = NonNullable<FullyShardOptions["stage"]>;

const [vocabulary, length] = [40, 12];
const config = {
  model_type: "qwen2",
  ...{ vocab_size: vocabulary, hidden_size: 32, intermediate_size: 48 },
  ...{ num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2 },
};

/** Trains with the fused loss, without a call of the model's own forward. Returns the losses. */
async function train(ctx: Context, model: CausalLM): Promise<number[]> {
  using optimizer = new AdamW(model, { lr: 0.01 });
  const { dp, dp_replicate: replica, dp_shard: shardIndex } = ctx.mesh.coordinate;
  const sample = dp ?? 2 * replica! + shardIndex!;
  const losses: number[] = [];
  for (let step = 0; step < 3; step++) {
    const makeRow = (first: number): number[] =>
      Array.from({ length }, (_, i) => (7 * sample + (first + i) ** 2) % vocabulary);
    using loss = scope(() => {
      const [tokens, targets] = [0, 1].map((first) => shard(ctx, fromArray(ctx, makeRow(first), [1, length]), 1));
      return linearCrossEntropy(ctx, model.decoder.forward(tokens!), model.head, targets!);
    });
    loss.backward();
    reduceGradients(ctx, model);
    optimizer.step();
    optimizer.zeroGrad();
    losses.push(await loss.item());
  }
  return losses;
}

const isGathered = (model: CausalLM): boolean[] => model.parameters().map((parameter) => !parameter.storage.isReleased);

async function generate(model: CausalLM): Promise<number[]> {
  const tokens: number[] = [];
  const sampling = { doSample: true, temperature: 1.5, seed: 5 };
  for await (const { token } of model.generate({ tokens: [1, 2, 3], maxNewTokens: 6, eosTokenIds: [], ...sampling }))
    tokens.push(token);
  return tokens;
}

async function generateBatch(model: CausalLM): Promise<number[]> {
  using batch = new GenerationBatch(model, { maxTokens: 256 });
  for (const first of [4, 9]) batch.add({ tokens: [first, 5], maxNewTokens: 4, eosTokenIds: [], doSample: false });
  const tokens: number[] = [];
  while (batch.size > 0) tokens.push(...(await batch.step()).map(({ token }) => token!.token));
  return tokens;
}

/** Runs a new model, sharded unless the stage is 0, and returns the results of rank 0 and the files that it saved. */
async function run(stage: Stage | 0, mesh: Coordinate, isTied: boolean) {
  const folder = await mkdtemp(join(tmpdir(), "mosaic-sharded-"));
  try {
    const [result] = await onRanks({ name: "sharded", mesh }, async (ctx) => {
      const createNew = (): CausalLM => {
        const model = createModel(ctx, { ...config, tie_word_embeddings: isTied }, { backend: ring() });
        const axis = "dp" in mesh ? "dp" : "dp_shard";
        return stage > 0 ? fullyShard(ctx, model, { stage: stage as Stage, axis }) : model;
      };
      // Each use is the first one of a model whose parameters are released.
      using model = createNew();
      const losses = await train(ctx, model);
      if (stage === 3) expect(isGathered(model)).not.toContain(true);
      await model.save(join(folder, "trained"), { maxShardBytes: 10_000 });
      if (stage === 3) expect(isGathered(model)).not.toContain(true);
      const tokens = await generate(model);
      await model.save(join(folder, "gathered"));
      using newModel = createNew();
      return { losses, tokens, batchTokens: await generateBatch(newModel) };
    });
    const files = (await readdir(folder, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());
    const contents = files.map(async ({ parentPath, name }) => {
      const path = join(parentPath, name);
      return [path.slice(folder.length), await readFile(path)] as const;
    });
    return { ...result!, files: new Map(await Promise.all(contents)) };
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Returns the float32 values of a safetensors file. Its header is padded, so they are aligned in a copy. */
function readValues(file: Buffer): Float32Array {
  const bytes = file.subarray(8 + Number(file.readBigUInt64LE()));
  return new Float32Array(Uint8Array.from(bytes).buffer);
}

/** Compares the files that were saved: names, and contents that are equal, or values that differ by rounding. */
function expectEqualFiles(actual: ReadonlyMap<string, Buffer>, expected: typeof actual, isExact: boolean): void {
  expect([...actual.keys()].sort()).toEqual([...expected.keys()].sort());
  for (const [name, file] of actual) {
    const expectedFile = expected.get(name)!;
    if (isExact || !name.endsWith(".safetensors")) expect(file.equals(expectedFile), name).toBe(true);
    else {
      const expectedValues = readValues(expectedFile);
      const differences = readValues(file).map((value, i) => Math.abs(value - expectedValues[i]!));
      expect(Math.max(...differences), name).toBeLessThan(1e-4);
    }
  }
}

// Along one axis, gradients are added in the same order with and without sharding. Along two axes, they are not.
test.each([
  { mesh: { dp: 2, sp: 1 }, isTied: true, isExact: true },
  { mesh: { dp: 2, sp: 1 }, isTied: false, isExact: true },
  { mesh: { dp: 2, sp: 2 }, isTied: false, isExact: false },
  { mesh: { dp_replicate: 2, dp_shard: 2, sp: 2 }, isTied: true, isExact: false },
])("a model of any stage trains, generates and saves as without sharding: $mesh, tied: $isTied", async (each) => {
  const { losses, files, ...tokens } = await run(0, each.mesh, each.isTied);
  expect(losses.at(-1)).toBeLessThan(losses[0]!);
  expect(files.size).toBeGreaterThan(6);
  for (const stage of [1, 2, 3] as const) {
    const { losses: shardedLosses, files: shardedFiles, ...shardedTokens } = await run(stage, each.mesh, each.isTied);
    expectEqualFiles(shardedFiles, files, each.isExact);
    if (each.isExact) expect(shardedLosses).toEqual(losses);
    else for (const [i, loss] of losses.entries()) expect(shardedLosses[i]).toBeCloseTo(loss, 5);
    expect(shardedTokens).toEqual(tokens);
  }
});

test("a failed save of a sharded model fails on every rank, and the model can be used afterwards", async () => {
  await onRanks({ name: "sharded", mesh: { dp: 2, sp: 1 } }, async (ctx) => {
    using model = fullyShard(ctx, createModel(ctx, config));
    const error = ctx.rank === 0 ? /ENOTDIR|EEXIST/ : /expected success on every rank, received a failure on rank 0/;
    await expect(model.save("/dev/null/folder", { maxShardBytes: 10_000 })).rejects.toThrow(error);
    expect(await generate(model)).toHaveLength(6);
  });
});
