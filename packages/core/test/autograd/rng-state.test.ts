import { expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import type { Context } from "../../src/context.ts";
import { ones } from "../../src/creation.ts";
import { rand, randn } from "../../src/random.ts";
import { add, mul } from "../../src/ops/pointwise.ts";
import { sum } from "../../src/ops/reduction.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice, referenceWorld } from "../reference/index.ts";

/** Multiplies x by random numbers. The gradient of x equals the numbers that were drawn. */
function addNoise(ctx: Context, x: Tensor): Tensor {
  using noise = rand(ctx, x.shape, { seed: 1 });
  return mul(x, noise);
}

async function gradient(
  body: (ctx: Context, x: Tensor) => Tensor,
): Promise<{ output: number[]; gradient: number[]; next: number }> {
  const ctx = (await referenceWorld(1))[0]!;
  const x = ones(ctx, [3]);
  x.requiresGrad = true;
  using y = body(ctx, x);
  using laterNoise = addNoise(ctx, x); // drawn between forward and backward
  using noisySum = add(y, laterNoise);
  using loss = sum(noisySum);
  loss.backward();
  return {
    output: Array.from(await noisySum.read()),
    gradient: Array.from(await x.grad!.read()),
    next: ctx.randomStream,
  };
}

const runTwice = (ctx: Context, x: Tensor): Tensor => addNoise(ctx, addNoise(ctx, x));

test("checkpoint recomputes its body with the same random numbers and does not affect later draws", async () => {
  const plainResult = await gradient(runTwice);
  expect(plainResult.gradient).toEqual(plainResult.output);
  expect(plainResult.next).toBe(3);
  expect(await gradient((ctx, x) => checkpoint((each) => runTwice(ctx, each), x))).toEqual(plainResult);
});

test("nested checkpoints recompute their bodies with the same random numbers", async () => {
  const plainResult = await gradient((ctx, x) => addNoise(ctx, runTwice(ctx, addNoise(ctx, x))));
  const nestedResult = await gradient((ctx, x) =>
    checkpoint((each) => {
      using innerCheckpoint = checkpoint((innerInput) => runTwice(ctx, innerInput), addNoise(ctx, each));
      return addNoise(ctx, innerCheckpoint);
    }, x),
  );
  expect(nestedResult).toEqual(plainResult);
});

test("checkpoint recomputes with the same random numbers on a device without a context", async () => {
  const device = new ReferenceDevice();
  using x = ones(device, [3]);
  x.requiresGrad = true;
  using y = checkpoint((each) => {
    using noise = rand(device, [3]);
    return mul(each, noise);
  }, x);
  using unrelatedDraw = rand(device, [3]);
  using loss = sum(y);
  loss.backward();
  expect(await x.grad!.read()).toEqual(await y.read());
  expect(await unrelatedDraw.read()).not.toEqual(await y.read());
});

test("seeds and streams that are not integers ≥ 0 are rejected before memory is allocated", () => {
  const device = new ReferenceDevice();
  for (const drawRandom of [rand, randn]) {
    expect(() => drawRandom(device, [2], { seed: -1 })).toThrow(/seed: expected an integer ≥ 0, received -1/);
    expect(() => drawRandom(device, [2], { stream: 0.5 })).toThrow(/stream: expected an integer ≥ 0, received 0.5/);
  }
  expect(device.memory().allocated).toBe(0);
});

test("a checkpointed body that throws does not disturb the random stream", async () => {
  const ctx = (await referenceWorld(1))[0]!;
  using x = ones(ctx, [1]);
  const runFailingCheckpoint = () => checkpoint((each: Tensor) => throwInBody(each), x);
  expect(runFailingCheckpoint).toThrow("no");
  ctx.nextRandomStream();
  expect(ctx.randomStream).toBe(1);
});

test("a recomputation that draws another number of random tensors is rejected", async () => {
  const ctx = (await referenceWorld(1))[0]!;
  for (const [drawsBefore, drawsAfter] of [
    [1, 0],
    [0, 1],
    [2, 1],
  ] as const) {
    using x = ones(ctx, [2]);
    x.requiresGrad = true;
    let numDraws: number = drawsBefore;
    using y = checkpoint((each) => {
      let result = mul(each, each);
      for (let i = 0; i < numDraws; i++) result = addNoise(ctx, result);
      return result;
    }, x);
    using loss = sum(y);
    numDraws = drawsAfter;
    const { allocated } = ctx.device.memory();
    expect(() => loss.backward()).toThrow(
      `checkpoint: expected ${drawsBefore} random tensors in the recomputation, as in the original forward, received ${drawsAfter}; call train() or eval() after the backward`,
    );
    expect(x.grad).toBeNull();
    expect(ctx.device.memory().allocated).toBeLessThanOrEqual(allocated); // the backward has freed saved tensors
  }
});

function throwInBody({ shape }: Tensor): Tensor {
  throw new Error(`no [${shape}]`);
}
