import { describe, expect, test } from "vitest";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { OptionError } from "../../src/errors.ts";
import { Linear } from "../../src/modules/linear.ts";
import { Module } from "../../src/modules/module.ts";
import { reduceGradients } from "../../src/modules/parameters.ts";
import { type HostTensor, type StateDict, StateDictError } from "../../src/modules/state-dict.ts";
import { scope } from "../../src/scope.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice, referenceWorld } from "../reference/index.ts";

class Pair extends Module {
  readonly first: Linear;
  readonly second: Linear;
  constructor(ctx: Context, dtype: "float32" | "bfloat16" = "float32") {
    super();
    this.first = this.addChild("first", new Linear(ctx, 2, 3, { dtype }));
    this.second = this.addChild("second", new Linear(ctx, 3, 1, { bias: false, dtype }));
  }
}

async function openContext(): Promise<Context> {
  return (await referenceWorld(1))[0]!;
}

function host(shape: readonly number[], value: number): HostTensor {
  const size = shape.reduce((product, length) => product * length, 1);
  return { dtype: "float32", shape, values: new Float32Array(size).fill(value) };
}

const validState: StateDict = new Map([
  ["first.weight", host([3, 2], 1)],
  ["first.bias", host([3], 2)],
  ["second.weight", host([1, 3], 3)],
]);

test("a state dict lists every parameter and can be loaded into another module", async () => {
  const ctx = await openContext();
  const [sourcePair, targetPair] = [new Pair(ctx), new Pair(ctx)];
  expect([...sourcePair.stateDict().keys()]).toEqual([...validState.keys()]);
  expect(targetPair.loadStateDict(sourcePair.stateDict())).toEqual({ missing: [], unexpected: [] });
  expect(await targetPair.second.weight.read()).toEqual(await sourcePair.second.weight.read());
  targetPair.loadStateDict(validState);
  expect(Array.from(await targetPair.first.bias!.read())).toEqual([2, 2, 2]);
});

test("loadStateDict rejects disposed tensors and those of another device before copying", async () => {
  const ctx = await openContext();
  const pair = new Pair(ctx);
  const weightBefore = await pair.first.weight.read();
  using otherDevice = new ReferenceDevice({ index: 5 });
  const disposedTensor = fromArray(ctx, [1, 2, 3], [1, 3]);
  disposedTensor.dispose();
  const state = new Map([
    ["first.weight", fromArray(ctx, new Float32Array(6), [3, 2])],
    ["first.bias", fromArray(otherDevice, [1, 2, 3], [3])],
    ["second.weight", disposedTensor],
  ]);
  expect(() => pair.loadStateDict(state)).toThrow(
    /"first.bias" is on reference:5, but its parameter is on reference:0: .*; "second.weight" is disposed; .*no tensor was modified/,
  );
  expect(await pair.first.weight.read()).toEqual(weightBefore);
});

test("loadStateDict reports all faults of a mismatched state and modifies no tensor", async () => {
  const ctx = await openContext();
  const pair = new Pair(ctx);
  const weightBefore = await pair.first.weight.read();
  const state = new Map(validState);
  state.delete("second.weight");
  state.set("third.weight", host([1], 0)).set("first.bias", host([4], 0));
  expect(() => pair.loadStateDict(state)).toThrow(StateDictError);
  expect(() => pair.loadStateDict(state)).toThrow(
    /Pair\.loadStateDict: expected the 3 tensors of .*, received missing "second\.weight"; unexpected "third\.weight"; "first\.bias" has shape \[4\] instead of \[3\]; .*no tensor was modified/,
  );
  expect(() => pair.loadStateDict(new Map(validState).set("first.bias", { ...host([3], 0), shape: [1, 3] }))).toThrow(
    /\[1,3\]/,
  );
  const truncatedTensor = { ...host([3], 0), values: new Float32Array(2) };
  expect(() => pair.loadStateDict(new Map(validState).set("first.bias", truncatedTensor))).toThrow(
    /shape \[3\] but 2 values/,
  );
  expect(await pair.first.weight.read()).toEqual(weightBefore);
});

test("loadStateDict rejects the result of readSafetensors with the remedy to pass its tensors", async () => {
  const model = new Pair(await openContext());
  const file = { tensors: model.stateDict(), metadata: new Map() };
  expect(() => model.loadStateDict(file as never)).toThrow(
    /: expected a Map from names to .*, received an object .*; pass its property tensors, which is such a Map$/,
  );
  expect(() => model.loadStateDict({} as never)).toThrow(/, received an empty object$/);
});

