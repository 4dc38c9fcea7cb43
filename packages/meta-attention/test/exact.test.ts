import {
  checkClose,
  checkMeasurements,
  perturbContext,
  computeErrorSum,
  measureMagnitude,
  type Measurement,
  moduleOracle,
  normals,
  runOnWorld,
  poisonMemory,
  slicesToMaskMod,
} from "@mosaic/conformance";
import { fromArray, masks, MultiAxisAttention, type Placement, shard } from "@mosaic/core";
import { RotaryEmbedding } from "@mosaic/nn";
import { expect, test } from "vitest";
import { HierarchicalMetaAttention } from "../src/index.ts";
import { assembleShards } from "./chunked-shape.ts";
import { createInput, type RankResult, runStep, type Trial, createUpstream } from "./step.ts";
import { makeWorld } from "../../../vitest.world.ts";

const names = ["qkv_proj.weight", "qkv_proj.bias", "out_proj.weight", "out_proj.bias"] as const;
const sizes = {
  embedDim: 32,
  numHeads: 4,
  summaryDim: 8,
  metaHeads: 2,
  gate: false,
  combine: "exact",
  topK: "all",
} as const;

/** Computes full attention with the kernel of one device, and in float64. */
async function runFullAttention(trial: Trial) {
  const { batch, length, options } = trial;
  const { embedDim: embed, numHeads, numKvHeads = numHeads, headDim = embed / numHeads } = options;
  const { dtype = "float32", mask = options.causal ? masks.causal() : masks.full() } = options;
  const shape = [batch, length, embed];
  const [actual] = await runOnWorld(makeWorld, { size: 1 }, async (ctx) => {
    const sharedOptions = { embedDim: embed, numHeads, numKvHeads, headDim, mask, dtype };
    using module = new MultiAxisAttention(ctx, { ...sharedOptions, attentionAxis: 1 });
    using x = fromArray(ctx, createInput(trial), shape, { dtype });
    using dOut = fromArray(ctx, createUpstream(trial), shape, { dtype });
    x.requiresGrad = true;
    using out = module.forward(x);
    out.backward(dOut);
    const entries = module.namedParameters();
    const readParameters = async (tensorKind: "value" | "gradient") =>
      Object.fromEntries(
        await Promise.all(
          entries.map(
            async ([name, parameter]) =>
              [name, await (tensorKind === "value" ? parameter : parameter.grad!).read()] as const,
          ),
        ),
      );
    const [parameters, gradients] = [await readParameters("value"), await readParameters("gradient")];
    return { out: await out.read(), dx: await x.grad!.read(), parameters, gradients };
  });
  const parameters = Object.fromEntries(names.map((name) => [name, Float64Array.from(actual!.parameters[name]!)]));
  const reference = moduleOracle({
    sizes: { batch, length, embed, numHeads, numKvHeads, headDim },
    maskMod: slicesToMaskMod(mask.slices(length, length)),
    parameters: parameters as unknown as Parameters<typeof moduleOracle>[0]["parameters"],
    x: createInput(trial),
    dOut: createUpstream(trial),
  });
  return { found: actual!, right: reference };
}

/** Measures the errors of all ranks of the trial against float64, and those of the kernel of one device. */
function measureErrors(
  trial: Trial,
  ranks: readonly RankResult[],
  full: Awaited<ReturnType<typeof runFullAttention>>,
): Measurement {
  const { found, right } = full;
  const { dtype = "float32" } = trial.options;
  const assemble = (name: "out" | "dx") =>
    assembleShards(
      ranks.map((rank) => ({ ...rank, values: rank[name] })),
      trial,
    );
  const result = (routedResult: ArrayLike<number>, fullResult: ArrayLike<number>, expected: Float64Array) => ({
    measuredError: computeErrorSum(routedResult, expected),
    localError: computeErrorSum(fullResult, expected),
    expected: measureMagnitude(expected),
  });
  // Gradients of parameters are summed over ranks, each of which stores its partial sum in the dtype.
  const gradientErrors = (name: (typeof names)[number]) => ({
    ...result(ranks[0]!.gradients[name]!, found.gradients[name]!, right.gradients[name]),
    partialSumDtype: dtype,
  });
  return {
    trial: JSON.stringify(trial.options),
    lse: right.lse * Math.sqrt(ranks.length),
    results: {
      out: result(assemble("out"), found.out, right.out),
      dx: result(assemble("dx"), found.dx, right.dx),
      ...Object.fromEntries(names.map((name) => [name, gradientErrors(name)])),
    },
  };
}

type World = readonly [name: string, ranks: number, length: number, options: Partial<Trial["options"]>];

/** Shards of increasing length. The first is empty. */
const growingPlacement: Placement = {
  name: "growing",
  spans(index, count, length) {
    const boundaryAt = (i: number) => Math.floor(length * (i / count) ** 2);
    return [{ start: boundaryAt(index), length: boundaryAt(index + 1) - boundaryAt(index), step: 1 }];
  },
};
/** No query attends to its own position, so a token that is alone in its chunk attends to no key of the chunk. */
const irregularMask = masks.fromSlices([
  { q0: 1, q1: 12, k0: 0, k1: 11, type: "causal" },
  { q0: 0, q1: 11, k0: 1, k1: 12, type: "inverseCausal" },
]);
const bfloat16 = { dtype: "bfloat16" } as const;
const float16 = { dtype: "float16" } as const;
const groupedOptions = { numKvHeads: 2 };

