import { beforeEach, describe, expect, test } from "vitest";
import type { Context } from "../../src/context.ts";
import { fromArray, ones } from "../../src/creation.ts";
import { DisposedError, OptionError, ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { Linear } from "../../src/modules/linear.ts";
import { Module } from "../../src/modules/module.ts";
import { reduceGradients } from "../../src/modules/parameters.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "../reference/index.ts";

let ctx: Context;
beforeEach(async () => {
  ctx = await init({ device: new ReferenceDevice(), seed: 3 });
});

function layer(): Linear {
  const linear = new Linear(ctx, 2, 1, { bias: false });
  ctx.device.write(linear.weight, [1, 2]);
  return linear;
}

describe("forward hooks", () => {
  test("change arguments and results in the order of registration, and are differentiated", async () => {
    const linear = layer();
    const calls: string[] = [];
    linear.registerForwardPreHook(([x]) => {
      calls.push("first");
      return [(x as Tensor).scale(3)];
    });
    linear.registerForwardPreHook((args) => {
      calls.push("second");
      return args;
    });
    linear.registerForwardHook((y) => {
      calls.push("after");
      return (y as Tensor).square();
    });
    const x = ones(ctx, [1, 2]);
    x.requiresGrad = true;
    const y = linear.forward(x);
    expect(calls).toEqual(["first", "second", "after"]);
    expect(await y.item()).toBe(81);
    y.sum().backward();
    // d (3 x·w)² / dx = 2 · 9 · 3 w
    expect(Array.from(await x.grad!.read())).toEqual([54, 108]);
  });

  test("are passed the module, and the arguments that the pre-hooks returned", async () => {
    const linear = layer();
    const calls: unknown[][] = [];
    linear.registerForwardPreHook((...args) => {
      calls.push(args);
      return [((args[0] as readonly Tensor[])[0] as Tensor).scale(3)];
    });
    linear.registerForwardHook((...args) => {
      calls.push(args);
      expect((args[1][0] as Tensor).isDisposed).toBe(false);
    });
    const x = ones(ctx, [1, 2]);
    const y = linear.forward(x);
    expect(await y.item()).toBe(9);
    const [[preArgs, preModule], [output, args, module]] = calls as [unknown[], unknown[]];
    expect(preArgs).toEqual([x]);
    expect([preModule, module]).toEqual([linear, linear]);
    expect(output).toBe(y);
    expect(args).toHaveLength(1);
    expect((args as readonly unknown[])[0]).not.toBe(x);
  });

  test("are removed by their handles, each registration of a function separately", async () => {
    const linear = layer();
    const double = (y: unknown) => (y as Tensor).scale(2);
    const x = ones(ctx, [1, 2]);
    const handles = [linear.registerForwardHook(double), linear.registerForwardHook(double)];
    handles[0]!.remove();
    handles[0]!.remove();
    expect(await linear.forward(x).item()).toBe(6);
    {
      using handle = linear.registerForwardPreHook(([each]) => [(each as Tensor).scale(5)]);
      expect(typeof handle.remove).toBe("function");
      expect(await linear.forward(x).item()).toBe(30);
    }
    expect(await linear.forward(x).item()).toBe(6);
    expect(linear.hasForwardHooks).toBe(true);
    handles[1]!.remove();
    expect(linear.hasForwardHooks).toBe(false);
    expect(await linear.forward(x).item()).toBe(3);
  });

  test("run once if they remove themselves, without skipping the next one", async () => {
    const linear = layer();
    const calls: string[] = [];
    for (const name of ["a", "b"]) {
      const preHandle = linear.registerForwardPreHook(() => {
        calls.push(`before ${name}`);
        preHandle.remove();
      });
      const handle = linear.registerForwardHook(() => {
        calls.push(`after ${name}`);
        handle.remove();
      });
    }
    const x = ones(ctx, [1, 2]);
    linear.forward(x);
    linear.forward(x);
    expect(calls).toEqual(["before a", "before b", "after a", "after b"]);
  });

  test("leave arguments and results unchanged if they return nothing", async () => {
    const linear = layer();
    const seenShapes: (readonly number[])[] = [];
    linear.registerForwardPreHook(([x]) => {
      seenShapes.push((x as Tensor).shape);
    });
    linear.registerForwardHook((y) => {
      seenShapes.push((y as Tensor).shape);
    });
    expect(await linear.forward(ones(ctx, [1, 2])).item()).toBe(3);
    expect(seenShapes).toEqual([
      [1, 2],
      [1, 1],
    ]);
  });

  test("run in the scope of the forward, and must be functions", () => {
    const linear = layer();
    let innerOutput: Tensor | undefined;
    linear.registerForwardHook((y) => {
      innerOutput = (y as Tensor).neg();
      return y;
    });
    linear.forward(ones(ctx, [1, 2]));
    expect(innerOutput!.isDisposed).toBe(true);
    expect(() => linear.registerForwardHook(1 as never)).toThrow(OptionError);
    expect(() => linear.registerForwardPreHook(null as never)).toThrow(OptionError);
  });

  test("reject arguments that are not an array, and a promise instead of the result", async () => {
    using x = ones(ctx, [1, 2]);
    const preHooks = [
      {
        hook: () => x as never,
        message: /^Linear: forward pre-hook: expected an array of the arguments .* such as \[x\]$/,
      },
      { hook: async (args: unknown) => args as never, message: /received a Promise; pass a synchronous function$/ },
    ];
    for (const { hook, message } of preHooks) {
      const linear = layer();
      linear.registerForwardPreHook(hook as never);
      expect(() => linear.forward(x)).toThrow(message);
    }
    const linear = layer();
    linear.registerForwardHook(async () => {});
    expect(() => linear.forward(x)).toThrow(
      /^Linear: forward hook: expected a new result .* received a promise, as of an async/,
    );

    class AsyncLayer extends Module {
      async forward(value: number): Promise<number> {
        return value + 1;
      }
    }
    const asyncLayer = new AsyncLayer();
    asyncLayer.registerForwardHook(async (output) => ((await output) as number) * 2);
    expect(await asyncLayer.forward(1)).toBe(4);
  });
});

test("a resource is disposed once with its module", () => {
  const linear = layer();
  let numDisposed = 0;
  linear.addResource({ [Symbol.dispose]: () => void numDisposed++ });
  linear.dispose();
  linear.dispose();
  expect(numDisposed).toBe(1);
  expect(() => linear.addResource({} as never)).toThrow(OptionError);
});

describe("setData", () => {
  test("replaces the memory of a tensor, while views and saved tensors keep the old memory", async () => {
    const [x, buffer] = [fromArray(ctx, [1, 2, 3, 4], [2, 2]), fromArray(ctx, [9, 5, 6, 7, 8], [5])];
    x.requiresGrad = true;
    const [view, y] = [x.slice(0, 1), x.square().sum()];
    // This device resolves a tensor's memory when work runs, native devices when work is enqueued.
    await ctx.device.stream.synchronize();
    x.setData(buffer.slice(0, 1).reshape([2, 2]));
    expect(Array.from(await x.read())).toEqual([5, 6, 7, 8]);
    expect(Array.from(await view.read())).toEqual([3, 4]);
    y.backward();
    expect(Array.from(await x.grad!.read())).toEqual([2, 4, 6, 8]);
    buffer.dispose();
    expect(Array.from(await x.read())).toEqual([5, 6, 7, 8]);
    ctx.device.kernels.fill(x, 1);
    expect(Array.from(await x.read())).toEqual([1, 1, 1, 1]);
  });

  test("rejects another shape or dtype, a non-contiguous tensor and other values", () => {
    const x = ones(ctx, [2, 3]);
    expect(() => x.setData(ones(ctx, [3, 2]))).toThrow(ShapeError);
    expect(() => x.setData(ones(ctx, [2, 3], { dtype: "bfloat16" }))).toThrow(
      /received \[2,3\] float32 on .* and \[2,3\] bfloat16 on /,
    );
    expect(() => x.setData(ones(ctx, [3, 2]).transpose(0, 1))).toThrow(ShapeError);
    expect(() => x.setData(1 as never)).toThrow(OptionError);
  });

  test("rejects a tensor of another device, and a disposed one", () => {
    const x = ones(ctx, [2, 3]);
    expect(() => x.setData(ones(new ReferenceDevice(), [2, 3]))).toThrow(ShapeError);
    const disposed = ones(ctx, [2, 3]);
    disposed.dispose();
    expect(() => x.setData(disposed)).toThrow(DisposedError);
  });

  test("frees the previous memory if no other tensor shares it", () => {
    const [x, other] = [ones(ctx, [2, 3]), ones(ctx, [2, 3])];
    const { allocated } = ctx.device.memory();
    x.setData(other);
    expect(ctx.device.memory().allocated).toBe(allocated - 24);
    x.dispose();
    other.dispose();
    expect(ctx.device.memory().allocated).toBe(allocated - 48);
  });
});

test("reduceGradients calls each reducer once and skips its parameters", () => {
  const linear = new Linear(ctx, 2, 1);
  let [numReductions, numZeroed] = [0, 0];
  const reducer = { reduceGradients: () => void numReductions++, zeroGrad: () => void numZeroed++ };
  for (const parameter of linear.parameters()) parameter.replication = { ranks: 2, hasLocalGrad: true, reducer };
  reduceGradients(ctx, linear);
  expect(numReductions).toBe(1);
  expect(linear.weight.grad).toBe(null);
  linear.zeroGrad();
  expect(numZeroed).toBeGreaterThan(0);
});

test("storage of a TypeScript device cannot release its memory", () => {
  const x = ones(ctx, [2]);
  expect(x.storage.isReleased).toBe(false);
  expect(() => x.storage.releaseMemory()).toThrow(/a storage whose memory can be released.*use a native device/);
});
