import {
  type Context,
  type Coordinate,
  fromArray,
  Linear,
  ones,
  type PlacementName,
  shard,
  sum,
  unshard,
  zeros,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { checkpoint, Dropout, LoRA, MLP, SwiGLU } from "../src/index.ts";
import { generateNumbers } from "./reference/numbers.ts";
import { getBatchShare, onOneRank, onMesh } from "./reference/world.ts";

const [batch, length, embed] = [4, 10, 6];
const inputValues = generateNumbers(batch * length * embed, 2);

/** Runs two calls on every rank's part and gathers the outputs, and the gradient of the second. */
async function runDropout(ctx: Context, placement: PlacementName, isPlacedByCall = false): Promise<number[][]> {
  const placementOptions = { placement, sequenceLength: length };
  const layer = new Dropout(
    ctx,
    0.4,
    isPlacedByCall ? { placement: "contiguous", sequenceLength: 99 } : placementOptions,
  );
  const call = isPlacedByCall ? placementOptions : undefined;
  const { index, count } = getBatchShare(ctx);
  const size = batch / count;
  using fullInput = fromArray(ctx, inputValues, [batch, length, embed]);
  using sampleShard = fullInput.slice(0, index * size, (index + 1) * size);
  const x = shard(ctx, sampleShard, 1, { placement }).detach();
  x.requiresGrad = true;
  layer.forward(x, call).dispose();
  const out = layer.forward(x, call);
  using loss = sum(out);
  loss.backward();
  const fullTensors = [out, x.grad!].map((each) => unshard(ctx, each, 1, { placement, length }));
  return Promise.all(fullTensors.map(async (each) => Array.from(await each.read())));
}

const meshes: readonly Coordinate[] = [
  { sp: 2 },
  { sp: 4 },
  { dp: 2, sp: 1 },
  { dp: 2, sp: 2 },
  { sp: 3 },
  { dp_replicate: 2, dp_shard: 2, sp: 2 },
];

describe.each(["contiguous", "zigzag", "striped"] as const)("%s", (placement) => {
  test("drops the same elements on every mesh", async () => {
    const [expected] = await onMesh({ sp: 1 }, (ctx) => runDropout(ctx, placement));
    for (const mesh of meshes) {
      const ranks = await onMesh(mesh, (ctx) => runDropout(ctx, placement));
      expect(await onMesh(mesh, (ctx) => runDropout(ctx, placement, true))).toEqual(ranks);
      const rows = (batch * mesh.sp!) / ranks.length;
      for (const [rank, rankValues] of ranks.entries()) {
        const firstIndex = Math.floor(rank / mesh.sp!) * rows * length * embed;
        for (const [i, values] of rankValues.entries()) {
          expect(values).toEqual(expected![i]!.slice(firstIndex, firstIndex + rows * length * embed));
        }
      }
    }
  });
});

test("Dropout drops the given share of elements, and scales the others and their gradients", () =>
  onOneRank(async (ctx) => {
    using x = ones(ctx, [10, 100, 30]);
    x.requiresGrad = true;
    using out = new Dropout(ctx, 0.3).forward(x);
    using loss = sum(out);
    loss.backward();
    const values = await out.read();
    expect(await x.grad!.read()).toEqual(values);
    const keptValues = values.filter((value) => value !== 0);
    expect(new Set(keptValues)).toEqual(new Set([Math.fround(1 / Math.fround(0.7))]));
    // Five standard deviations of 30 000 draws.
    expect(Math.abs(keptValues.length / values.length - 0.7)).toBeLessThan(5 * Math.sqrt(0.21 / 30_000));
  }));

test("every call and seed draws another mask, which the state of the random stream determines", async () => {
  const drawMask = (ctx: Context) => new Dropout(ctx, 0.5).forward(ones(ctx, [1, 50, 1])).read();
  const [firstDraw, secondDraw, repeatedDraw] = await onOneRank(async (ctx) => {
    const firstMask = await drawMask(ctx);
    const state = ctx.randomStream;
    const secondMask = await drawMask(ctx);
    ctx.randomStream = state;
    return [firstMask, secondMask, await drawMask(ctx)];
  });
  expect(firstDraw).not.toEqual(secondDraw);
  expect(repeatedDraw).toEqual(secondDraw);
  expect(await onOneRank(drawMask, 4)).not.toEqual(firstDraw);
});

test("Dropout in evaluation or with probability 0 keeps the input and draws no random numbers", () =>
  onOneRank(async (ctx) => {
    using x = ones(ctx, [1, 4, 2]);
    for (const layer of [new Dropout(ctx, 0.5).eval(), new Dropout(ctx, 0)]) {
      using evalOutput = layer.forward(x);
      expect(Array.from(await evalOutput.read())).toEqual(Array(8).fill(1));
    }
    expect(ctx.randomStream).toBe(0);
    expect(x.isDisposed).toBe(false);
  }));

test("a sequence on axis 0 has no batch, so that data-parallel ranks draw the same zeros", async () => {
  const run = async (ctx: Context): Promise<number[]> => {
    using fullInput = ones(ctx, [8, 4]);
    using x = shard(ctx, fullInput, 0);
    using out = new Dropout(ctx, 0.5, { sequenceAxis: 0 }).forward(x);
    using fullOutput = unshard(ctx, out, 0);
    return Array.from(await fullOutput.read());
  };
  const expected = await onOneRank(run);
  expect(new Set(expected)).toEqual(new Set([0, 2]));
  for (const result of await onMesh({ dp: 2, sp: 2 }, run)) expect(result).toEqual(expected);
});

test("Dropout accepts tensors with any number of axes, with and without a sequence axis", () =>
  onOneRank(async (ctx) => {
    for (const shape of [[6], [3, 6], [2, 3, 4, 6]]) {
      using x = ones(ctx, shape);
      using out = new Dropout(ctx, 0.5).forward(x);
      using replicatedOutput = new Dropout(ctx, 0.5, { sequenceAxis: null }).forward(x);
      expect([out.shape, replicatedOutput.shape]).toEqual([shape, shape]);
    }
    using emptyInput = zeros(ctx, [2, 0, 3]);
    using emptyOutput = new Dropout(ctx, 0.5).forward(emptyInput);
    expect(emptyOutput.shape).toEqual([2, 0, 3]);
  }));

test("a checkpoint that recomputes Dropout in the backward draws the same zeros", async () => {
  const computeGradients = async (ctx: Context, keepsActivations: boolean): Promise<number[][]> => {
    const mlp = new MLP(ctx, { embedDim: 4, dropout: 0.5 });
    const x = fromArray(ctx, generateNumbers(24, 1), [2, 3, 4]);
    x.requiresGrad = true;
    const runMlp = (each: typeof x) => mlp.forward(each);
    using firstOutput = keepsActivations ? runMlp(x) : checkpoint(runMlp, x);
    using secondOutput = keepsActivations ? runMlp(firstOutput) : checkpoint(runMlp, firstOutput);
    using loss = sum(secondOutput);
    loss.backward();
    expect(ctx.randomStream).toBe(8); // four parameters, four masks
    return Promise.all([x, ...mlp.parameters()].map(async (each) => Array.from(await each.grad!.read())));
  };
  expect(await onOneRank((ctx) => computeGradients(ctx, false))).toEqual(
    await onOneRank((ctx) => computeGradients(ctx, true)),
  );
});

const blocks = {
  MLP: (ctx: Context) => new MLP(ctx, { embedDim: embed, dropout: 0.5 }),
  SwiGLU: (ctx: Context) => new SwiGLU(ctx, { embedDim: embed, hiddenDim: 8, dropout: 0.5 }),
  LoRA: (ctx: Context) => {
    const adapter = new LoRA(ctx, new Linear(ctx, embed, 5), { rank: 2, dropout: 0.5 });
    ctx.device.write(adapter.b.weight, generateNumbers(10, 3));
    return adapter;
  },
} as const;

test.each(["MLP", "SwiGLU", "LoRA"] as const)(
  "%s drops elements according to the placement of the call",
  async (name) => {
    const runBlock = async (ctx: Context, placement: PlacementName): Promise<number[]> => {
      const block = blocks[name](ctx);
      using fullInput = fromArray(ctx, inputValues, [batch, length, embed]);
      using localInput = shard(ctx, fullInput, 1, { placement });
      using out = block.forward(localInput, { placement, sequenceLength: length });
      return Array.from(await unshard(ctx, out, 1, { placement, length }).read());
    };
    const [expected] = await onMesh({ sp: 1 }, (ctx) => runBlock(ctx, "contiguous"));
    for (const placement of ["striped", "zigzag"] as const) {
      for (const values of await onMesh({ sp: 3 }, (ctx) => runBlock(ctx, placement))) {
        expect(values.map((value) => value === 0)).toEqual(expected!.map((value) => value === 0));
        for (const [i, value] of values.entries()) expect(value).toBeCloseTo(expected![i]!, 5);
      }
    }
  },
);

test("invalid options and shapes are rejected", async () => {
  await onOneRank((ctx) => {
    for (const probability of [1, -0.1, Number.NaN])
      expect(() => new Dropout(ctx, probability)).toThrow(/a number ≥ 0 and < 1/);
    expect(() => new Dropout(ctx, 0.5, { axis: 1 } as never)).toThrow(/options among sequenceAxis/);
    // Without a sequence axis, every rank would draw the zeros of the first rank.
    using x = ones(ctx, [4, 2]);
    expect(() => new Dropout(ctx, 0.5, { sequenceAxis: -3 }).forward(x)).toThrow(/sequenceAxis: .*received -3/);
  });
  await onMesh({ sp: 2 }, (ctx) => {
    const layer = new Dropout(ctx, 0.5, { sequenceLength: 7 });
    using x = ones(ctx, [1, 4, 2]);
    if (ctx.rank === 1)
      expect(() => layer.forward(x)).toThrow(
        /rank 1: expected 3 rows along the sequence axis, this rank's shard of 7 rows in 2 shards, received 4/,
      );
  });
});
