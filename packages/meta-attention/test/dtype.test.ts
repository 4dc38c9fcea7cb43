import {
  checkMeasurements,
  perturbContext,
  computeErrorSum,
  measureMagnitude,
  runOnWorld,
  poisonMemory,
} from "@mosaic/conformance";
import { randn } from "@mosaic/core";
import { expect, test } from "vitest";
import { HierarchicalMetaAttention } from "../src/index.ts";
import { createChunks, assembleShards } from "./chunked-shape.ts";
import { expectedStep } from "./reference/step.ts";
import { type RankResult, runStep, type Trial } from "./step.ts";
import { makeWorld } from "../../../vitest.world.ts";

const smallOptions = { embedDim: 4, numHeads: 2, summaryDim: 4, metaHeads: 2, topK: 1 } as const;

/** Creates a trial with the same three chunks on any number of ranks. */
function createTrial(ranks: number, options: Pick<Trial["options"], "combine" | "dtype" | "useCheckpoint">): Trial {
  return {
    options: { ...smallOptions, ...options, chunksPerRank: 3 / ranks },
    batch: 1,
    length: 12,
    seed: 3,
    losses: [0.5, 0.5, 1],
  };
}

async function runTrial(ranks: number, options: Parameters<typeof createTrial>[1]): Promise<readonly RankResult[]> {
  return runOnWorld(makeWorld, { size: ranks, wrapDevice: poisonMemory }, (ctx) =>
    runStep(perturbContext(ctx, { completion: "late", seed: 7 }), createTrial(ranks, options)),
  );
}

test.each([
  { dtype: "bfloat16", combine: "exact" },
  { dtype: "bfloat16", combine: "soft" },
  { dtype: "float16", combine: "exact", useCheckpoint: true },
  { dtype: "float16", combine: "soft" },
] as const)("%j: the error on three ranks is at most twice that on one rank", async (options) => {
  const { dtype } = options;
  const trial = createTrial(3, options);
  const [oneRankResults, threeRankResults] = [await runTrial(1, options), await runTrial(3, options)];
  const [firstResult] = oneRankResults as [RankResult];
  for (const { chosen } of threeRankResults) expect(chosen).toEqual(firstResult.chosen);
  const chunks = createChunks(trial, 3).map(({ tokens }) => tokens);
  const right = expectedStep(trial, { chunks, parameters: firstResult.parameters, chosen: firstResult.chosen });
  const assemble = (ranks: readonly RankResult[], name: "out" | "dx") =>
    assembleShards(
      ranks.map((rank) => ({ ...rank, values: rank[name] })),
      trial,
    );
  const rows = (["out", "dx"] as const).map((name) => [
    name,
    {
      measuredError: computeErrorSum(assemble(threeRankResults, name), right[name]),
      localError: computeErrorSum(assemble(oneRankResults, name), right[name]),
      expected: measureMagnitude(right[name]),
    },
  ]);
  const gradients = Object.entries(right.gradients).map(([name, expected]) => [
    name,
    {
      measuredError: computeErrorSum(threeRankResults[0]!.gradients[name]!, expected),
      localError: computeErrorSum(firstResult.gradients[name]!, expected),
      expected: measureMagnitude(expected),
      partialSumDtype: dtype,
    },
  ]);
  const results = Object.fromEntries([...rows, ...gradients]);
  checkMeasurements("HierarchicalMetaAttention", [{ trial: JSON.stringify(options), lse: 3, results }]);
});

test("projections and outputs have the dtype of the module, and the router's values are float32", async () => {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    using module = new HierarchicalMetaAttention(ctx, { ...smallOptions, dtype: "bfloat16" });
    for (const [name, { dtype }] of module.namedParameters()) {
      expect(dtype, name).toBe(/^(summary|meta)\./.test(name) ? "float32" : "bfloat16");
    }
    using x = randn(ctx, [1, 6, 4], { dtype: "bfloat16" });
    x.requiresGrad = true;
    using result = await module.forward(x);
    const { out, meta } = result;
    expect(out.dtype).toBe("bfloat16");
    for (const tensor of [meta.routingWeights, meta.attentionMass, meta.certificate!.missedMass]) {
      expect(tensor.dtype).toBe("float32");
    }
    using dOut = randn(ctx, [1, 6, 4], { dtype: "bfloat16" });
    out.backward(dOut);
    using dx = x.grad!;
    expect(dx.dtype).toBe("bfloat16");
  });
});
