import { beforeEach, describe, expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import { defineOp } from "../../src/autograd/define-op.ts";
import { enableGrad, noGrad } from "../../src/autograd/node.ts";
import { fromArray, full, ones, zeros } from "../../src/creation.ts";
import { AutogradError, DisposedError, DTypeError, OptionError } from "../../src/errors.ts";
import { add, mul, scale, square, tanh } from "../../src/ops/pointwise.ts";
import { concatenate } from "../../src/ops/concatenate.ts";
import { sum } from "../../src/ops/reduction.ts";
import { scope } from "../../src/scope.ts";
import type { Tensor } from "../../src/tensor.ts";
import { createLeaf, readGrad, ReferenceDevice } from "../reference/index.ts";

let device: ReferenceDevice;
beforeEach(() => {
  device = new ReferenceDevice();
});

describe("the tape", () => {
  test("accumulates gradients over all paths and over several backwards", async () => {
    const x = createLeaf(device, [1, 2]);
    using y = add(mul(x, x), scale(x, 3));
    using loss = sum(y);
    loss.backward();
    expect(await readGrad(x)).toEqual([5, 7]);
    using secondSum = sum(x);
    secondSum.backward();
    expect(await readGrad(x)).toEqual([6, 8]);
  });

  test("leaves grad null for tensors that do not require a gradient", async () => {
    const x = createLeaf(device, [1]);
    const y = full(device, [1], 2);
    using z = mul(x, y);
    z.backward();
    expect(y.grad).toBeNull();
    expect(await readGrad(x)).toEqual([2]);
  });

  test("accepts a leaf as the root", async () => {
    const x = createLeaf(device, [5]);
    x.backward();
    expect(await readGrad(x)).toEqual([1]);
  });

  test("passes through disposed intermediate results", async () => {
    const x = createLeaf(device, [3]);
    const y = square(x);
    using z = square(y);
    y.dispose();
    z.backward();
    expect(await readGrad(x)).toEqual([108]);
  });

  test("supports a graph of 20 000 operations and leaves no memory allocated", async () => {
    const x = createLeaf(device, [1]);
    let y = scale(x, 1);
    for (let i = 0; i < 20_000; i++) {
      using valueBeforeWrite = y;
      y = scale(valueBeforeWrite, 1);
    }
    y.backward();
    y.dispose();
    expect(await readGrad(x)).toEqual([1]);
    x.grad!.dispose();
    x.dispose();
    expect(device.memory().allocated).toBe(0);
  });

  test("frees a long graph that is dropped without a backward", () => {
    const x = createLeaf(device, [1]);
    let y = square(x);
    for (let i = 0; i < 20_000; i++) {
      using valueBeforeWrite = y;
      y = tanh(valueBeforeWrite);
    }
    y.dispose();
    x.dispose();
    expect(device.memory().allocated).toBe(0);
  });

  test("gives each leaf a contiguous gradient with its own storage", async () => {
    const [x, y] = [createLeaf(device, [1, 2]), createLeaf(device, [3, 4])];
    using sum = add(x, y);
    using seed = ones(device, [1]);
    using expandedSeed = seed.expand([2]);
    sum.backward(expandedSeed);
    expect(x.grad!.isContiguous && y.grad!.isContiguous).toBe(true);
    expect(x.grad!.storage).not.toBe(y.grad!.storage);
    expect(seed.storage.references).toBe(2);
  });

  test("does not write to the gradient argument", async () => {
    const x = createLeaf(device, [1, 2]);
    using seed = fromArray(device, [1, 1], [2]);
    x.backward(seed);
    x.backward(seed);
    expect([...(await seed.read())]).toEqual([1, 1]);
    expect(await readGrad(x)).toEqual([2, 2]);
  });

  test("accumulates into the existing gradient in place", () => {
    const x = createLeaf(device, [1]);
    for (let i = 0; i < 2; i++) {
      using y = square(x);
      y.backward();
    }
    const { grad } = x;
    using y = square(x);
    y.backward();
    expect(x.grad).toBe(grad);
  });
});

describe("validation in autograd", () => {
  test("rejects a second backward through the same graph", () => {
    const x = createLeaf(device, [1]);
    using y = square(x);
    y.backward();
    expect(() => y.backward()).toThrow(AutogradError);
    expect(() => y.backward()).toThrow(/backward of square: .*run the forward again/);
  });

  test("rejects the backward of a tensor without gradient history", () => {
    expect(() => ones(device, [1]).backward()).toThrow(/set requiresGrad on a leaf/);
  });

  test("rejects a missing gradient for several elements, and a gradient of another shape or dtype", () => {
    const x = createLeaf(device, [1, 2]);
    using y = square(x);
    expect(() => y.backward()).toThrow(/a scalar, or a gradient argument, received \[2\]; reduce/);
    expect(() => y.backward(ones(device, [3]))).toThrow(/a gradient of shape \[2\] float32, received \[3\] float32/);
    expect(() => y.backward(ones(device, [2], { dtype: "bfloat16" }))).toThrow(/received \[2\] bfloat16/);
  });

  test("rejects a gradient of the wrong shape from a custom operation, without a leak", () => {
    const wrongShapeOp = defineOp({
      name: "wrong",
      forward: ([x]: [Tensor]) => ({ output: x.device.empty([1], "float32"), saved: {} }),
      backward: () => [zeros(device, [3])],
    });
    {
      using x = createLeaf(device, [1]);
      using y = wrongShapeOp([x], undefined);
      expect(() => y.backward()).toThrow(/backward of wrong, input 0: expected a gradient of shape \[1\]/);
    }
    expect(device.memory().allocated).toBe(0);
  });

  test("disposes a gradient that a custom operation returns for an input without requiresGrad", async () => {
    const multiply = defineOp({
      name: "multiply",
      forward: ([x, y]: [Tensor, Tensor]) => ({ output: mul(x, y), saved: { x, y } }),
      backward: ({ x, y }, dOut) => [mul(dOut, y), mul(dOut, x)],
    });
    {
      using x = createLeaf(device, [2, 3]);
      using y = fromArray(device, [5, 7], [2]);
      using product = multiply([x, y], undefined);
      using gradient = ones(device, [2]);
      product.backward(gradient);
      expect(await readGrad(x)).toEqual([5, 7]);
      expect(y.grad).toBeNull();
      x.grad!.dispose();
    }
    expect(device.memory().allocated).toBe(0);
  });

  test("rejects a disposed input", () => {
    const x = createLeaf(device, [1]);
    x.dispose();
    expect(() => square(x)).toThrow(DisposedError);
  });
});

describe("noGrad, enableGrad and detach", () => {
  test("record operations only inside enableGrad or outside noGrad, and restore the mode after an error", () => {
    const x = createLeaf(device, [1]);
    expect(noGrad(() => square(x)).node).toBeUndefined();
    expect(noGrad(() => enableGrad(() => square(x))).node).toBeDefined();
    expect(() =>
      noGrad(() => {
        throw new Error("inside");
      }),
    ).toThrow("inside");
    expect(square(x).node).toBeDefined();
  });

  test("detach removes the gradient history", () => {
    const x = createLeaf(device, [1]);
    expect(square(x).detach().requiresGrad).toBe(false);
  });
});

describe("defineOp", () => {
  test("keeps saved tensors until the backward and then disposes them", async () => {
    const freedTensors: Tensor[] = [];
    const cube = defineOp({
      name: "cube",
      forward([x]: [Tensor]) {
        const output = x.device.empty(x.shape, x.dtype);
        const squaredValues = x.device.empty(x.shape, x.dtype);
        x.device.kernels.unary("square", squaredValues, x);
        x.device.kernels.binary("mul", output, squaredValues, x);
        freedTensors.push(squaredValues);
        return { output, saved: { squared: squaredValues, x } };
      },
      backward({ squared, x }, dOut) {
        expect(x.isDisposed || squared.isDisposed).toBe(false);
        const dx = x.device.empty(x.shape, x.dtype);
        x.device.kernels.binary("mul", dx, squared, dOut);
        x.device.kernels.scalar("mul", dx, dx, 3);
        return [dx];
      },
    });
    const x = createLeaf(device, [2]);
    using y = cube([x], undefined);
    expect(freedTensors[0]!.isDisposed).toBe(false);
    y.backward();
    expect(await readGrad(x)).toEqual([12]);
    expect(freedTensors[0]!.isDisposed).toBe(true);
    noGrad(() => cube([x], undefined));
    expect(freedTensors[1]!.isDisposed).toBe(true);
  });

  test("accepts the gradient of the output as the gradient of several inputs", async () => {
    const identityOp = defineOp({
      name: "pass",
      forward: ([a]: [Tensor, Tensor]) => ({ output: scaleCopy(a), saved: {} }),
      backward: (_, dOut) => [dOut, dOut],
    });
    const [x, y] = [createLeaf(device, [1]), createLeaf(device, [2])];
    using z = identityOp([x, y], undefined);
    z.backward();
    expect(await readGrad(x)).toEqual([1]);
    expect(await readGrad(y)).toEqual([1]);
    for (const input of [x, y]) {
      input.grad!.dispose();
      input.dispose();
    }
    z.dispose();
    expect(device.memory().allocated).toBe(0);
  });
});

function scaleCopy(x: Tensor): Tensor {
  const out = x.device.empty(x.shape, x.dtype);
  x.device.kernels.copy(out, x);
  return out;
}

describe("checkpoint", () => {
  test("does not dispose an input that the body returns", async () => {
    const x = createLeaf(device, [1, 2]);
    using y = checkpoint((each) => each, x);
    using z = noGrad(() => checkpoint((each) => each, x));
    expect([x.isDisposed, y === x, z === x]).toEqual([false, false, false]);
    using loss = sum(y);
    loss.backward();
    expect(await readGrad(x)).toEqual([1, 1]);
  });

  test("does not dispose a captured tensor that the body returns, and gives it a gradient", async () => {
    const x = createLeaf(device, [1, 2]);
    using constant = ones(device, [2]);
    using y = checkpoint(() => x);
    using z = checkpoint(() => constant);
    y.backward(constant);
    expect(await readGrad(x)).toEqual([1, 1]);
    expect([x.isDisposed, y === x, constant.isDisposed, z.requiresGrad]).toEqual([false, false, false, false]);
  });

  test("keeps only its input between forward and backward", () => {
    const x = createLeaf(device, [1, 2, 3, 4]);
    using y = checkpoint((x) => {
      using a = square(x);
      using b = tanh(a);
      return square(b);
    }, x);
    // x and y, 16 bytes each, without intermediates.
    expect(device.memory().allocated).toBe(32);
    expect(y.node?.name).toBe("checkpoint");
  });

  test("records nothing if nothing requires a gradient", () => {
    using x = ones(device, [2]);
    using y = checkpoint(square, x);
    expect(y.node).toBeUndefined();
  });
});

test("10 000 training steps do not increase device memory", async () => {
  const weight = createLeaf(device, [0.5, -0.5]);
  const x = fromArray(device, [1, 2, 3, 4], [2, 2]);
  for (let step = 0; step < 10_000; step++) {
    using y = mul(x, weight);
    using z = tanh(y);
    using loss = sum(z);
    loss.backward();
    if (step % 1000 === 0) device.flush();
  }
  // The weight, its gradient, and x.
  expect(device.memory().allocated).toBe(8 + 8 + 16);
  expect(device.memory().peak).toBeLessThan(2000);
});

describe("a leaf's gradient", () => {
  test("is rejected if it is set to another shape or dtype, or to a value that is not a tensor", () => {
    const x = createLeaf(device, [1, 2]);
    expect(() => (x.grad = ones(device, [3]))).toThrow(/^grad: expected a gradient of shape \[2\], received \[3\]$/);
    expect(() => (x.grad = ones(device, [2], { dtype: "bfloat16" }))).toThrow(DTypeError);
    expect(() => (x.grad = 1 as never)).toThrow(OptionError);
    expect(x.grad).toBeNull();
    x.grad = ones(device, [2]);
    x.grad = null;
  });

  test("keeps its dtype float32 for a 16-bit leaf, even if its memory is shared", async () => {
    const x = fromArray(device, [1, 2], [2], { dtype: "bfloat16" });
    x.requiresGrad = true;
    for (const share of [false, true]) {
      const gradient = fromArray(device, [2 ** -12, 1], [2]);
      x.grad = share ? gradient.detach() : gradient;
      using y = scale(x, 2);
      y.backward(ones(device, [2], { dtype: "bfloat16" }));
      expect(x.grad.dtype).toBe("float32");
      expect(await x.grad.read()).toEqual(Float32Array.of(2 + 2 ** -12, 3));
      if (share) expect(await gradient.read()).toEqual(Float32Array.of(2 + 2 ** -12, 3));
      x.grad = null;
    }
  });

  test("does not retain the gradient of a concatenation that it was sliced from", () => {
    const small = ones(device, [1, 4]);
    small.requiresGrad = true;
    using large = ones(device, [10_000, 4]);
    using y = scope(() => sum(concatenate([small, large], 0)));
    y.backward();
    expect(small.grad!.shape).toEqual([1, 4]);
    expect(small.grad!.storage.byteLength).toBeLessThanOrEqual(4096);
  });
});

test("requiresGrad of an operation's result cannot be set to false, and detach() returns a tensor without it", () => {
  using y = square(createLeaf(device, [2]));
  expect(() => (y.requiresGrad = false)).toThrow(
    /^requiresGrad: expected a leaf, to be set to false, received the result of square; use x\.detach\(\)/,
  );
  y.requiresGrad = true;
  using detached = y.detach();
  expect(detached.requiresGrad).toBe(false);
});

test.each([noGrad, enableGrad] as const)("%o rejects async functions, but not promises", async (withMode) => {
  expect(() => withMode(async () => Promise.resolve())).toThrow(
    /expected a synchronous function, received an async function; await outside/,
  );
  using x = ones(device, [1]);
  expect(Array.from(await withMode(() => x.read()))).toEqual([1]);
});