test("loadStateDict accepts other names if not strict, and converts dtypes only with cast", async () => {
  const ctx = await openContext();
  const pair = new Pair(ctx, "bfloat16");
  expect(() => pair.loadStateDict(validState)).toThrow(/float32 instead of bfloat16 \(pass cast: true to convert\)/);
  const weightBefore = await pair.second.weight.read();
  pair.loadStateDict(validState, { cast: true, dryRun: true });
  expect(await pair.second.weight.read()).toEqual(weightBefore);
  pair.loadStateDict(validState, { cast: true });
  expect(Array.from(await pair.second.weight.read())).toEqual([3, 3, 3]);
  const partialState = new Map([
    ["first.bias", host([3], 9)],
    ["other", host([1], 0)],
  ]);
  const report = pair.loadStateDict(partialState, { strict: false, cast: true });
  expect(report).toEqual({ missing: ["first.weight", "second.weight"], unexpected: ["other"] });
  expect(Array.from(await pair.first.bias!.read())).toEqual([9, 9, 9]);
});

test("reduceGradients skips frozen parameters", async () => {
  const contexts = await referenceWorld(2);
  const layers = contexts.map((ctx) => new Linear(ctx, 1, 1));
  await Promise.all(
    contexts.map(async (ctx, rank) => {
      const layer = layers[rank]!;
      layer.bias!.requiresGrad = false;
      layer.weight.grad = fromArray(ctx, [rank + 1], [1, 1]);
      reduceGradients(ctx, layer);
      expect(layer.bias!.grad).toBe(null);
      expect(Array.from(await layer.weight.grad.read())).toEqual([3]);
    }),
  );
});

describe("a buffer that is not persistent", () => {
  class Table extends Module {
    readonly weight: Tensor;
    readonly mean: Tensor;
    readonly table: Tensor;
    constructor(ctx: Context) {
      super();
      this.weight = this.addParameter("weight", fromArray(ctx, [1], [1]));
      this.table = this.addBuffer("table", fromArray(ctx, [2, 3], [2]), { persistent: false });
      this.mean = this.addBuffer("mean", fromArray(ctx, [4], [1]), { persistent: true });
    }
  }
  class Nested extends Module {
    readonly inner: Table;
    constructor(ctx: Context) {
      super();
      this.inner = this.addChild("inner", new Table(ctx));
    }
  }

  test("is a buffer of the module, but not part of the state dict, also of a parent", async () => {
    const ctx = await openContext();
    const nested = new Nested(ctx);
    expect(nested.namedBuffers().map(([name]) => name)).toEqual(["inner.table", "inner.mean"]);
    expect([...nested.stateDict().keys()]).toEqual(["inner.weight", "inner.mean"]);
    const other = new Nested(ctx);
    ctx.device.kernels.fill(nested.inner.table, 9);
    ctx.device.kernels.fill(nested.inner.mean, 9);
    expect(other.loadStateDict(nested.stateDict())).toEqual({ missing: [], unexpected: [] });
    expect(Array.from(await other.inner.table.read())).toEqual([2, 3]);
    expect(Array.from(await other.inner.mean.read())).toEqual([9]);
    expect(() => other.loadStateDict(new Map([...nested.stateDict(), ["inner.table", nested.inner.table]]))).toThrow(
      /unexpected "inner\.table"/,
    );
  });

  test("is persistent under another name if it is registered so", async () => {
    const ctx = await openContext();
    class Alias extends Module {
      readonly inner = this.addChild("inner", new Table(ctx));
      readonly alias = this.addChild(
        "alias",
        new (class extends Module {
          constructor(table: Tensor) {
            super();
            this.addBuffer("table", table);
          }
        })(this.inner.table),
      );
    }
    const model = new Alias();
    expect([...model.stateDict().keys()]).toEqual(["inner.weight", "inner.mean", "alias.table"]);
  });

  test("outlives scopes, is disposed with the module, and has valid options", async () => {
    const ctx = await openContext();
    const module = scope(() => new Table(ctx));
    expect(module.table.isDisposed).toBe(false);
    module.dispose();
    expect(module.table.isDisposed).toBe(true);
    class Invalid extends Module {
      register(options: object): void {
        this.addBuffer("x", fromArray(ctx, [1], [1]), options);
      }
    }
    const invalid = new Invalid();
    expect(() => invalid.register({ persistent: 0 })).toThrow(/Invalid: "x": persistent: expected a boolean/);
    expect(() => invalid.register({ persist: false })).toThrow(OptionError);
    expect(invalid.namedBuffers()).toEqual([]);
  });
});
