import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { beforeEach, describe, expect, test } from "vitest";
import { checkpoint } from "../src/autograd/checkpoint.ts";
import { defineOp } from "../src/autograd/define-op.ts";
import { noGrad } from "../src/autograd/node.ts";
import { fromArray, ones } from "../src/creation.ts";
import { init } from "../src/init.ts";
import { Linear } from "../src/modules/linear.ts";
import { Module } from "../src/modules/module.ts";
import { createParameter } from "../src/modules/parameters.ts";
import { add } from "../src/ops/pointwise.ts";
import { keep, scope } from "../src/scope.ts";
import type { Tensor } from "../src/tensor.ts";
import { releaseOnError, runUntracked, TensorTracker, track } from "../src/tracking.ts";
import { createLeaf, readGrad, ReferenceDevice } from "./reference/index.ts";

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

let device: ReferenceDevice;
beforeEach(() => {
  device = new ReferenceDevice();
});

const allocatedBytes = () => device.memory().allocated;

describe("scope", () => {
  test("releases everything created inside except the result", async () => {
    using x = fromArray(device, [1, 2], [2]);
    const y = scope(() => x.add(x).square().scale(2));
    expect(allocatedBytes()).toBe(16);
    expect([...(await y.read())]).toEqual([8, 32]);
    y.dispose();
    expect(allocatedBytes()).toBe(8);
  });

  test("does not release tensors created outside, even if they are returned", () => {
    using x = ones(device, [2]);
    expect(scope(() => x)).toBe(x);
    scope(() => void scope(() => [x]));
    expect(x.isDisposed).toBe(false);
  });

  test("releases intermediate views, while the result keeps their memory", async () => {
    using y = scope(() => fromArray(device, [1, 2, 3, 4], [2, 2]).transpose(0, 1).slice(0, 1));
    expect(y.storage.references).toBe(1);
    expect([...(await y.read())]).toEqual([2, 4]);
  });

  test("does not release tensors returned in arrays, maps, sets and plain objects, at any depth", () => {
    const createTensor = () => ones(device, [1]);
    const result = scope(() => {
      createTensor();
      const cyclicObject: { self?: unknown; list: Tensor[] } = { list: [createTensor(), createTensor()] };
      cyclicObject.self = cyclicObject;
      const nullPrototypeObject = Object.assign(Object.create(null) as { x?: Tensor }, { x: createTensor() });
      return {
        map: new Map([["a", { x: createTensor() }]]),
        keys: new Map([[createTensor(), 1]]),
        set: new Set([createTensor()]),
        cyclic: cyclicObject,
        bare: nullPrototypeObject,
        text: "no tensor",
        none: null,
      };
    });
    const { map, keys, set, cyclic, bare } = result;
    const returnedTensors = [map.get("a")!.x, ...keys.keys(), ...set, ...cyclic.list, bare.x];
    expect(returnedTensors.map((x) => x.isDisposed)).toEqual([false, false, false, false, false, false]);
    expect(allocatedBytes()).toBe(6 * 4);
  });

  test("releases tensors held by a class instance, except those passed to `keep`", () => {
    class Holder {
      readonly x: Tensor;
      constructor(x: Tensor) {
        this.x = x;
      }
    }
    const [releasedTensor, keptTensor] = [
      scope(() => new Holder(ones(device, [1]))),
      scope(() => new Holder(keep(ones(device, [1])))),
    ];
    expect([releasedTensor.x.isDisposed, keptTensor.x.isDisposed]).toEqual([true, false]);
  });

  test("does not release tensors passed to `keep`, even in nested scopes", () => {
    let keptTensor: Tensor | undefined;
    scope(() =>
      scope(() => {
        keptTensor = keep(ones(device, [2]));
      }),
    );
    expect(keptTensor!.isDisposed).toBe(false);
    keptTensor!.dispose();
    expect(allocatedBytes()).toBe(0);
  });

  test("allows earlier release with `using`", () => {
    const y = scope(() => {
      {
        using largeTensor = ones(device, [1000]);
        largeTensor.add(largeTensor).dispose();
      }
      expect(allocatedBytes()).toBe(0);
      return ones(device, [1]);
    });
    expect(y.isDisposed).toBe(false);
  });

  test("does not keep references to tensors that were disposed in a loop", async () => {
    const tracker = new TensorTracker();
    const tensorRefs = track(tracker, () =>
      Array.from({ length: 1000 }, () => {
        using x = ones(device, [1]);
        return new WeakRef(x);
      }),
    );
    expect(allocatedBytes()).toBe(0);
    await device.stream.synchronize();
    // A WeakRef keeps its target until the current job ends.
    await new Promise((resolve) => setImmediate(resolve));
    collectGarbage();
    const numTensorsKept = tensorRefs.filter((ref) => ref.deref() !== undefined).length;
    tracker.release();
    expect(numTensorsKept).toBeLessThan(100);
  });
});

