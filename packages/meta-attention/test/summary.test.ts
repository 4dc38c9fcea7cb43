import { checkClose, runOnWorld } from "@mosaic/conformance";
import { type Context, fromArray, noGrad, randn } from "@mosaic/core";
import fc from "fast-check";
import { expect, test } from "vitest";
import { ChunkSummaryEncoder, MetaAttention } from "../src/index.ts";
import { orderCoefficients } from "../src/encoder.ts";
import { makeWorld } from "../../../vitest.world.ts";

async function runOnSingleRank<T>(body: (ctx: Context) => Promise<T>): Promise<T> {
  const [result] = await runOnWorld(makeWorld, { size: 1 }, body);
  return result!;
}

/** Computes maximum, Gini coefficient (from the mean difference) and top-5 mass, each by its definition. */
function referenceStatistics(weights: readonly number[]): number[] {
  const n = weights.length;
  const sum = weights.reduce((a, b) => a + b, 0);
  const differences = weights.flatMap((a) => weights.map((b) => Math.abs(a - b))).reduce((a, b) => a + b, 0);
  const topWeights = weights.toSorted((a, b) => b - a).slice(0, 5);
  return [Math.max(...weights), differences / (2 * n * sum), topWeights.reduce((a, b) => a + b, 0)];
}

test("order coefficients give the maximum, the Gini coefficient and the top-5 mass of the weights", () => {
  const weights = fc.array(
    fc.oneof(fc.double({ min: 1e-30, max: 1, noNaN: true }), fc.constant(0), fc.constant(0.25)),
    {
      minLength: 1,
      maxLength: 40,
    },
  );
  fc.assert(
    fc.property(weights, (rawWeights) => {
      const total = rawWeights.reduce((a, b) => a + b, 0) || 1;
      const rows = Float32Array.from(rawWeights, (x) => x / total);
      if (rows.every((x) => x === 0)) return;
      const coefficients = orderCoefficients(Float32Array.of(...rows, ...rows.toReversed()), 2);
      for (const [b, row] of [rows, rows.toReversed()].entries()) {
        const actual = [0, 1, 2].map((statisticIndex) =>
          Array.from(row).reduce((sum, x, i) => sum + x * coefficients[(b * row.length + i) * 3 + statisticIndex]!, 0),
        );
        checkClose(actual, referenceStatistics(Array.from(row)), 1e-5, "statistics");
      }
    }),
    { numRuns: 300 },
  );
});

test("orderCoefficients supports more than 2²¹ tokens", () => {
  const n = 2 ** 21 + 3;
  const weights = new Float32Array(n).fill(2 ** -22);
  weights[12345] = 0.5;
  const coefficients = orderCoefficients(weights, 1);
  expect(coefficients[3 * 12345]).toBe(1);
  expect(coefficients[0]).toBe(0);
});

test("a summary depends on the tokens but not on their order", async () => {
  await runOnSingleRank(async (ctx) => {
    using encoder = new ChunkSummaryEncoder(ctx, { embedDim: 8, summaryDim: 6, numHeads: 2 });
    const rows = Array.from({ length: 12 }, (_, i) => Array.from({ length: 8 }, (_, e) => Math.sin(3 * i + e * e)));
    const computeSummary = async (tokens: number[][]) => {
      using x = fromArray(ctx, tokens.flat(), [1, tokens.length, 8]);
      const { summary, weights } = await encoder.forward(x);
      const values = await weights.read();
      expect(values.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 5);
      return summary.read();
    };
    const baseSummary = await computeSummary(rows);
    checkClose(await computeSummary(rows.toReversed()), baseSummary, 1e-5, "reversed");
    const changedSummary = await computeSummary(rows.with(3, new Array<number>(8).fill(2)));
    expect(Math.max(...changedSummary.map((x, i) => Math.abs(x - baseSummary[i]!)))).toBeGreaterThan(1e-3);
  });
});

test("routing is a distribution over the other chunks, or over the earlier ones if causal", async () => {
  await runOnSingleRank(async (ctx) => {
    using summaries = randn(ctx, [2, 5, 8]);
    for (const causal of [false, true]) {
      using meta = new MetaAttention(ctx, { summaryDim: 8, numHeads: 2, causal });
      using routing = meta.forward(summaries);
      const [weights, chunkAttention] = [await routing.routing.read(), await routing.chunkAttention.read()];
      for (let row = 0; row < 10; row++) {
        const [rowWeights, i] = [weights.subarray(row * 5, row * 5 + 5), row % 5];
        const sum = rowWeights.reduce((a, b) => a + b, 0);
        expect(sum).toBeCloseTo(causal && i === 0 ? 0 : 1, 5);
        for (let j = 0; j < 5; j++) expect(rowWeights[j]! > 0).toBe(causal ? j < i : j !== i);
        expect(chunkAttention.subarray(row * 5, row * 5 + 5).every((x, l) => x > 0 === (!causal || l <= i))).toBe(true);
      }
    }
  });
});

test("a forward under noGrad does not affect a concurrent forward that records gradients", async () => {
  await runOnSingleRank(async (ctx) => {
    using encoder = new ChunkSummaryEncoder(ctx, { embedDim: 8, numHeads: 2 });
    using x = randn(ctx, [1, 6, 8]);
    const [noGradResult, recordedResult] = await Promise.all([noGrad(() => encoder.forward(x)), encoder.forward(x)]);
    expect(noGradResult.summary.requiresGrad).toBe(false);
    expect(recordedResult.summary.requiresGrad).toBe(true);
  });
});
