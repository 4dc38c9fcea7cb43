import {
  checkClose,
  checkMeasurements,
  errorSum,
  extentOf,
  type Measurement,
  moduleOracle,
  normals,
  onWorld,
} from "@mosaic/conformance";
import { fromArray, MultiAxisAttention, shard } from "@mosaic/core";
import { expect, test } from "vitest";
import { HierarchicalMetaAttention } from "../src/index.ts";
import { inputOf, type RankResult, stepOn, type Trial, upstreamOf, whole } from "./step.ts";
import { makeWorld } from "./world.ts";

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

/** Full attention by one device's own kernel, and by float64. */
async function fullAttention(trial: Trial) {
  const { batch, length, options } = trial;
  const { embedDim: embed, numHeads: heads, causal = false } = options;
  const shape = [batch, length, embed];
  const [found] = await onWorld(makeWorld, { size: 1 }, async (ctx) => {
    using module = new MultiAxisAttention(ctx, { embedDim: embed, numHeads: heads, attentionAxis: 1, causal });
    using x = fromArray(ctx, inputOf(trial), shape);
    using dOut = fromArray(ctx, upstreamOf(trial), shape);
    x.requiresGrad = true;
    using out = module.forward(x);
    out.backward(dOut);
    const entries = module.namedParameters();
    const read = async (what: "value" | "gradient") =>
      Object.fromEntries(
        await Promise.all(
          entries.map(async ([name, each]) => [name, await (what === "value" ? each : each.grad!).read()] as const),
        ),
      );
    const [parameters, gradients] = [await read("value"), await read("gradient")];
    return { out: await out.read(), dx: await x.grad!.read(), parameters, gradients };
  });
  const parameters = Object.fromEntries(names.map((name) => [name, Float64Array.from(found!.parameters[name]!)]));
  const right = moduleOracle({
    sizes: { batch, length, embed, heads, kvHeads: heads, headDim: embed / heads },
    sees: (q, k) => !causal || k <= q,
    parameters: parameters as unknown as Parameters<typeof moduleOracle>[0]["parameters"],
    x: inputOf(trial),
    dOut: upstreamOf(trial),
  });
  return { found: found!, right };
}

/** One rank of the trial against float64, beside what one device's own kernel makes of it. */
function measured(
  trial: Trial,
  ranks: readonly RankResult[],
  full: Awaited<ReturnType<typeof fullAttention>>,
): Measurement {
  const { found, right } = full;
  const together = (name: "out" | "dx") =>
    whole(
      ranks.map((rank) => ({ ...rank, values: rank[name] })),
      trial,
    );
  const result = (mine: ArrayLike<number>, theirs: ArrayLike<number>, expected: Float64Array) => ({
    found: errorSum(mine, expected),
    local: errorSum(theirs, expected),
    expected: extentOf(expected),
    partial: "float32" as const,
  });
  return {
    trial: JSON.stringify(trial.options),
    lse: right.lse * Math.sqrt(ranks.length),
    results: {
      out: result(together("out"), found.out, right.out),
      dx: result(together("dx"), found.dx, right.dx),
      ...Object.fromEntries(
        names.map((name) => [name, result(ranks[0]!.gradients[name]!, found.gradients[name]!, right.gradients[name])]),
      ),
    },
  };
}

const worlds = [
  { ranks: 1, chunksPerRank: 5, length: 40, causal: false },
  { ranks: 2, chunksPerRank: 1, length: 40, causal: false },
  { ranks: 3, chunksPerRank: 2, length: 47, causal: true },
  { ranks: 4, chunksPerRank: 1, length: 41, causal: false },
  { ranks: 5, chunksPerRank: 1, length: 43, causal: true },
  { ranks: 8, chunksPerRank: 1, length: 64, causal: false },
];

test.each(worlds.map((each) => [JSON.stringify(each), each] as const))(
  "all chunks chosen: full attention, forward and backward, within twice the local error, %s",
  async (_, { ranks, chunksPerRank, length, causal }) => {
    for (const useCheckpoint of [false, true]) {
      const options = { ...sizes, chunksPerRank, causal, useCheckpoint };
      const trial: Trial = { options, batch: 2, length, seed: 5 };
      const results = await onWorld(makeWorld, { size: ranks }, (ctx) => stepOn(ctx, trial));
      const full = await fullAttention(trial);
      for (const name of names) expect(results[0]!.parameters[name]).toEqual(full.found.parameters[name]);
      checkMeasurements("HierarchicalMetaAttention", [measured(trial, results, full)]);
      for (const { missed } of results) expect(Math.max(...missed!)).toBe(0);
    }
  },
);