const worlds: readonly World[] = [
  ["1 rank", 1, 40, { chunksPerRank: 5 }],
  ["1 rank, one KV head, float16", 1, 40, { chunksPerRank: 3, numKvHeads: 1, ...float16 }],
  ["2 ranks", 2, 40, {}],
  ["2 ranks, zigzag, causal, bfloat16", 2, 44, { placement: "zigzag", chunksPerRank: 2, causal: true, ...bfloat16 }],
  ["3 ranks, causal, grouped", 3, 47, { chunksPerRank: 2, causal: true, ...groupedOptions }],
  ["3 ranks, window, grouped, bfloat16", 3, 47, { mask: masks.slidingWindow(9), ...groupedOptions, ...bfloat16 }],
  ["3 ranks, shards of growing length, the first empty", 3, 20, { placement: growingPlacement, chunksPerRank: 2 }],
  ["2 ranks and one token", 2, 1, {}],
  ["4 ranks", 4, 41, {}],
  [
    "4 ranks, striped, larger heads, float16",
    4,
    41,
    { placement: "striped", headDim: 12, ...groupedOptions, ...float16 },
  ],
  ["4 ranks of 3 tokens, no token attends to itself", 4, 12, { mask: irregularMask, chunksPerRank: 3 }],
  ["5 ranks, causal, bfloat16", 5, 43, { causal: true, ...bfloat16 }],
  ["5 ranks, 7 tokens, zigzag, causal", 5, 7, { placement: "zigzag", chunksPerRank: 2, causal: true }],
  ["6 ranks, zigzag, chunks of two spans, documents", 6, 45, { placement: "zigzag", mask: masks.documents([20, 25]) }],
  [
    "7 ranks, zigzag, causal, grouped",
    7,
    61,
    { placement: "zigzag", chunksPerRank: 4, causal: true, ...groupedOptions },
  ],
  ["8 ranks", 8, 64, {}],
  ["8 ranks, 5 tokens, causal", 8, 5, { causal: true }],
  ["8 ranks, striped, 11 tokens, two chunks each", 8, 11, { placement: "striped", chunksPerRank: 2, ...bfloat16 }],
];

test.each(worlds)(
  "attention to all chunks equals full attention within twice the local error, forward and backward: %s",
  async (_, ranks, length, worldOptions) => {
    for (const useCheckpoint of [false, true]) {
      const trial: Trial = { options: { ...sizes, ...worldOptions, useCheckpoint }, batch: 2, length, seed: 5 };
      // Memory is filled with NaN, and messages arrive in perturbed order.
      const results = await runOnWorld(makeWorld, { size: ranks, wrapDevice: poisonMemory }, (ctx) =>
        runStep(perturbContext(ctx, { completion: ranks % 2 === 0 ? "late" : "soon", seed: 7 }), trial),
      );
      const full = await runFullAttention(trial);
      for (const name of names) expect(results[0]!.parameters[name]).toEqual(full.found.parameters[name]);
      checkMeasurements("HierarchicalMetaAttention", [measureErrors(trial, results, full)]);
      for (const { missed } of results) for (const mass of missed!) expect(mass).toBe(0);
    }
  },
);

test("rotary embeddings use global positions: 3 ranks compute the same result as one rank", async () => {
  const options = { ...sizes, numKvHeads: 2, causal: true, placement: "zigzag", chunksPerRank: 2 } as const;
  const trial: Trial = { options, batch: 2, length: 41, seed: 8 };
  const shape = [2, 41, 32];
  const { embedDim, numHeads, numKvHeads } = options;
  const [oneRankResult] = await runOnWorld(makeWorld, { size: 1 }, async (ctx) => {
    using positions = new RotaryEmbedding(8);
    const sharedOptions = { embedDim, numHeads, numKvHeads, causal: true, attentionAxis: 1, positions };
    using module = new MultiAxisAttention(ctx, sharedOptions);
    using x = fromArray(ctx, createInput(trial), shape);
    using dOut = fromArray(ctx, createUpstream(trial), shape);
    x.requiresGrad = true;
    using out = module.forward(x);
    out.backward(dOut);
    using dx = x.grad!;
    return { out: await out.read(), dx: await dx.read() };
  });
  for (const useCheckpoint of [false, true]) {
    const threeRankResults = await runOnWorld(makeWorld, { size: 3 }, async (ctx) => {
      using positions = new RotaryEmbedding(8);
      return await runStep(ctx, { ...trial, options: { ...options, useCheckpoint, positions } });
    });
    for (const name of ["out", "dx"] as const) {
      const assembled = assembleShards(
        threeRankResults.map((rank) => ({ ...rank, values: rank[name] })),
        trial,
      );
      checkClose(assembled, oneRankResult![name], 2e-5, name);
    }
  }
});

