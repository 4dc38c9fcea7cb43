import {
  type Context,
  type Coordinate,
  fromArray,
  full,
  Linear,
  Module,
  ones,
  reduceGradients,
  scope,
  type Tensor,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { fullyShard, readStateDict, Sequential, SGD } from "../src/index.ts";
import { maxDifference } from "./reference/numbers.ts";
import { onMesh } from "./reference/world.ts";

const MEBIBYTE = 2 ** 20;

/** Returns the bytes that this rank has sent in all groups. */
async function readBytesSent(ctx: Context): Promise<number> {
  await ctx.device.stream.synchronize();
  const groups = new Set([ctx.world, ...ctx.mesh.axes.map((axis) => ctx.mesh.group(axis))]);
  return [...groups].reduce((sum, group) => sum + group.traffic().bytesSent, 0);
}

test.each<Coordinate>([
  { dp: 2, sp: 2 },
  { dp: 4 },
  { sp: 4 },
  { node: 2, dp: 1, gpu: 2 },
  { dp_replicate: 2, dp_shard: 2, sp: 2 },
])(
  "reduceGradients sends the bytes of one all-reduce over all ranks, and at first of the parameters: mesh %j",
  async (mesh) => {
    const bytesSent = await onMesh(mesh, async (ctx) => {
      using layer = new Linear(ctx, 512, 512, { bias: false });
      layer.weight.grad = ones(ctx, [512, 512]);
      const bytesByCall: number[] = [];
      for (let call = 0; call < 3; call++) {
        const bytesBefore = await readBytesSent(ctx);
        reduceGradients(ctx, layer);
        bytesByCall.push((await readBytesSent(ctx)) - bytesBefore);
      }
      return bytesByCall;
    });
    // Of 1 MiB, each rank sends the parts of the other ranks, and its own reduced part to each of them.
    const lastRank = bytesSent.length - 1;
    const allReduceBytes = 2 * (lastRank / (lastRank + 1)) * MEBIBYTE;
    for (const [rank, bytes] of bytesSent.entries()) {
      // To compare the parameters, each rank but the last sends them to the next one, and the result to all others.
      const compareBytes = (rank < lastRank ? MEBIBYTE : 0) + lastRank * 4;
      expect(bytes).toEqual([allReduceBytes + compareBytes, allReduceBytes, allReduceBytes]);
    }
  },
);

test("reduceGradients allocates at most two buckets of 25 MiB", async () => {
  const bucketBytes = 25 * MEBIBYTE;
  await onMesh({ dp: 2 }, async (ctx) => {
    // 96 MiB of gradients, in two parameters larger than a bucket and one smaller one.
    using model = new Sequential(
      new Linear(ctx, 3072, 3072, { bias: false }),
      new Linear(ctx, 3072, 1024, { bias: false }),
      new Linear(ctx, 1024, 12_288, { bias: false }),
    );
    for (const parameter of model.parameters()) parameter.grad = ones(ctx, parameter.shape);
    await ctx.device.stream.synchronize();
    ctx.device.resetPeakMemory();
    const { allocated } = ctx.device.memory();
    reduceGradients(ctx, model);
    await ctx.device.stream.synchronize();
    const extraBytes = ctx.device.memory().peak - allocated;
    expect(extraBytes).toBeGreaterThan(0);
    expect(extraBytes).toBeLessThanOrEqual(2 * bucketBytes);
    expect(ctx.device.memory().allocated).toBe(allocated);
    for (const parameter of model.parameters()) {
      using sum = scope(() => parameter.grad!.sum());
      expect(await sum.item()).toBe(parameter.size);
      parameter.grad!.dispose();
    }
  });
});

test("reduceGradients equals the reduction along one axis after the other, also if a rank has no gradient", async () => {
  const values = (rank: number) => Array.from({ length: 12 }, (_, i) => Math.fround(Math.sin(12 * rank + i)));
  const gradients = await onMesh({ dp: 2, sp: 2 }, async (ctx) => {
    using layer = new Linear(ctx, 4, 3, { bias: false });
    if (ctx.rank !== 3) layer.weight.grad = fromArray(ctx, values(ctx.rank), [3, 4]);
    using expected = ctx.rank === 3 ? fromArray(ctx, Array(12).fill(0), [3, 4]) : layer.weight.grad!.scale(1);
    ctx.mesh.group("dp").allReduce(expected, "mean").wait();
    ctx.mesh.group("sp").allReduce(expected, "sum").wait();
    reduceGradients(ctx, layer);
    return { reduced: Array.from(await layer.weight.grad!.read()), expected: Array.from(await expected.read()) };
  });
  for (const { reduced, expected } of gradients) {
    expect(reduced).toEqual(gradients[0]!.reduced);
    for (const [i, value] of expected.entries()) expect(Math.abs(reduced[i]! - value)).toBeLessThanOrEqual(2 ** -22);
  }
});

test("zeroGrad of a submodule or of its optimizer keeps the other gradients of a unit that fullyShard shards", async () => {
  class Model extends Module {
    readonly first: Linear;
    readonly second: Linear;

    constructor(ctx: Context) {
      super();
      this.first = this.addChild("first", new Linear(ctx, 3, 5));
      this.second = this.addChild("second", new Linear(ctx, 5, 2));
    }

    forward(x: Tensor): Tensor {
      return this.second.forward(this.first.forward(x).tanh());
    }
  }
  /** Trains the halves of a model by an optimizer each, and returns all parameters. */
  const train = async (ctx: Context, stage: 0 | 1 | 2 | 3): Promise<readonly number[]> => {
    using model = new Model(ctx);
    if (stage !== 0) fullyShard(ctx, model, { stage, axis: "sp" });
    using firstOptimizer = new SGD(model.first, { lr: 0.1, momentum: 0.5 });
    using secondOptimizer = new SGD(model.second, { lr: 0.1 });
    for (let step = 0; step < 4; step++) {
      using x = full(ctx, [1, 3], step + ctx.rank);
      scope(() => model.forward(x).square().sum().backward());
      reduceGradients(ctx, model);
      firstOptimizer.step();
      if (step === 1) model.first.zeroGrad();
      else firstOptimizer.zeroGrad();
      secondOptimizer.step();
      if (step > 0) secondOptimizer.zeroGrad(); // gradients of steps 0 and 1 add up
    }
    const state = await readStateDict(ctx, model);
    return [...state.values()].flatMap(({ values }) => [...values]);
  };
  const [expected] = await onMesh({ sp: 2 }, (ctx) => train(ctx, 0));
  for (const stage of [1, 2, 3] as const) {
    for (const parameters of await onMesh({ sp: 2 }, (ctx) => train(ctx, stage)))
      expect(maxDifference(parameters, expected!)).toBeLessThan(1e-6);
  }
});