describe("use after release", () => {
  test("names the scope as the reason if a scope released the tensor", () => {
    let lostTensor: Tensor | undefined;
    scope(() => {
      lostTensor = ones(device, [2]);
    });
    expect(() => lostTensor!.read()).toThrow(
      "read: expected a tensor that is not disposed, received a tensor of shape [2] released by its scope; return the tensor from the scope, or call keep(x)",
    );
  });

  test("does not name a scope if the tensor was disposed explicitly", () => {
    const disposedTensors: Tensor[] = [ones(device, [2])];
    scope(() => disposedTensors.push(ones(device, [2])) && disposedTensors[1]!.dispose());
    disposedTensors[0]!.dispose();
    for (const tensor of disposedTensors)
      expect(() => tensor.read()).toThrow(/a disposed tensor .*; dispose a tensor after its last use/);
  });
});

describe("nested scopes", () => {
  test("the outer scope takes over what the inner scope returns", () => {
    let innerTensor: Tensor | undefined;
    const outerResult = scope(() => {
      innerTensor = scope(() => ones(device, [2]).scale(2));
      expect(innerTensor.isDisposed).toBe(false);
      expect(allocatedBytes()).toBe(8);
      return innerTensor.scale(3);
    });
    expect([innerTensor!.isDisposed, outerResult.isDisposed]).toEqual([true, false]);
    expect(allocatedBytes()).toBe(8);
  });

  test("an inner scope does not release tensors of the outer scope, even if it returns them", () => {
    const result = scope(() => {
      const x = ones(device, [2]);
      const sameTensor = scope(() => x);
      expect(sameTensor.isDisposed).toBe(false);
      return sameTensor.scale(2);
    });
    expect(result.isDisposed).toBe(false);
    expect(allocatedBytes()).toBe(8);
  });

  test("the outer scope releases what releaseOnError created", () => {
    const result = scope(() => releaseOnError(() => ones(device, [2])).scale(3));
    expect(allocatedBytes()).toBe(8);
    result.dispose();
  });

  test("tensors created in runUntracked belong to no scope", () => {
    let x: Tensor | undefined;
    scope(() => {
      x = runUntracked(() => ones(device, [1]));
    });
    expect(x!.isDisposed).toBe(false);
  });
});

describe("exceptions", () => {
  test("release everything created in each scope that they pass through", () => {
    using x = ones(device, [2]);
    const runFailingScope = () =>
      scope(() => {
        x.scale(2);
        return scope(() => {
          x.scale(3);
          throw new Error("inside");
        });
      });
    expect(runFailingScope).toThrow("inside");
    expect(allocatedBytes()).toBe(8);
  });

  test("do not affect the outer scope if they are caught inside it", () => {
    const y = scope(() => {
      const firstTensor = ones(device, [1]);
      expect(() =>
        scope(() => {
          ones(device, [100]);
          throw new Error("inside");
        }),
      ).toThrow("inside");
      expect(allocatedBytes()).toBe(4);
      return firstTensor.scale(2);
    });
    expect(y.isDisposed).toBe(false);
    expect(allocatedBytes()).toBe(4);
  });

  test("release the memory of a failed operation", () => {
    const failing = defineOp({
      name: "failing",
      forward([x]: [Tensor]) {
        x.device.empty([100], "float32");
        throw new Error("half way");
      },
      backward: () => [null],
    });
    using x = ones(device, [1]);
    scope(() => {
      expect(() => failing([x], undefined)).toThrow("half way");
      expect(allocatedBytes()).toBe(4);
    });
  });
});

