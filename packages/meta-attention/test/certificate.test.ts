import { normals, onWorld } from "@mosaic/conformance";
import { type Context, fromArray, init, shard } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import fc from "fast-check";
import { expect, test } from "vitest";
import { chunksToAdd } from "../src/certificate/extend.ts";
import { HierarchicalMetaAttention, type HierarchicalMetaAttentionOptions } from "../src/index.ts";
import { cut, dot, logSumExp } from "./reference/rows.ts";
import { chunkLengths, whole } from "./step.ts";
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
  using x = shard(ctx, all, 1);
  using result = await module.forward(x);
  const { weight, bias } = module.qkvProjection;
  return {
    weight: await weight.read(),
    bias: await bias!.read(),
    chosen: result.meta.chosen,
    start: 0,
    rows: x.shape[1]!,
    values: await result.meta.certificate!.missedMass.read(),
  };
}

/** The share of full attention's softmax that was not looked at, [B,S,H], in float64. */
function missedMass(given: Case, { weight, bias, chosen }: Awaited<ReturnType<typeof promised>>): Float64Array {
  const { options, batch, length, ranks } = given;
  const { embedDim: embed, numHeads: heads, causal = false, chunksPerRank = 1 } = options;
  const size = embed / heads;
  const chunkOf = chunkLengths(length, ranks, chunksPerRank).flatMap((n, i) => new Array<number>(n).fill(i));
  const missed = new Float64Array(batch * length * heads);
  const projection = cut(weight, embed);
  const rows = cut(valuesOf(given), embed).map((row) => projection.map((w, i) => dot(row, w) + bias[i]!));
  for (let at = 0; at < batch * length; at++) {
    const [b, position] = [Math.floor(at / length), at % length];
    const looked = new Set([chunkOf[position]!, ...chosen[b]![chunkOf[position]!]!]);
    const visible = Array.from({ length: causal ? position + 1 : length }, (_, token) => token);
    for (let h = 0; h < heads; h++) {
      const part = (row: readonly number[], which: number) =>
        row.slice(which * embed + h * size, which * embed + (h + 1) * size);
      const score = (token: number) => dot(part(rows[at]!, 0), part(rows[b * length + token]!, 1)) / Math.sqrt(size);
      const out = visible.filter((token) => !looked.has(chunkOf[token]!));
      missed[at * heads + h] = Math.exp(logSumExp(out.map(score)) - logSumExp(visible.map(score)));
    }
  }
  return missed;
}

const cases: fc.Arbitrary<Case> = fc
  .record({
    chunks: fc.integer({ min: 2, max: 5 }),
    heads: fc.integer({ min: 1, max: 3 }),
    size: fc.integer({ min: 1, max: 6 }),
    tokens: fc.integer({ min: 0, max: 12 }),
    causal: fc.boolean(),
    combine: fc.constantFrom("soft" as const, "exact" as const),
    loudness: fc.constantFrom(0.01, 0.3, 1, 3, 10, 40),
    batch: fc.integer({ min: 1, max: 2 }),
    seed: fc.nat(1e6),
    topK: fc.nat(3),
    epsilon: fc.constantFrom(undefined, undefined, 0.5, 0.05, 0.001),
  })
  .map(({ chunks, heads, size, tokens, topK, epsilon, causal, combine, ...rest }) => ({
    ...rest,
    ranks: 1,
    length: chunks + tokens,
    options: {
      embedDim: heads * size,
      numHeads: heads,
      summaryDim: 2,
      metaHeads: 1,
      summaryHeads: 1,
      chunksPerRank: chunks,
      topK: Math.min(topK, chunks - 1),
      causal,
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
  for (const causal of [false, true]) {
    for (const combine of ["soft", "exact"] as const) {
      const sizes = { embedDim: 8, numHeads: 2, summaryDim: 4, metaHeads: 2 };
      const options = {
        ...sizes,
        topK: 1,
        chunksPerRank: 2,
        causal,
        combine,
        ...(epsilon && { maxMissedMass: epsilon }),
      };
      const given: Case = { options, ranks: 3, batch: 2, length: 31, loudness: 0.8, seed: 3 };
      const ranks = await onWorld(makeWorld, { size: 3 }, (ctx) => promised(ctx, given));
      let start = 0;
      const shards = ranks.map((rank) => ({ ...rank, start: (start += rank.rows) - rank.rows }));
      check(given, whole(shards, given), missedMass(given, ranks[0]!));
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
  const added = (epsilon: number) => chunksToAdd(worst, chosen, { epsilon, causal: false })[0]![0];
  expect(added(0.5)).toEqual([]);
  expect(added(0.2)).toEqual([1]);
  expect(added(0.1)).toEqual([1, 2]);
  expect(added(0.01)).toEqual([1, 2, 3]);
  expect(chunksToAdd(worst.fill(Infinity), chosen, { epsilon: 0.5, causal: true })[0]).toEqual([
    [],
    [0],
    [0, 1],
    [0, 1, 2],
  ]);
});
