import { checkClose, runOnWorld } from "@mosaic/conformance";
import { add, type Context, fromArray, noGrad, randn, reduceGradients, shard, sum, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { HierarchicalMetaAttention, massLoss, type MetaResult, MultiAxisHierarchicalAttention } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

const sizes = { embedDim: 8, numHeads: 2, summaryDim: 4, metaHeads: 2 } as const;

const readArray = async (x: Tensor) => Array.from(await x.read());

test("attention along an inner axis equals that of a permuted input, in output, gradients and report", async () => {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    const options = { ...sizes, topK: 1, chunksPerRank: 2 };
    const input = () => randn(ctx, [2, 3, 8, 4, 8], { seed: 4, stream: ctx.rank });
    using x = input();
    using y = input();
    using multiAxisModule = new MultiAxisHierarchicalAttention(ctx, { ...options, attentionAxis: -3 });
    using flatModule = new HierarchicalMetaAttention(ctx, options);
    expect(multiAxisModule.namedParameters().map(([name]) => name)).toEqual(
      flatModule.namedParameters().map(([name]) => name),
    );
    const flatParameters = flatModule.parameters();
    for (const [i, parameter] of multiAxisModule.parameters().entries())
      ctx.device.kernels.copy(flatParameters[i]!, parameter);
    for (const tensor of [x, y]) tensor.requiresGrad = true;
    using actual = await multiAxisModule.forward(x);
    using permuted = y.permute([0, 1, 3, 2, 4]);
    using rows = permuted.reshape([24, 8, 8]);
    using expected = await flatModule.forward(rows);
    using unflattened = expected.out.reshape([2, 3, 4, 8, 8]);
    using restored = unflattened.permute([0, 1, 3, 2, 4]);
    expect(await readArray(actual.out)).toEqual(await readArray(restored));
    await expectSameReport(actual, expected);
    for (const [out, result] of [[actual.out, actual] as const, [restored, expected] as const]) {
      using totalOut = sum(out);
      using auxiliaryLoss = massLoss(result.meta);
      using loss = add(totalOut, auxiliaryLoss);
      loss.backward();
    }
    checkClose(await x.grad!.read(), await y.grad!.read(), 1e-6, "dx");
    for (const [i, parameter] of multiAxisModule.parameters().entries()) {
      checkClose(await parameter.grad!.read(), await flatParameters[i]!.grad!.read(), 1e-5, `parameter ${i}`);
    }
  });
});

async function expectSameReport({ meta }: MetaResult, { meta: flatMeta }: MetaResult): Promise<void> {
  expect(meta.batchShape).toEqual([2, 3, 4]);
  expect(meta.chosen).toEqual(flatMeta.chosen);
  expect(meta.bytesMoved).toEqual(flatMeta.bytesMoved);
  expect(meta.routingWeights.shape).toEqual([2, 3, 4, 4, 4]);
  expect(await readArray(meta.routingWeights)).toEqual(await readArray(flatMeta.routingWeights));
  expect(meta.chunkAttention.shape).toEqual([2, 3, 4, 4, 4]);
  expect(meta.attentionMass.shape).toEqual([2, 3, 4, 2, 4]);
  expect(meta.gateValues!.shape).toEqual([2, 3, 8, 4]);
  expect(meta.certificate!.missedMass.shape).toEqual([2, 3, 8, 4, 2]);
  const restoreOrder = (x: Tensor, width: number) => {
    using unflattened = x.reshape([2, 3, 4, 8, width]);
    using restored = unflattened.permute([0, 1, 3, 2, 4]);
    return readArray(restored);
  };
  expect(await readArray(meta.gateValues!)).toEqual(await restoreOrder(flatMeta.gateValues!, 1));
  expect(await readArray(meta.certificate!.missedMass)).toEqual(
    await restoreOrder(flatMeta.certificate!.missedMass, 2),
  );
}

test("inference under noGrad requires no gradients and frees all memory that it allocates", async () => {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    using module = new MultiAxisHierarchicalAttention(ctx, { ...sizes, attentionAxis: 1, maxMissedMass: 0.1 });
    using x = randn(ctx, [2, 6, 3, 8]);
    const readAllocatedBytes = () => ctx.device.memory().allocated;
    await ctx.device.stream.synchronize();
    const bytesBefore = readAllocatedBytes();
    for (let step = 0; step < 3; step++) {
      using result = await noGrad(() => module.forward(x));
      expect(result.out.requiresGrad).toBe(false);
      await result.out.read();
    }
    expect(readAllocatedBytes()).toBe(bytesBefore);
  });
});

/** Runs a training step in which only the result is disposed explicitly. */
async function train(ctx: Context, module: HierarchicalMetaAttention, x: Tensor): Promise<void> {
  using result = await module.forward(x);
  using totalOut = sum(result.out);
  using auxiliaryLoss = massLoss(result.meta);
  using loss = add(totalOut, auxiliaryLoss);
  loss.backward();
  reduceGradients(ctx, module);
  module.zeroGrad();
}

test.each([{}, { useCheckpoint: true }, { combine: "exact", maxMissedMass: 0.1 }] as const)(
  "training steps do not increase the allocated memory: %j",
  async (options) => {
    await runOnWorld(makeWorld, { size: 3 }, async (ctx) => {
      using module = new HierarchicalMetaAttention(ctx, { ...sizes, ...options });
      using x = randn(ctx, [2, 6, 8]);
      await train(ctx, module, x);
      await ctx.device.stream.synchronize();
      const bytesBefore = ctx.device.memory().allocated;
      for (let step = 0; step < 5; step++) await train(ctx, module, x);
      await ctx.device.stream.synchronize();
      expect(ctx.device.memory().allocated).toBe(bytesBefore);
    });
  },
);

test("gradients on a dp × sp mesh equal those of one rank, averaged over dp", async () => {
  const shape = [4, 12, 8];
  const values = Float64Array.from({ length: 4 * 12 * 8 }, (_, i) => Math.sin(i * i));
  const runOnMesh = (mesh: { dp: number; sp: number }) =>
    runOnWorld(makeWorld, { size: mesh.dp * mesh.sp, mesh }, async (ctx) => {
      const options = { ...sizes, topK: 1, chunksPerRank: 4 / mesh.sp, combine: "exact" } as const;
      using module = new HierarchicalMetaAttention(ctx, options);
      using fullInput = fromArray(ctx, values, shape);
      const dp = ctx.mesh.coordinate["dp"]!;
      using samples = fullInput.slice(0, (dp * 4) / mesh.dp, ((dp + 1) * 4) / mesh.dp);
      using x = shard(ctx, samples, 1);
      using result = await module.forward(x);
      using totalOut = sum(result.out);
      using auxiliaryLoss = massLoss(result.meta);
      using loss = add(totalOut, auxiliaryLoss);
      loss.backward();
      reduceGradients(ctx, module);
      return Object.fromEntries(
        await Promise.all(
          module.namedParameters().map(async ([name, parameter]) => [name, await parameter.grad!.read()] as const),
        ),
      );
    });
  const [oneRankGradients] = await runOnMesh({ dp: 1, sp: 1 });
  const [fourRankGradients] = await runOnMesh({ dp: 2, sp: 2 });
  // Gradients of the sum of outputs are averaged over "dp" and therefore halved; those of the loss, which is a mean,
  // are not.
  for (const name of ["qkv_proj.weight", "gate_proj.weight", "out_proj.weight"]) {
    const halfGradient = oneRankGradients![name]!.map((x) => x / 2);
    checkClose(fourRankGradients![name]!, halfGradient, 1e-4 * Math.max(...halfGradient.map(Math.abs)), name);
  }
});
