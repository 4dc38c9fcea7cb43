import { normals, runOnWorld, slicesToMaskMod } from "@mosaic/conformance";
import { type Context, fromArray, init, type Mask, masks, shard } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import fc from "fast-check";
import { expect, test } from "vitest";
import { selectAdditionalChunks } from "../src/certificate.ts";
import { HierarchicalMetaAttention, type HierarchicalMetaAttentionOptions } from "../src/index.ts";
import { chunkVisibility } from "../src/route/choose.ts";
import { splitRows, dot } from "./reference/rows.ts";
import { createChunks, createShards, assembleShards } from "./chunked-shape.ts";
import { makeWorld } from "../../../vitest.world.ts";

/** A module, and an input with a given scale. */
interface Case {
  readonly options: HierarchicalMetaAttentionOptions;
  readonly ranks: number;
  readonly batch: number;
  readonly length: number;
  readonly keyScale: number;
  readonly seed: number;
  /**
   * The score of every pair, for any input: queries and keys are given by biases. Default: projections of the input.
   */
  readonly score?: number;
}

function createValues({ options, batch, length, keyScale, seed }: Case): Float64Array {
  return normals(batch * length * options.embedDim, seed).map((x) => Math.fround(keyScale * x));
}

/** Returns the bound of a forward, and the data to check it. */
async function createCertificate(ctx: Context, testCase: Case) {
  const { options, batch, length, score } = testCase;
  using module = new HierarchicalMetaAttention(ctx, { ...options, sequenceLength: length });
  if (score !== undefined) setScore(module, options, score);
  using fullInput = fromArray(ctx, createValues(testCase), [batch, length, options.embedDim]);
  using x = shard(ctx, fullInput, 1, { placement: options.placement ?? "contiguous" });
  using result = await module.forward(x);
  const { weight, bias } = module.qkvProjection;
  return {
    weight: await weight.read(),
    bias: await bias!.read(),
    chosen: result.meta.chosen,
    positions: createShards(testCase, ctx.size)[ctx.rank]!,
    values: await result.meta.certificate!.missedMass.read(),
  };
}

/**
 * Sets every query to √|s|·e and every key to ±√|s|·e for a vector e of length D^¼, so that their scaled product is s.
 */
function setScore(
  { qkvProjection }: HierarchicalMetaAttention,
  { embedDim, numHeads }: HierarchicalMetaAttentionOptions,
  score: number,
): void {
  const { weight, bias } = qkvProjection;
  const size = embedDim / numHeads;
  const weightValue = Math.sqrt(Math.abs(score)) * size ** 0.25;
  const weightAt = (i: number) =>
    i % size > 0 || i >= 2 * embedDim ? 0 : i < embedDim ? weightValue : Math.sign(score) * weightValue;
  weight.device.kernels.fill(weight, 0);
  weight.device.write(
    bias!,
    Float32Array.from({ length: bias!.size }, (_, i) => weightAt(i)),
  );
}

/** Returns the share of full attention's softmax that was not attended to, [B,S,H], in float64. */
function computeMissedMass(
  testCase: Case,
  { weight, bias, chosen }: Awaited<ReturnType<typeof createCertificate>>,
): Float64Array {
  const { options, batch, length, ranks } = testCase;
  const { embedDim: embed, numHeads, numKvHeads = numHeads, mask = masks.full() } = options;
  const size = embed / numHeads;
  const maskMod = slicesToMaskMod(mask.slices(length, length));
  const allTokens = Array.from({ length }, (_, token) => token);
  const chunks = createChunks(testCase, ranks);
  const chunkOfToken = allTokens.map((token) => chunks.findIndex(({ tokens }) => tokens.includes(token)));
  const missedMasses = new Float64Array(batch * length * numHeads);
  const projection = splitRows(weight, embed);
  const rows = splitRows(createValues(testCase), embed).map((row) => projection.map((w, i) => dot(row, w) + bias[i]!));
  for (let at = 0; at < batch * length; at++) {
    const [b, position] = [Math.floor(at / length), at % length];
    const attendedChunks = new Set([chunkOfToken[position]!, ...chosen[b]![chunkOfToken[position]!]!]);
    const visible = allTokens.filter((token) => maskMod(position, token));
    for (let h = 0; h < numHeads; h++) {
      const sliceHead = (row: readonly number[], number: number) => row.slice(number * size, (number + 1) * size);
      const kvHead = numHeads + Math.floor((h * numKvHeads) / numHeads);
      const computeScore = (token: number) =>
        dot(sliceHead(rows[at]!, h), sliceHead(rows[b * length + token]!, kvHead)) / Math.sqrt(size);
      const maxScore = Math.max(...visible.map(computeScore));
      const sumExp = (tokens: readonly number[]) =>
        tokens.reduce((sum, token) => sum + Math.exp(computeScore(token) - maxScore), 0);
      const missedTokens = visible.filter((token) => !attendedChunks.has(chunkOfToken[token]!));
      missedMasses[at * numHeads + h] = visible.length === 0 ? 0 : sumExp(missedTokens) / sumExp(visible);
    }
  }
  return missedMasses;
}

