import { checkClose, onWorld } from "@mosaic/conformance";
import { add, type Context, fromArray, noGrad, randn, reduceGradients, shard, sum, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { HierarchicalMetaAttention, massLoss, type MetaResult, MultiAxisHierarchicalAttention } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

const sizes = { embedDim: 8, numHeads: 2, summaryDim: 4, metaHeads: 2 } as const;

const read = async (x: Tensor) => Array.from(await x.read());

test("any axis is what moving it by hand gives, forward, backward and in what is reported", async () => {
  await onWorld(makeWorld, { size: 2 }, async (ctx) => {
    const options = { ...sizes, topK: 1, chunksPerRank: 2 };
    const input = () => randn(ctx, [2, 3, 8, 4, 8], { seed: 4, stream: ctx.rank });
    using x = input();
    using y = input();
    using across = new MultiAxisHierarchicalAttention(ctx, { ...options, attentionAxis: -3 });
    using plain = new HierarchicalMetaAttention(ctx, options);
    expect(across.namedParameters().map(([name]) => name)).toEqual(plain.namedParameters().map(([name]) => name));
    const theirs = plain.parameters();
    for (const [i, mine] of across.parameters().entries()) ctx.device.kernels.copy(theirs[i]!, mine);
    for (const each of [x, y]) each.requiresGrad = true;
    using found = await across.forward(x);
    using moved = y.permute([0, 1, 3, 2, 4]);
    using rows = moved.reshape([24, 8, 8]);
    using expected = await plain.forward(rows);
    using apart = expected.out.reshape([2, 3, 4, 8, 8]);
    using back = apart.permute([0, 1, 3, 2, 4]);
    expect(await read(found.out)).toEqual(await read(back));
    await reportIsTheSame(found, expected);
    for (const [out, result] of [[found.out, found] as const, [back, expected] as const]) {
      using total = sum(out);
      using aside = massLoss(result.meta);
      using loss = add(total, aside);
      loss.backward();
    }
    checkClose(await x.grad!.read(), await y.grad!.read(), 1e-6, "dx");
    for (const [i, mine] of across.parameters().entries()) {
      checkClose(await mine.grad!.read(), await theirs[i]!.grad!.read(), 1e-5, `parameter ${i}`);
    }
  });
});

async function reportIsTheSame({ meta }: MetaResult, { meta: flat }: MetaResult): Promise<void> {
  expect(meta.batchShape).toEqual([2, 3, 4]);
  expect(meta.chosen).toEqual(flat.chosen);
  expect(meta.bytesMoved).toEqual(flat.bytesMoved);
  expect(meta.routingWeights.shape).toEqual([2, 3, 4, 4, 4]);
  expect(await read(meta.routingWeights)).toEqual(await read(flat.routingWeights));
  expect(meta.chunkAttention.shape).toEqual([2, 3, 4, 4, 4]);
  expect(meta.attentionMass.shape).toEqual([2, 3, 4, 2, 4]);
  expect(meta.gateValues!.shape).toEqual([2, 3, 8, 4]);
  expect(meta.certificate!.missedMass.shape).toEqual([2, 3, 8, 4, 2]);
  const inOrder = (x: Tensor, width: number) => {
    using apart = x.reshape([2, 3, 4, 8, width]);
    using back = apart.permute([0, 1, 3, 2, 4]);
    return read(back);
  };
  expect(await read(meta.gateValues!)).toEqual(await inOrder(flat.gateValues!, 1));
  expect(await read(meta.certificate!.missedMass)).toEqual(await inOrder(flat.certificate!.missedMass, 2));
}

test("inference: nothing is recorded, and nothing stays behind", async () => {
  await onWorld(makeWorld, { size: 2 }, async (ctx) => {
    using module = new MultiAxisHierarchicalAttention(ctx, { ...sizes, attentionAxis: 1, maxMissedMass: 0.1 });
    using x = randn(ctx, [2, 6, 3, 8]);
    const allocated = () => ctx.device.memory().allocated;
    await ctx.device.stream.synchronize();
    const before = allocated();
    for (let step = 0; step < 3; step++) {
      using result = await noGrad(() => module.forward(x));
      expect(result.out.requiresGrad).toBe(false);
      await result.out.read();
    }
    expect(allocated()).toBe(before);
  });
});

/** A step of training, nothing disposed by hand but the result. */
async function train(ctx: Context, module: HierarchicalMetaAttention, x: Tensor): Promise<void> {
  using result = await module.forward(x);
  using total = sum(result.out);
  using aside = massLoss(result.meta);
  using loss = add(total, aside);
  loss.backward();
  reduceGradients(ctx, module);
  module.zeroGrad();
}

test.each([{}, { useCheckpoint: true }, { combine: "exact", maxMissedMass: 0.1 }] as const)(
  "training leaves nothing behind: %j",
  async (options) => {
    await onWorld(makeWorld, { size: 3 }, async (ctx) => {
      using module = new HierarchicalMetaAttention(ctx, { ...sizes, ...options });
      using x = randn(ctx, [2, 6, 8]);
      await train(ctx, module, x);
      await ctx.device.stream.synchronize();
      const before = ctx.device.memory().allocated;
      for (let step = 0; step < 5; step++) await train(ctx, module, x);
      await ctx.device.stream.synchronize();
      expect(ctx.device.memory().allocated).toBe(before);
    });
  },
);

test("dp × sp: gradients are the mean over samples of what each alone gives", async () => {
  const shape = [4, 12, 8];
  const values = Float64Array.from({ length: 4 * 12 * 8 }, (_, i) => Math.sin(i * i));
  const run = (mesh: { dp: number; sp: number }) =>
    onWorld(makeWorld, { size: mesh.dp * mesh.sp, mesh }, async (ctx) => {
      const options = { ...sizes, topK: 1, chunksPerRank: 4 / mesh.sp, combine: "exact" } as const;
      using module = new HierarchicalMetaAttention(ctx, options);
      using all = fromArray(ctx, values, shape);
      const dp = ctx.mesh.coordinate["dp"]!;
      using samples = all.slice(0, (dp * 4) / mesh.dp, ((dp + 1) * 4) / mesh.dp);
      using x = shard(ctx, samples, 1);
      using result = await module.forward(x);
      using total = sum(result.out);
      using aside = massLoss(result.meta);
      using loss = add(total, aside);
      loss.backward();
      reduceGradients(ctx, module);
      return Object.fromEntries(
        await Promise.all(
          module.namedParameters().map(async ([name, each]) => [name, await each.grad!.read()] as const),
        ),
      );
    });
  const [one] = await run({ dp: 1, sp: 1 });
  const [two] = await run({ dp: 2, sp: 2 });
  // The sum of the outputs halves with the samples of a row of ranks; the loss that is a mean does not.
  for (const name of ["qkv_proj.weight", "gate_proj.weight", "out_proj.weight"]) {
    const half = one![name]!.map((x) => x / 2);
    checkClose(two![name]!, half, 1e-4 * Math.max(...half.map(Math.abs)), name);
  }
});
