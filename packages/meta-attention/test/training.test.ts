import { runOnWorld } from "@mosaic/conformance";
import { type Context, randn, reduceGradients, shard, type Tensor } from "@mosaic/core";
import { AdamW } from "@mosaic/nn";
import { expect, test } from "vitest";
import {
  type ChosenChunks,
  denseToSparse,
  entropyLoss,
  HierarchicalMetaAttention,
  type HierarchicalMetaAttentionOptions,
  loadBalanceLoss,
  massLoss,
  type MetaForwardOptions,
} from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

const sizes = { embedDim: 8, numHeads: 2, summaryDim: 8, metaHeads: 2 } as const;

/** Returns the choices of several calls, which must be the same on every rank. */
async function runForwardCalls(
  ranks: number,
  options: Partial<HierarchicalMetaAttentionOptions>,
  calls: readonly (MetaForwardOptions & { readonly training?: boolean })[],
): Promise<{ chosen: ChosenChunks; topK: number }[]> {
  const results = await runOnWorld(makeWorld, { size: ranks }, async (ctx) => {
    using module = new HierarchicalMetaAttention(ctx, { ...sizes, chunksPerRank: 8 / ranks, ...options });
    using fullInput = randn(ctx, [2, 32, 8], { seed: 5, stream: 0 });
    using x = shard(ctx, fullInput, 1);
    const routings: { chosen: ChosenChunks; topK: number }[] = [];
    for (const { training = true, ...call } of calls) {
      module.train(training);
      using result = await module.forward(x, call);
      routings.push({ chosen: result.meta.chosen, topK: result.meta.topK });
    }
    return routings;
  });
  for (const rank of results) expect(rank).toEqual(results[0]);
  return results[0]!;
}

test("a warm-up reduces topK from all chunks to its final value, in training only", async () => {
  const calls = [{}, {}, {}, {}, { step: 1 }, { training: false }, { step: 1000 }];
  const routings = await runForwardCalls(2, { topK: 1, warmupSteps: 3 }, calls);
  expect(routings.map(({ topK }) => topK)).toEqual([7, 5, 3, 1, 5, 1, 1]);
  for (const { chosen, topK } of routings) for (const list of chosen.flat()) expect(list.length).toBe(topK);
  expect(denseToSparse(0, { topK: 2, chunks: 4, steps: 0 })).toBe(2);
  expect(denseToSparse(3, { topK: 0, chunks: 1, steps: 10 })).toBe(0);
  expect(() => denseToSparse(0, { topK: 0, chunks: 0, steps: 10 })).toThrow(
    "denseToSparse: chunks: expected an integer ≥ 1, received 0",
  );
  expect(() => denseToSparse(0, { topK: 4, chunks: 4, steps: 10 })).toThrow(
    "denseToSparse: expected topK from 0 to 3, the number of other chunks, received 4",
  );
});

test("routing noise depends only on the seed and the step, and is applied in training only", async () => {
  const calls = [{ step: 0 }, { step: 1 }, { step: 0 }, { training: false, step: 0 }];
  const noisyRoutings = await runForwardCalls(1, { topK: 2, routingNoise: 2 }, calls);
  const noiselessRoutings = await runForwardCalls(1, { topK: 2 }, calls);
  expect(noisyRoutings[0]).toEqual(noisyRoutings[2]);
  expect(noisyRoutings[0]).not.toEqual(noisyRoutings[1]);
  expect(noisyRoutings[3]).toEqual(noiselessRoutings[0]);
  expect(noisyRoutings[0]).not.toEqual(noiselessRoutings[0]);
  for (const ranks of [2, 8])
    expect(await runForwardCalls(ranks, { topK: 2, routingNoise: 2 }, calls)).toEqual(noisyRoutings);
});

test("the losses of a single chunk, which has no other chunk, are 0", async () => {
  await runOnWorld(makeWorld, { size: 1 }, async (ctx) => {
    using module = new HierarchicalMetaAttention(ctx, { ...sizes, chunksPerRank: 1 });
    using x = randn(ctx, [2, 32, 8], { seed: 5, stream: 0 });
    using result = await module.forward(x);
    for (const computeLoss of [loadBalanceLoss, entropyLoss, massLoss]) {
      using loss = computeLoss(result.meta);
      expect(await loss.item()).toBeCloseTo(0, 12);
    }
  });
});

/**
 * Returns the fraction of query chunks for which the other chunk with the highest routing weight also has the most
 * attention.
 */
async function computeRecall(ctx: Context, module: HierarchicalMetaAttention, x: Tensor): Promise<number> {
  using result = await module.eval().forward(x);
  module.train();
  const [routing, mass] = [await result.meta.routingWeights.read(), await result.meta.attentionMass.read()];
  const n = module.chunks;
  const argmaxOther = (values: Float32Array, row: number): number => {
    const otherValues = Array.from(values.subarray(row * n, row * n + n), (value, j) => (j === row % n ? -1 : value));
    return otherValues.indexOf(Math.max(...otherValues));
  };
  const rows = Array.from({ length: routing.length / n }, (_, row) => row);
  expect(ctx.size).toBe(1);
  return rows.filter((row) => argmaxOther(routing, row) === argmaxOther(mass, row)).length / rows.length;
}

test("the mass loss trains the router to prefer the chunk with the most attention", async () => {
  await runOnWorld(makeWorld, { size: 1 }, async (ctx) => {
    const options = { ...sizes, topK: "all", combine: "exact", chunksPerRank: 6, scale: 4 } as const;
    using module = new HierarchicalMetaAttention(ctx, options);
    using optimizer = new AdamW(module, { lr: 0.02, weightDecay: 0 });
    using x = randn(ctx, [2, 36, 8], { seed: 1, stream: 0 });
    const recallBefore = await computeRecall(ctx, module, x);
    for (let step = 0; step < 120; step++) {
      using result = await module.forward(x);
      using loss = massLoss(result.meta, { pool: "mean" });
      loss.backward();
      reduceGradients(ctx, module);
      optimizer.step();
      module.zeroGrad();
    }
    const recallAfter = await computeRecall(ctx, module, x);
    expect(recallBefore).toBeLessThan(0.6);
    expect(recallAfter).toBeGreaterThan(0.85);
  });
});

test("the load-balance loss sums to 1 over ranks if all chunks are chosen equally often", async () => {
  const rankResults = await runOnWorld(makeWorld, { size: 4 }, async (ctx) => {
    using module = new HierarchicalMetaAttention(ctx, { ...sizes, topK: "all" });
    using x = randn(ctx, [3, 5, 8]);
    using result = await module.forward(x);
    using loss = loadBalanceLoss(result.meta);
    return loss.item();
  });
  expect(rankResults.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 5);
});