function createMask(name: string, length: number): Mask {
  if (name === "causal") return masks.causal();
  if (name === "window") return masks.slidingWindow(4);
  return name === "documents" ? masks.documents([1, length - 1]) : masks.full();
}

const cases: fc.Arbitrary<Case> = fc
  .record({
    chunks: fc.integer({ min: 2, max: 5 }),
    groups: fc.integer({ min: 1, max: 2 }),
    numKvHeads: fc.integer({ min: 1, max: 2 }),
    size: fc.integer({ min: 1, max: 6 }),
    tokens: fc.integer({ min: 0, max: 12 }),
    mask: fc.constantFrom("full", "causal", "window", "documents"),
    combine: fc.constantFrom("soft" as const, "exact" as const),
    keyScale: fc.constantFrom(0.01, 0.3, 1, 3, 10, 40),
    batch: fc.integer({ min: 1, max: 2 }),
    seed: fc.nat(1e6),
    topK: fc.nat(3),
    epsilon: fc.constantFrom(undefined, undefined, 0.5, 0.05, 0.001),
  })
  .map(({ chunks, groups, numKvHeads, size, tokens, topK, epsilon, mask, combine, ...rest }) => ({
    ...rest,
    ranks: 1,
    length: chunks + tokens,
    options: {
      embedDim: groups * numKvHeads * size,
      numHeads: groups * numKvHeads,
      numKvHeads,
      summaryDim: 2,
      metaHeads: 1,
      summaryHeads: 1,
      chunksPerRank: chunks,
      topK: Math.min(topK, chunks - 1),
      mask: createMask(mask, chunks + tokens),
      combine,
      ...(epsilon !== undefined && { maxMissedMass: epsilon }),
    },
  }));

/**
 * Checks that the bound is never below the true mass, and never above the requested maximum. Returns the largest bound.
 */
function checkBound(testCase: Case, bound: ArrayLike<number>, exactMass: Float64Array): number {
  const maxAllowedMass = testCase.options.maxMissedMass ?? 1;
  // Negated, because NaN must be a violation.
  const firstViolation = exactMass.findIndex((missed, i) => !(bound[i]! >= missed && bound[i]! <= maxAllowedMass));
  if (firstViolation >= 0)
    expect.fail(
      `row ${firstViolation}: bound ${bound[firstViolation]}, truth ${exactMass[firstViolation]}, at most ${maxAllowedMass}`,
    );
  return Math.max(...Array.from(bound));
}

test("the bound is at least the true missed mass in 1 000 random cases", async () => {
  await using ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  let numTried = 0;
  let numInformative = 0;
  await fc.assert(
    fc.asyncProperty(cases, async (testCase) => {
      const certificate = await createCertificate(ctx, testCase);
      const maxBound = checkBound(testCase, certificate.values, computeMissedMass(testCase, certificate));
      numTried++;
      if (maxBound < 0.9) numInformative++;
    }),
    { numRuns: 1000, seed: 11 },
  );
  expect(numTried).toBe(1000);
  // A bound of 1 would always be valid, but not informative.
  expect(numInformative).toBeGreaterThan(300);
}, 180_000);

