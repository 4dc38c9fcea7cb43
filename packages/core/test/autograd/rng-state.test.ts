import { expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import type { Context } from "../../src/context.ts";
import { ones } from "../../src/creation.ts";
import { rand, randn } from "../../src/random.ts";
import { add, mul } from "../../src/ops/pointwise.ts";
import { sum } from "../../src/ops/reduction.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice, referenceWorld } from "../reference/index.ts";

/** x times random numbers: the gradient shows which were drawn. */
function withNoise(ctx: Context, x: Tensor): Tensor {
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
  using other = withNoise(ctx, x); // drawn between forward and backward
  using both = add(y, other);
  using loss = sum(both);
  loss.backward();
  return {
    output: Array.from(await both.read()),
    gradient: Array.from(await x.grad!.read()),
    next: ctx.randomStream,
  };
}

const runTwice = (ctx: Context, x: Tensor): Tensor => withNoise(ctx, withNoise(ctx, x));

test("random tensors in a checkpointed body are the same the second time, and no number is drawn twice", async () => {
  const plain = await gradient(runTwice);
  expect(plain.gradient).toEqual(plain.output);
  expect(plain.next).toBe(3);
  expect(await gradient((ctx, x) => checkpoint((each) => runTwice(ctx, each), x))).toEqual(plain);
});

test("so they are in bodies within bodies", async () => {
  const plain = await gradient((ctx, x) => withNoise(ctx, runTwice(ctx, withNoise(ctx, x))));
  const nested = await gradient((ctx, x) =>
    checkpoint((each) => {
      using inner = checkpoint((again) => runTwice(ctx, again), withNoise(ctx, each));
      return withNoise(ctx, inner);
    }, x),
  );
  expect(nested).toEqual(plain);
});

test("so they are on a device without a context", async () => {
  const device = new ReferenceDevice();
  using x = ones(device, [3]);
  x.requiresGrad = true;
  using y = checkpoint((each) => {
    using noise = rand(device, [3]);
    return mul(each, noise);
  }, x);
  using other = rand(device, [3]);
  using loss = sum(y);
  loss.backward();
  expect(await x.grad!.read()).toEqual(await y.read());
  expect(await other.read()).not.toEqual(await y.read());
});

test("seeds and streams that are no integers are rejected before anything is made", () => {
  const device = new ReferenceDevice();
  for (const draw of [rand, randn]) {
    expect(() => draw(device, [2], { seed: -1 })).toThrow(/seed: expected an integer ≥ 0, received -1/);
    expect(() => draw(device, [2], { stream: 0.5 })).toThrow(/stream: expected an integer ≥ 0, received 0.5/);
  }
  expect(device.memory().allocated).toBe(0);
});

test("a body that fails leaves no trace", async () => {
  const ctx = (await referenceWorld(1))[0]!;
  using x = ones(ctx, [1]);
  const failing = () => checkpoint((each: Tensor) => fail(each), x);
  expect(failing).toThrow("no");
  ctx.nextRandomStream();
  expect(ctx.randomStream).toBe(1);
});

function fail({ shape }: Tensor): Tensor {
  throw new Error(`no [${shape}]`);
}
