import { describe, expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import { defineOp } from "../../src/autograd/define-op.ts";
import { fromArray, ones } from "../../src/creation.ts";
import { linear } from "../../src/ops/linear.ts";
import { add, scale } from "../../src/ops/pointwise.ts";
import { scope } from "../../src/scope.ts";
import type { Tensor } from "../../src/tensor.ts";
import { createLeaf, ReferenceDevice } from "../reference/index.ts";

// Gradients in flight that share memory, and gradients that exist when a backward fails.

const read = async (x: Tensor) => [...(await x.read())];

/** Returns a copy of x. Its backward throws an error. */
const failInBackward = defineOp({
  name: "failInBackward",
  forward([x]: [Tensor]) {
    const output = x.device.empty(x.shape, x.dtype);
    x.device.kernels.copy(output, x);
    return { output, saved: {} };
  },
  backward: () => {
    throw new Error("no gradient");
  },
});

describe("a gradient that is shared", () => {
  test("by two operands is not modified by the gradient of a part of one of them", async () => {
    const device = new ReferenceDevice();
    using x = createLeaf(device, [1, 2, 3]);
    using w = createLeaf(device, [4, 5, 6]);
    using loss = scope(() => {
      const [a, b] = [scale(x, 1), scale(w, 1)];
      const part = a.slice(0, 0, 1).sum();
      // The backward of this addition, which is the latest operation, returns one tensor for both operands.
      return add(add(a, b).sum(), part);
    });
    loss.backward();
    expect(await read(x.grad!)).toEqual([2, 1, 1]);
    expect(await read(w.grad!)).toEqual([1, 1, 1]);
  });

  test("with the grad of a leaf is not modified by a checkpoint that adds to that grad", async () => {
    const device = new ReferenceDevice();
    using x = createLeaf(device, [1, 2]);
    using w = createLeaf(device, [3, 4]);
    x.grad = fromArray(device, [10, 20], [2]);
    using sum = scope(() => {
      const later = scale(w, 1);
      return add(
        later,
        scale(
          checkpoint(() => scale(x, 3)),
          1,
        ),
      );
    });
    sum.backward(x.grad);
    expect(await read(x.grad)).toEqual([10 + 30, 20 + 60]);
    expect(await read(w.grad!)).toEqual([10, 20]);
  });
});

test("a float32 grad of a 16-bit leaf that must be replaced remains float32", async () => {
  const device = new ReferenceDevice();
  using x = ones(device, [2], { dtype: "bfloat16" });
  x.requiresGrad = true;
  using small = fromArray(device, [2 ** -12], [1]);
  x.grad = small.expand([2]);
  using y = scale(x, 1);
  using dOut = ones(device, [2], { dtype: "bfloat16" });
  y.backward(dOut);
  expect(x.grad.dtype).toBe("float32");
  expect(await read(x.grad)).toEqual([1 + 2 ** -12, 1 + 2 ** -12]);
});

describe("a backward that fails releases gradients", () => {
  test("that it would have added to the grad that was passed to it", () => {
    const device = new ReferenceDevice();
    using x = createLeaf(device, [1, 2]);
    x.grad = ones(device, [2]);
    const { allocated } = device.memory();
    {
      using sum = scope(() => add(failInBackward([x], undefined), scale(x, 2)));
      expect(() => sum.backward(x.grad!)).toThrow("no gradient");
    }
    expect(device.memory().allocated).toBe(allocated);
  });

  test("of the inputs of a checkpoint", () => {
    const device = new ReferenceDevice();
    using x = createLeaf(device, [1, 2]);
    const { allocated } = device.memory();
    {
      using out = checkpoint((y) => add(failInBackward([y], undefined), scale(y, 2)), x);
      using dOut = ones(device, [2]);
      expect(() => out.backward(dOut)).toThrow("no gradient");
    }
    expect(x.grad).toBeNull();
    expect(device.memory().allocated).toBe(allocated);
  });
});

test("linear without an activation or a gate saves only its inputs", () => {
  const device = new ReferenceDevice();
  using x = ones(device, [4, 2]);
  using weight = ones(device, [3, 2]);
  using bias = ones(device, [3]);
  for (const each of [x, weight, bias]) each.requiresGrad = true;
  const { allocated } = device.memory();
  for (const b of [null, bias]) {
    using out = linear(x, weight, b);
    expect(device.memory().allocated - allocated).toBe(out.size * 4);
  }
});