test.each([undefined, 0.2, 0.01])("the bound holds on 3 ranks with maxMissedMass %s", async (epsilon) => {
  for (const isCausal of [false, true]) {
    for (const combine of ["soft", "exact"] as const) {
      const sizes = { embedDim: 8, numHeads: 2, numKvHeads: 1, summaryDim: 4, metaHeads: 2 };
      const options = {
        ...sizes,
        topK: 1,
        chunksPerRank: 2,
        mask: isCausal ? masks.causal() : masks.full(),
        placement: combine === "soft" ? "zigzag" : "contiguous",
        combine,
        ...(epsilon && { maxMissedMass: epsilon }),
      } as const;
      const testCase: Case = { options, ranks: 3, batch: 2, length: 31, keyScale: 0.8, seed: 3 };
      const ranks = await runOnWorld(makeWorld, { size: 3 }, (ctx) => createCertificate(ctx, testCase));
      checkBound(testCase, assembleShards(ranks, testCase), computeMissedMass(testCase, ranks[0]!));
      for (const { chosen } of ranks) expect(chosen).toEqual(ranks[0]!.chosen);
      if (epsilon) expect(ranks[0]!.chosen.flat(2).length).toBeGreaterThan(2 * 6);
    }
  }
});

const largeKeys = [1e4, 2e8, 1e10, 1e20, 1e31, 1e37].flatMap((score) => [score, -score]);

test.each(largeKeys)("the bound holds with and without maxMissedMass where every score is %d", async (score) => {
  await using ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const sizes = { embedDim: 8, numHeads: 2, summaryDim: 4, metaHeads: 2, chunksPerRank: 4 };
  const baseCase = { ranks: 1, batch: 1, length: 12, keyScale: 1, seed: 5, score };
  for (const combine of ["soft", "exact"] as const) {
    for (const mask of [
      masks.full(),
      masks.causal(),
      masks.documents([3, 9]),
      masks.fromSlices([{ q0: 6, q1: 12, k0: 0, k1: 3, type: "full" }]),
    ]) {
      const testCase: Case = { ...baseCase, options: { ...sizes, combine, mask, topK: 0 } };
      const certificate = await createCertificate(ctx, testCase);
      checkBound(testCase, certificate.values, computeMissedMass(testCase, certificate));
      // The last row attended only to its own of four equal chunks.
      if (mask.name === "full") expect(certificate.values.at(-1)).toBeGreaterThanOrEqual(0.75);
      const limitedCase: Case = { ...testCase, options: { ...testCase.options, maxMissedMass: 0.01 } };
      const limitedCertificate = await createCertificate(ctx, limitedCase);
      checkBound(limitedCase, limitedCertificate.values, computeMissedMass(limitedCase, limitedCertificate));
      if (mask.name === "full") expect(limitedCertificate.chosen[0]!.map(({ length }) => length)).toEqual([3, 3, 3, 3]);
    }
  }
});

test("selectAdditionalChunks adds the chunks with the largest mass first, and only as many as required", () => {
  const noMass = Number.NEGATIVE_INFINITY;
  const shares = [noMass, 0.2, 0.1, 0.05].map((share) => (share > 0 ? Math.log(share) : noMass));
  const maxLogMasses = Float32Array.from([...shares, ...new Array<number>(12).fill(noMass)]);
  const chosen = [[[], [], [], []]];
  const row = (_: number, i: number) => maxLogMasses.subarray(4 * i, 4 * i + 4);
  const fullVisibility = chunkVisibility(4, { causal: false });
  const selectAdded = (epsilon: number) =>
    selectAdditionalChunks(row, chosen, { epsilon, visibility: fullVisibility })[0]![0];
  expect(selectAdded(0.5)).toEqual([]);
  // The shares are relative to the mass that is attended to: 0.35 of it is 0.26 of all.
  expect(selectAdded(0.26)).toEqual([]);
  expect(selectAdded(0.25)).toEqual([1]);
  expect(selectAdded(0.2)).toEqual([1]);
  expect(selectAdded(0.1)).toEqual([1, 2]);
  expect(selectAdded(0.01)).toEqual([1, 2, 3]);
  maxLogMasses.fill(Infinity);
  const attended = [[[1, 3], [], [], []]];
  const added = selectAdditionalChunks(row, attended, { epsilon: 0.5, visibility: fullVisibility });
  expect(added[0]![0]).toEqual([2]);
  expect(
    selectAdditionalChunks(row, chosen, { epsilon: 0.5, visibility: chunkVisibility(4, { causal: true }) })[0],
  ).toEqual([[], [0], [0, 1], [0, 1, 2]]);
});
