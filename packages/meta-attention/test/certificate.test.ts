import { normals, onWorld, seesAny } from "@mosaic/conformance";
import { type Context, fromArray, init, type Mask, masks, shard } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import fc from "fast-check";
import { expect, test } from "vitest";
import { chunksToAdd } from "../src/certificate/extend.ts";
import { HierarchicalMetaAttention, type HierarchicalMetaAttentionOptions } from "../src/index.ts";
import { reachAmong } from "../src/route/reach.ts";
import { cut, dot, logSumExp } from "./reference/rows.ts";
import { chunksOf, shardsOf, whole } from "./cut.ts";
import { makeWorld } from "./world.ts";

/** A module on an input of some loudness. */
interface Case {
  readonly options: HierarchicalMetaAttentionOptions;
  readonly ranks: number;
  readonly batch: number;
  readonly length: number;
  readonly loudness: number;
  readonly seed: number;
}

function valuesOf({ options, batch, length, loudness, seed }: Case): Float64Array {
  return normals(batch * length * options.embedDim, seed).map((x) => Math.fround(loudness * x));
}

/** What a forward promised, and all that is needed to check it. */
async function promised(ctx: Context, given: Case) {
  const { options, batch, length } = given;
  using module = new HierarchicalMetaAttention(ctx, { ...options, sequenceLength: length });
  using all = fromArray(ctx, valuesOf(given), [batch, length, options.embedDim]);
  using x = shard(ctx, all, 1, { placement: options.placement ?? "contiguous" });
  using result = await module.forward(x);
  const { weight, bias } = module.qkvProjection;
  return {
    weight: await weight.read(),
    bias: await bias!.read(),
    chosen: result.meta.chosen,
    positions: shardsOf(given, ctx.size)[ctx.rank]!,
    values: await result.meta.certificate!.missedMass.read(),
  };
}

/** The share of full attention's softmax that was not looked at, [B,S,H], in float64. */
function missedMass(given: Case, { weight, bias, chosen }: Awaited<ReturnType<typeof promised>>): Float64Array {
  const { options, batch, length, ranks } = given;
  const { embedDim: embed, numHeads, numKvHeads = numHeads, mask = masks.full() } = options;
  const size = embed / numHeads;
  const sees = seesAny(mask.slices(length, length));
  const everyone = Array.from({ length }, (_, token) => token);
  const chunks = chunksOf(given, ranks);
  const chunkOf = everyone.map((token) => chunks.findIndex(({ tokens }) => tokens.includes(token)));
  const missed = new Float64Array(batch * length * numHeads);
  const projection = cut(weight, embed);
  const rows = cut(valuesOf(given), embed).map((row) => projection.map((w, i) => dot(row, w) + bias[i]!));
  for (let at = 0; at < batch * length; at++) {
    const [b, position] = [Math.floor(at / length), at % length];
    const looked = new Set([chunkOf[position]!, ...chosen[b]![chunkOf[position]!]!]);
    const visible = everyone.filter((token) => sees(position, token));
    for (let h = 0; h < numHeads; h++) {
      const head = (row: readonly number[], number: number) => row.slice(number * size, (number + 1) * size);
      const kvHead = numHeads + Math.floor((h * numKvHeads) / numHeads);
      const score = (token: number) =>
        dot(head(rows[at]!, h), head(rows[b * length + token]!, kvHead)) / Math.sqrt(size);
      const out = visible.filter((token) => !looked.has(chunkOf[token]!));
      missed[at * numHeads + h] = Math.exp(logSumExp(out.map(score)) - logSumExp(visible.map(score)));
    }
  }
  return missed;
}

function maskOf(name: string, length: number): Mask {
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
    loudness: fc.constantFrom(0.01, 0.3, 1, 3, 10, 40),
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
      mask: maskOf(mask, chunks + tokens),
      combine,
      ...(epsilon !== undefined && { maxMissedMass: epsilon }),
    },
  }));

/** The bound is never below the truth, and never above what was asked for; how large it is. */
function check(given: Case, bound: ArrayLike<number>, truth: Float64Array): number {
  const most = given.options.maxMissedMass ?? 1;
  // Not `bound < truth`: NaN must not pass.
  const lies = truth.findIndex((missed, i) => !(bound[i]! >= missed && bound[i]! <= most));
  if (lies >= 0) expect.fail(`row ${lies}: bound ${bound[lies]}, truth ${truth[lies]}, at most ${most}`);
  return Math.max(...Array.from(bound));
}

test("the true missed mass is never above the bound: 1 000 random cases", async () => {
  await using ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  let tried = 0;
  let telling = 0;
  await fc.assert(
    fc.asyncProperty(cases, async (given) => {
      const promise = await promised(ctx, given);
      const largest = check(given, promise.values, missedMass(given, promise));
      tried++;
      if (largest < 0.9) telling++;
    }),
    { numRuns: 1000, seed: 11 },
  );
  expect(tried).toBe(1000);
  // A bound of 1 would be honest, too.
  expect(telling).toBeGreaterThan(300);
}, 180_000);

test.each([undefined, 0.2, 0.01])("the same over 3 ranks, fetching what is needed, at most %s", async (epsilon) => {
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
      const given: Case = { options, ranks: 3, batch: 2, length: 31, loudness: 0.8, seed: 3 };
      const ranks = await onWorld(makeWorld, { size: 3 }, (ctx) => promised(ctx, given));
      check(given, whole(ranks, given), missedMass(given, ranks[0]!));
      for (const { chosen } of ranks) expect(chosen).toEqual(ranks[0]!.chosen);
      if (epsilon) expect(ranks[0]!.chosen.flat(2).length).toBeGreaterThan(2 * 6);
    }
  }
});

test("chunks are added, the most suspicious first, and no more than needed", () => {
  const none = -1e9;
  const shares = [none, 0.2, 0.1, 0.05].map((share) => (share > 0 ? Math.log(share) : none));
  const worst = Float32Array.from([...shares, ...new Array<number>(12).fill(none)]);
  const chosen = [[[], [], [], []]];
  const row = (_: number, i: number) => worst.subarray(4 * i, 4 * i + 4);
  const anywhere = reachAmong(4, { causal: false });
  const added = (epsilon: number) => chunksToAdd(row, chosen, { epsilon, reach: anywhere })[0]![0];
  expect(added(0.5)).toEqual([]);
  expect(added(0.2)).toEqual([1]);
  expect(added(0.1)).toEqual([1, 2]);
  expect(added(0.01)).toEqual([1, 2, 3]);
  worst.fill(Infinity);
  expect(chunksToAdd(row, chosen, { epsilon: 0.5, reach: reachAmong(4, { causal: true }) })[0]).toEqual([
    [],
    [0],
    [0, 1],
    [0, 1, 2],
  ]);
});