describe("promises", () => {
  const message = /^scope: expected a synchronous function, received a promise; return tensors and await outside/;

  test("are rejected as a result, after everything is released", () => {
    let x: Tensor | undefined;
    const runAsyncScope = () =>
      scope(async () => {
        x = ones(device, [2]);
        await Promise.resolve();
        return x.scale(2);
      });
    expect(runAsyncScope).toThrow(message);
    expect(x!.isDisposed).toBe(true);
    expect(allocatedBytes()).toBe(0);
  });

  test("are rejected within a container, and all other tensors in it are released", () => {
    const outer = scope(() => {
      expect(() => scope(() => ({ loss: ones(device, [1]), value: Promise.resolve(1) }))).toThrow(message);
      // oxlint-disable-next-line unicorn/no-thenable -- a promise of another library
      expect(() => scope(() => [ones(device, [1]), { then() {} }])).toThrow(message);
      expect(allocatedBytes()).toBe(0);
      return ones(device, [1]);
    });
    expect(outer.isDisposed).toBe(false);
  });

  test("do not cause unhandled rejections if they fail because of released tensors", async () => {
    const unhandledErrors: unknown[] = [];
    const recordUnhandled = (reason: unknown) => unhandledErrors.push(reason);
    process.on("unhandledRejection", recordUnhandled);
    try {
      expect(() =>
        scope(async () => {
          const x = ones(device, [1]);
          await Promise.resolve();
          return x.scale(2);
        }),
      ).toThrow(message);
      await new Promise((resolve) => setImmediate(resolve));
      expect(unhandledErrors).toEqual([]);
    } finally {
      process.off("unhandledRejection", recordUnhandled);
    }
  });

  test("tensors created after an await belong to no scope", async () => {
    const lateTensor = (async () => {
      await Promise.resolve();
      return ones(device, [1]);
    })();
    scope(() => ones(device, [1]));
    using x = await lateTensor;
    expect([x.isDisposed, x.owner]).toEqual([false, null]);
  });
});

describe("autograd", () => {
  test("backward runs after the scope has ended and leaves no memory allocated", async () => {
    const x = createLeaf(device, [1, 2]);
    {
      using loss = scope(() => {
        const y = x.mul(x).tanh();
        return y.square().add(y).sum();
      });
      loss.backward();
    }
    const t = [1, 2].map((value) => Math.tanh(value * value));
    const expected = t.map((y, i) => (2 * y + 1) * (1 - y * y) * 2 * (i + 1));
    (await readGrad(x)).forEach((value, i) => expect(value).toBeCloseTo(expected[i]!, 5));
    x.grad!.dispose();
    x.dispose();
    expect(allocatedBytes()).toBe(0);
  });

  test("a graph without a backward is freed with the scope", () => {
    using x = createLeaf(device, [1, 2]);
    scope(() => {
      x.square().tanh().sum();
    });
    expect(allocatedBytes()).toBe(8);
  });

  test("gradients survive a scope around a whole step, and everything else is released", async () => {
    const x = createLeaf(device, [3]);
    scope(() => x.square().sum().backward());
    expect(await readGrad(x)).toEqual([6]);
    expect(allocatedBytes()).toBe(8);
  });

  test("gradients accumulate in place over several scopes", async () => {
    const x = createLeaf(device, [1, 2]);
    let firstTensor: Tensor | null = null;
    for (let step = 1; step <= 3; step++) {
      scope(() => x.scale(step).sum().backward());
      firstTensor ??= x.grad;
    }
    expect(await readGrad(x)).toEqual([6, 6]);
    expect(x.grad).toBe(firstTensor);
    expect(allocatedBytes()).toBe(16);
  });

  test("gradients accumulate over micro-batches in one scope", async () => {
    const x = createLeaf(device, [1, 2]);
    scope(() => {
      for (let i = 1; i <= 2; i++) scope(() => x.square().scale(i).sum()).backward();
    });
    expect(await readGrad(x)).toEqual([6, 12]);
    expect(allocatedBytes()).toBe(16);
  });

  test("a gradient set inside a scope survives it", () => {
    const x = createLeaf(device, [1]);
    scope(() => {
      x.grad = ones(device, [1]);
    });
    expect(x.grad!.isDisposed).toBe(false);
  });

  test("a checkpoint keeps only its inputs, and its body needs no `using`", async () => {
    const x = createLeaf(device, [1, 2, 3, 4]);
    using y = scope(() => checkpoint((each) => each.square().tanh().square(), x.scale(1)));
    // x, y, and the saved input of the checkpoint.
    expect(allocatedBytes()).toBe(3 * 16);
    using loss = scope(() => y.sum());
    device.resetPeakMemory();
    loss.backward();
    const values = [1, 2, 3, 4].map((value) => {
      const t = Math.tanh(value * value);
      return 2 * t * (1 - t * t) * 2 * value;
    });
    (await readGrad(x)).forEach((value, i) => expect(value).toBeCloseTo(values[i]!, 5));
    // x, y, the loss, and the gradient of x.
    expect(allocatedBytes()).toBe(16 + 16 + 4 + 16);
  });

  test("a checkpoint whose body returns its input works within a scope", async () => {
    const x = createLeaf(device, [5]);
    using y = scope(() => checkpoint((each) => each, x.scale(2)).sum());
    y.backward();
    expect(await readGrad(x)).toEqual([2]);
  });
});