test("a fully open gate returns the same result as no gate", async () => {
  const shape = [1, 24, 32];
  const values = normals(24 * 32, 4);
  const runWithGate = async (gate: boolean) =>
    runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
      using module = new HierarchicalMetaAttention(ctx, { ...sizes, gate });
      if (module.gateProjection) {
        ctx.device.kernels.fill(module.gateProjection.weight, 0);
        ctx.device.kernels.fill(module.gateProjection.bias!, 100);
      }
      using fullInput = fromArray(ctx, values, shape);
      using x = shard(ctx, fullInput, 1);
      using result = await module.forward(x);
      return { out: await result.out.read(), gate: await result.meta.gateValues?.read() };
    });
  const [gatedResults, ungatedResults] = [await runWithGate(true), await runWithGate(false)];
  for (const [rank, { out, gate }] of gatedResults.entries()) {
    expect(Math.min(...gate!)).toBe(1);
    checkClose(out, ungatedResults[rank]!.out, 1e-6, `rank ${rank}`);
  }
});

test("the order of the tokens in a remote chunk does not change the output", async () => {
  const length = 40;
  const width = 32;
  const x = normals(length * width, 1);
  const shuffledX = Float64Array.from(x);
  // Reverses the tokens of chunk 2, which are 20 to 29.
  for (let token = 20; token < 30; token++)
    shuffledX.set(x.subarray(token * width, (token + 1) * width), (49 - token) * width);
  for (const combine of ["soft", "exact"] as const) {
    const options = { ...sizes, gate: true, combine, topK: 2 };
    const runOnInput = async (values: Float64Array) => {
      const trial: Trial = { options, batch: 1, length, seed: 5, x: values };
      return runOnWorld(makeWorld, { size: 4 }, (ctx) => runStep(ctx, trial));
    };
    const [originalResults, shuffledResults] = [await runOnInput(x), await runOnInput(shuffledX)];
    expect(originalResults[0]!.chosen.flat(2)).toContain(2);
    expect(shuffledResults[0]!.chosen).toEqual(originalResults[0]!.chosen);
    for (const rank of [0, 1, 3])
      checkClose(shuffledResults[rank]!.out, originalResults[rank]!.out, 2e-6, `${combine}, rank ${rank}`);
  }
});

test("under a causal mask, a changed token does not change the outputs of earlier tokens", async () => {
  const width = 32;
  const length = 36;
  for (const combine of ["soft", "exact"] as const) {
    for (const token of [13, 18, 25]) {
      const x = normals(length * width, 2);
      const changedX = Float64Array.from(x, (value, i) => (Math.floor(i / width) === token ? -3 * value : value));
      const options = { ...sizes, gate: true, combine, topK: 1, causal: true };
      const runOnInput = async (values: Float64Array) => {
        const trial: Trial = { options, batch: 1, length, seed: 5, x: values };
        const ranks = await runOnWorld(makeWorld, { size: 4 }, (ctx) => runStep(ctx, trial));
        return {
          ranks,
          out: assembleShards(
            ranks.map((rank) => ({ ...rank, values: rank.out })),
            trial,
          ),
        };
      };
      const [originalResults, changedResults] = [await runOnInput(x), await runOnInput(changedX)];
      for (const [i, chunks] of changedResults.ranks[0]!.chosen[0]!.entries())
        for (const j of chunks) expect(j).toBeLessThan(i);
      checkClose(
        changedResults.out.subarray(0, token * width),
        originalResults.out.subarray(0, token * width),
        1e-6,
        `token ${token}`,
      );
      expect(changedResults.out.at(token * width)).not.toBe(originalResults.out.at(token * width));
    }
  }
});

test("the same four chunks on 1, 2 or 4 ranks give the same output and gradients", async () => {
  const runOnRanks = async (ranks: number) => {
    const options = { ...sizes, gate: true, combine: "soft", topK: 2, chunksPerRank: 4 / ranks } as const;
    const trial: Trial = { options, batch: 2, length: 40, seed: 9, losses: [0.1, 0.1, 0.1] };
    const results = await runOnWorld(makeWorld, { size: ranks }, (ctx) => runStep(ctx, trial));
    return {
      results,
      out: assembleShards(
        results.map((rank) => ({ ...rank, values: rank.out })),
        trial,
      ),
    };
  };
  const oneRankResult = await runOnRanks(1);
  for (const ranks of [2, 4]) {
    const manyRankResult = await runOnRanks(ranks);
    expect(manyRankResult.results[0]!.chosen).toEqual(oneRankResult.results[0]!.chosen);
    checkClose(manyRankResult.out, oneRankResult.out, 2e-6, `${ranks} ranks: out`);
    for (const [name, expectedGradient] of Object.entries(oneRankResult.results[0]!.gradients)) {
      checkClose(
        manyRankResult.results[0]!.gradients[name]!,
        expectedGradient,
        1e-4 * Math.max(1, ...expectedGradient.map(Math.abs)),
        `${ranks} ranks: ${name}`,
      );
    }
  }
});