test("an open gate lets full attention through", async () => {
  const shape = [1, 24, 32];
  const values = normals(24 * 32, 4);
  const run = async (gate: boolean) =>
    onWorld(makeWorld, { size: 2 }, async (ctx) => {
      using module = new HierarchicalMetaAttention(ctx, { ...sizes, gate });
      if (module.gateProjection) {
        ctx.device.kernels.fill(module.gateProjection.weight, 0);
        ctx.device.kernels.fill(module.gateProjection.bias!, 100);
      }
      using all = fromArray(ctx, values, shape);
      using x = shard(ctx, all, 1);
      using result = await module.forward(x);
      return { out: await result.out.read(), gate: await result.meta.gateValues?.read() };
    });
  const [open, none] = [await run(true), await run(false)];
  for (const [rank, { out, gate }] of open.entries()) {
    expect(Math.min(...gate!)).toBe(1);
    checkClose(out, none[rank]!.out, 1e-6, `rank ${rank}`);
  }
});

test("the order of a remote chunk's tokens does not matter", async () => {
  const length = 40;
  const width = 32;
  const x = normals(length * width, 1);
  const shuffled = Float64Array.from(x);
  // Chunk 2 holds tokens 20 to 29: reversed.
  for (let token = 20; token < 30; token++)
    shuffled.set(x.subarray(token * width, (token + 1) * width), (49 - token) * width);
  for (const combine of ["soft", "exact"] as const) {
    const options = { ...sizes, gate: true, combine, topK: 2 };
    const run = async (values: Float64Array) => {
      const trial: Trial = { options, batch: 1, length, seed: 5, x: values };
      return onWorld(makeWorld, { size: 4 }, (ctx) => stepOn(ctx, trial));
    };
    const [before, after] = [await run(x), await run(shuffled)];
    expect(before[0]!.chosen.flat(2)).toContain(2);
    expect(after[0]!.chosen).toEqual(before[0]!.chosen);
    for (const rank of [0, 1, 3]) checkClose(after[rank]!.out, before[rank]!.out, 2e-6, `${combine}, rank ${rank}`);
  }
});

test("causal: a token changes nothing before it, wherever in its chunk it is", async () => {
  const width = 32;
  const length = 36;
  for (const combine of ["soft", "exact"] as const) {
    for (const token of [13, 18, 25]) {
      const x = normals(length * width, 2);
      const changed = Float64Array.from(x, (value, i) => (Math.floor(i / width) === token ? -3 * value : value));
      const options = { ...sizes, gate: true, combine, topK: 1, causal: true };
      const run = async (values: Float64Array) => {
        const trial: Trial = { options, batch: 1, length, seed: 5, x: values };
        const ranks = await onWorld(makeWorld, { size: 4 }, (ctx) => stepOn(ctx, trial));
        return {
          ranks,
          out: whole(
            ranks.map((rank) => ({ ...rank, values: rank.out })),
            trial,
          ),
        };
      };
      const [before, after] = [await run(x), await run(changed)];
      for (const [i, chunks] of after.ranks[0]!.chosen[0]!.entries()) for (const j of chunks) expect(j).toBeLessThan(i);
      checkClose(after.out.subarray(0, token * width), before.out.subarray(0, token * width), 1e-6, `token ${token}`);
      expect(after.out.at(token * width)).not.toBe(before.out.at(token * width));
    }
  }
});

test("chunks decide, not ranks: 1 rank of 4, 2 of 2 and 4 of 1 compute the same", async () => {
  const run = async (ranks: number) => {
    const options = { ...sizes, gate: true, combine: "soft", topK: 2, chunksPerRank: 4 / ranks } as const;
    const trial: Trial = { options, batch: 2, length: 40, seed: 9, losses: [0.1, 0.1, 0.1] };
    const results = await onWorld(makeWorld, { size: ranks }, (ctx) => stepOn(ctx, trial));
    return {
      results,
      out: whole(
        results.map((rank) => ({ ...rank, values: rank.out })),
        trial,
      ),
    };
  };
  const one = await run(1);
  for (const ranks of [2, 4]) {
    const many = await run(ranks);
    expect(many.results[0]!.chosen).toEqual(one.results[0]!.chosen);
    checkClose(many.out, one.out, 2e-6, `${ranks} ranks: out`);
    for (const [name, right] of Object.entries(one.results[0]!.gradients)) {
      checkClose(
        many.results[0]!.gradients[name]!,
        right,
        1e-4 * Math.max(1, ...right.map(Math.abs)),
        `${ranks} ranks: ${name}`,
      );
    }
  }
});
