import { describe, expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import { fromArray, ones, zeros } from "../../src/creation.ts";
import { add, mul, scale } from "../../src/ops/pointwise.ts";
import { scope } from "../../src/scope.ts";
import type { Tensor } from "../../src/tensor.ts";
import { createLeaf, ReferenceDevice } from "../reference/index.ts";

// A backward adds to the existing gradient of a leaf in place, as in PyTorch.

const device = new ReferenceDevice();

const read = async (x: Tensor) => [...(await x.read())];

/** Runs a backward that adds `gradient` to the gradient of x. */
function addToGrad(x: Tensor, gradient: readonly number[]): void {
  using y = scale(x, 1);
  using dOut = fromArray(device, gradient, x.shape);
  y.backward(dOut);
}

describe("the tensor that is the gradient of a leaf", () => {
  test("remains valid and accumulates, whether or not a view of it exists", async () => {
    for (const hasView of [false, true]) {
      using x = createLeaf(device, [1, 2]);
      addToGrad(x, [10, 20]);
      using gradient = x.grad!;
      using view = hasView ? gradient.detach() : null;
      for (let i = 0; i < 2; i++) addToGrad(x, [1, 2]);
      expect(x.grad).toBe(gradient);
      expect(gradient.isDisposed).toBe(false);
      expect(await read(gradient)).toEqual([12, 24]);
      if (view) expect(await read(view)).toEqual([12, 24]);
    }
  });

  test("accumulates into a part of another tensor, also if it is not contiguous", async () => {
    using bucket = zeros(device, [3, 4]);
    using x = createLeaf(device, [0, 0]);
    using y = createLeaf(device, [0, 0, 0, 0], [2, 2]);
    x.grad = bucket.slice(0, 2).slice(1, 0, 4, 3).reshape([2]);
    y.grad = bucket.slice(0, 0, 2).slice(1, 1, 3).transpose(0, 1);
    for (let i = 0; i < 2; i++) addToGrad(x, [1, 2]);
    addToGrad(y, [1, 2, 3, 4]);
    expect(await read(bucket)).toEqual([0, 1, 3, 0, 0, 2, 4, 0, 2, 0, 0, 4]);
  });

  test("is replaced if several of its elements share memory", async () => {
    using x = createLeaf(device, [0, 0]);
    using one = ones(device, [1]);
    x.grad = one.expand([2]);
    addToGrad(x, [1, 2]);
    expect(await read(x.grad)).toEqual([2, 3]);
    expect(await read(one)).toEqual([1]);
  });

  test("may be passed to backward", async () => {
    using x = createLeaf(device, [1, 2, 3, 4], [2, 2]);
    using w = createLeaf(device, [0, 0, 0, 0], [2, 2]);
    addToGrad(x, [1, 10, 100, 1000]);
    // x is an operand twice, and both leaves receive the gradient of the sum without a copy.
    using sum = scope(() => add(add(x, x.transpose(0, 1)), add(x, w)));
    sum.backward(x.grad!);
    expect(await read(x.grad!)).toEqual([1 + 3, 10 + 20 + 100, 100 + 200 + 10, 1000 + 3000]);
    expect(await read(w.grad!)).toEqual([1, 10, 100, 1000]);
  });

  test("may be passed to the backward of a checkpoint", async () => {
    using x = createLeaf(device, [1, 2, 3, 4], [2, 2]);
    using w = createLeaf(device, [0, 0, 0, 0], [2, 2]);
    addToGrad(x, [1, 10, 100, 1000]);
    using sum = scope(() => checkpoint((w) => add(add(x, x.transpose(0, 1)), w), w));
    sum.backward(x.grad!);
    expect(await read(x.grad!)).toEqual([1 + 2, 10 + 10 + 100, 100 + 100 + 10, 1000 + 2000]);
    expect(await read(w.grad!)).toEqual([1, 10, 100, 1000]);
  });
});

test("a backward rejects a saved gradient that another backward has added to", () => {
  using x = createLeaf(device, [1, 2]);
  using w = createLeaf(device, [3, 4]);
  addToGrad(x, [1, 1]);
  using product = mul(x.grad!, w);
  addToGrad(x, [1, 1]);
  using dOut = ones(device, [2]);
  expect(() => product.backward(dOut)).toThrow(
    /backward of mul: expected .* as saved in the forward, .* mutated by "binary"/,
  );
});

test("accumulation allocates and keeps no memory", () => {
  using ownDevice = new ReferenceDevice();
  using x = ones(ownDevice, [64]);
  x.requiresGrad = true;
  using dOut = ones(ownDevice, [64]);
  x.backward(dOut);
  using view = x.grad!.detach();
  const { allocated } = ownDevice.memory();
  ownDevice.resetPeakMemory();
  x.backward(dOut);
  expect(ownDevice.memory()).toMatchObject({ allocated, peak: allocated });
  x.backward(view);
  expect(ownDevice.memory().allocated).toBe(allocated);
  x.grad!.dispose();
});
