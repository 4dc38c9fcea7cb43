import { check, checkClose, perturbContext, magnitude, runOnWorld, poisonMemory } from "@mosaic/conformance";
import { contiguous, type Mask, masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { expectedStep } from "./reference/step.ts";
import { createChunks, assembleShards } from "./chunked-shape.ts";
import { type RankResult, runStep, type Trial } from "./step.ts";
import { makeWorld } from "../../../vitest.world.ts";

/** Creates a mask in which every query attends to every key except its own. */
const createOthersMask = (n: number): Mask =>
  masks.fromSlices([
    { q0: 1, q1: n, k0: 0, k1: n - 1, type: "causal" },
    { q0: 0, q1: n - 1, k0: 1, k1: n, type: "inverseCausal" },
  ]);

const smallOptions = { embedDim: 4, numHeads: 2, summaryDim: 4, metaHeads: 2 } as const;

interface Row {
  readonly name: string;
  readonly ranks: number;
  readonly trial: Omit<Trial, "seed">;
}

const trials: Row[] = [
  {
    name: "soft, 2 of 4 chunks, unequal, 4 ranks",
    ranks: 4,
    trial: { options: { ...smallOptions, topK: 2 }, batch: 2, length: 9 },
  },
  {
    name: "exact, 1 of 4 chunks, 2 ranks of 2",
    ranks: 2,
    trial: { options: { ...smallOptions, topK: 1, combine: "exact", chunksPerRank: 2 }, batch: 2, length: 9 },
  },
  {
    name: "exact, causal, losses, 3 ranks",
    ranks: 3,
    trial: {
      options: { ...smallOptions, topK: 2, combine: "exact", causal: true },
      batch: 1,
      length: 10,
      losses: [0.5, -0.7, 2],
    },
  },
  {
    name: "soft, causal, losses, kept by recomputing, 2 ranks of 2",
    ranks: 2,
    trial: {
      options: { ...smallOptions, topK: 2, causal: true, chunksPerRank: 2, useCheckpoint: true },
      batch: 1,
      length: 10,
      losses: [0.5, -0.7, 2],
    },
  },
  {
    name: "soft, grouped heads of another size, scale, striped, losses, 3 ranks",
    ranks: 3,
    trial: {
      options: {
        ...smallOptions,
        numHeads: 4,
        numKvHeads: 2,
        headDim: 2,
        scale: 1.25,
        summaryHeads: 1,
        placement: "striped",
        topK: 1,
      },
      batch: 1,
      length: 11,
      losses: [0.5, 0.3, 1],
    },
  },
  {
    name: "exact, causal, zigzag, one KV head, losses, 2 ranks of 2",
    ranks: 2,
    trial: {
      options: {
        ...smallOptions,
        numKvHeads: 1,
        combine: "exact",
        placement: "zigzag",
        causal: true,
        chunksPerRank: 2,
        topK: 2,
      },
      batch: 1,
      length: 9,
      losses: [0.5, -0.7, 2],
    },
  },
  {
    name: "soft, causal window, zigzag, recomputed, 3 ranks of 2",
    ranks: 3,
    trial: {
      options: {
        ...smallOptions,
        mask: masks.slidingWindow(4),
        placement: "zigzag",
        chunksPerRank: 2,
        topK: 2,
        useCheckpoint: true,
      },
      batch: 1,
      length: 13,
      losses: [0.5, 0.5, 1],
    },
  },
  {
    name: "exact, documents, a token without visible keys, losses, 4 ranks of which one is empty and one has a chunk less",
    ranks: 4,
    trial: {
      options: {
        ...smallOptions,
        combine: "exact",
        mask: masks.fromSlices([
          { q0: 0, q1: 4, k0: 0, k1: 4, type: "full" },
          { q0: 5, q1: 10, k0: 4, k1: 10, type: "full" },
        ]),
        topK: 1,
        chunksPerRank: 2,
        placement: contiguous([4, 0, 1, 5]),
      },
      batch: 1,
      length: 10,
      losses: [0.5, 0.5, 1],
    },
  },
  {
    name: "exact, more chunks until every row has at least half, scale, 2 ranks of 2",
    ranks: 2,
    trial: {
      options: { ...smallOptions, combine: "exact", topK: 1, chunksPerRank: 2, scale: 0.25, maxMissedMass: 0.5 },
      batch: 1,
      length: 9,
      losses: [0.5, 0.5, 1],
    },
  },
  {
    name: "soft, no token attends to itself, a chunk of one token, 2 ranks of 2",
    ranks: 2,
    trial: { options: { ...smallOptions, mask: createOthersMask(7), topK: 2, chunksPerRank: 2 }, batch: 1, length: 7 },
  },
  {
    name: "exact, no gate, no bias, recomputed, 1 rank of 4",
    ranks: 1,
    trial: {
      options: {
        ...smallOptions,
        topK: 2,
        combine: "exact",
        gate: false,
        bias: false,
        chunksPerRank: 4,
        useCheckpoint: true,
      },
      batch: 1,
      length: 8,
      losses: [0, 0, 1],
      pool: "mean",
    },
  },
];

test.each(trials.map((row) => [row.name, row] as const))(
  "%s: outputs, gradients and loss match the float64 reference",
  async (_, { ranks, trial: trialOptions }) => {
    const trial = { ...trialOptions, seed: 3 };
    // Memory is filled with NaN, and messages arrive in perturbed order.
    const results = await runOnWorld(makeWorld, { size: ranks, wrapDevice: poisonMemory }, async (ctx) => {
      const rank = perturbContext(ctx, { completion: ranks % 2 === 0 ? "late" : "soon", seed: 7 });
      const result = await runStep(rank, trial);
      check(
        rank.numInFlight() === 0,
        `rank ${ctx.rank}: expected 0 collectives in flight, received ${rank.numInFlight()}; call wait() on each`,
      );
      return result;
    });
    const [firstResult] = results as [RankResult];
    const chunks = createChunks(trial, ranks).map(({ tokens }) => tokens);
    const expected = expectedStep(trial, { chunks, parameters: firstResult.parameters, chosen: firstResult.chosen });
    const assemble = (name: "out" | "dx") =>
      assembleShards(
        results.map((rank) => ({ ...rank, values: rank[name] })),
        trial,
      );
    const expectClose = (actual: ArrayLike<number>, expectedValues: Float64Array, quantity: string) =>
      checkClose(actual, expectedValues, 2e-5 * Math.max(0.1, magnitude(expectedValues)), quantity);
    expectClose(assemble("out"), expected.out, "out");
    expectClose(assemble("dx"), expected.dx, "dx");
    expect(Object.keys(firstResult.gradients)).toEqual(Object.keys(expected.gradients));
    for (const [name, expectedGradient] of Object.entries(expected.gradients)) {
      for (const { gradients } of results) expectClose(gradients[name]!, expectedGradient, name);
      expect(magnitude(expectedGradient), name).toBeGreaterThan(0);
    }
    const loss = results.reduce((sum, rank) => sum + rank.loss, 0);
    expect(Math.abs(loss - expected.loss)).toBeLessThan(1e-4 * Math.max(1, Math.abs(expected.loss)));
  },
);