describe("modules", () => {
  class DeepModule extends Module {
    readonly calls: string[] = [];
    forward(x: Tensor): Tensor {
      this.calls.push("base");
      return add(x.square(), x.scale(2));
    }
  }

  class OverrideModule extends DeepModule {
    override forward(x: Tensor): Tensor {
      this.calls.push("override");
      return super.forward(x).tanh();
    }
  }

  test("every forward runs in a scope, including an override and the forward it calls with super", () => {
    using x = ones(device, [2]);
    const module = new OverrideModule();
    using y = module.forward(x);
    expect(y.isDisposed).toBe(false);
    expect(module.calls).toEqual(["override", "base"]);
    expect(allocatedBytes()).toBe(16);
  });

  test("forward cannot be replaced by a field or an assignment", () => {
    class FieldModule extends Module {
      forward = (x: Tensor): Tensor => x.square();
    }
    expect(() => new FieldModule()).toThrow(TypeError);
    const module = new DeepModule();
    expect(() => {
      module.forward = (x) => x;
    }).toThrow(TypeError);
  });

  test("forward may return a container, including its input", () => {
    class SeveralOutputs extends Module {
      forward(x: Tensor): { readonly same: Tensor; readonly outputs: readonly Tensor[] } {
        return { same: x, outputs: [x.square(), x.add(x)] };
      }
    }
    using x = ones(device, [1]);
    const { same: returnedInput, outputs: parts } = new SeveralOutputs().forward(x);
    expect(returnedInput).toBe(x);
    expect([returnedInput, ...parts].map((each) => each.isDisposed)).toEqual([false, false, false]);
  });

  test("an asynchronous forward runs without a scope", async () => {
    class AsyncForward extends Module {
      async forward(x: Tensor): Promise<Tensor> {
        using y = x.square();
        await y.read();
        return y.scale(2);
      }
    }
    using x = ones(device, [2]);
    using y = await new AsyncForward().forward(x);
    expect([...(await y.read())]).toEqual([2, 2]);
    expect(allocatedBytes()).toBe(16);
  });

  test("the enclosing scope releases what an asynchronous forward created before its first await", async () => {
    let started: Tensor | undefined;
    class AsyncForward extends Module {
      async forward(x: Tensor): Promise<void> {
        started = x.square();
        await Promise.resolve();
      }
    }
    using x = ones(device, [2]);
    let completed: Promise<void> | undefined;
    scope(() => {
      completed = new AsyncForward().forward(x);
      expect(started!.isDisposed).toBe(false);
    });
    expect(started!.isDisposed).toBe(true);
    await completed;
    expect(allocatedBytes()).toBe(8);
  });

  test("parameters and buffers created inside a scope live as long as the module", async () => {
    await using ctx = await init({ device, rank: 0, worldSize: 1 });
    class ScaledModule extends Module {
      readonly inner = this.addChild("inner", new Linear(ctx, 2, 2));
      readonly own = this.addParameter("own", ones(ctx, [2]));
      readonly table = this.addBuffer("table", fromArray(ctx, [1, 2], [2]));
      forward(x: Tensor): Tensor {
        return this.inner.forward(x).mul(this.own).add(this.table);
      }
    }
    const module = scope(() => new ScaledModule());
    expect([...module.stateDict()].map(([name, x]) => [name, x.isDisposed])).toEqual([
      ["own", false],
      ["inner.weight", false],
      ["inner.bias", false],
      ["table", false],
    ]);
    expect(module.namedBuffers().map(([name, { requiresGrad }]) => [name, requiresGrad])).toEqual([["table", false]]);
    expect(() => module.loadStateDict(new Map([["table", module.table]]), { strict: false })).not.toThrow();
    module.dispose();
    expect(module.table.isDisposed).toBe(true);
    expect(allocatedBytes()).toBe(0);
    expect(scope(() => createParameter(ctx, [1], { initial: { kind: "constant", value: 1 } })).isDisposed).toBe(false);
  });

  test("the result of a module belongs to the calling scope", () => {
    let innerTensor: Tensor | undefined;
    using x = ones(device, [1]);
    const y = noGrad(() =>
      scope(() => {
        innerTensor = new DeepModule().forward(x);
        return innerTensor.scale(2);
      }),
    );
    expect([innerTensor!.isDisposed, y.isDisposed]).toEqual([true, false]);
  });
});
