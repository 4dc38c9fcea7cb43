// State of optimizers: its update when parameters are loaded, and its contents.
import { type Context, type DType, fromArray, Module, type Tensor } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { AdamW, linearDecay, NonFiniteError, ScheduleFreeAdamW } from "../src/index.ts";
import { PointModel } from "./reference/point-model.ts";
import { onOneRank } from "./reference/world.ts";

describe("weights that are loaded after the optimizer was created", () => {
  const load = (ctx: Context, model: PointModel, values: readonly number[], dtype: DType = "float32"): void => {
    using x = fromArray(ctx, values, [values.length], { dtype });
    model.loadStateDict(new Map([["x", x]]));
  };

  test("are the start of a schedule-free optimizer, and are rejected in evaluation mode", () =>
    onOneRank(async (ctx) => {
      using model = new PointModel(fromArray(ctx, [1, 1], [2]));
      using optimizer = new ScheduleFreeAdamW(model, { lr: 0.01 });
      load(ctx, model, [5, 5]);
      model.x.grad = fromArray(ctx, [1, 1], [2]);
      optimizer.step();
      for (const value of await model.x.read()) expect(value).toBeCloseTo(4.99, 4);
      optimizer.eval();
      load(ctx, model, [3, 3]);
      expect(() => optimizer.train()).toThrow(/expected parameters as eval\(\) left them, received "x"/);
      optimizer.zeroGrad();
    }));

  test("replace the elements of the float32 master copy whose 16 bits differ", () =>
    onOneRank(async (ctx) => {
      const dtype = "bfloat16";
      using model = new PointModel(fromArray(ctx, [1, 1, 1, 1], [4], { dtype }));
      using optimizer = new AdamW(model, { lr: 1e-4, weightDecay: 0 });
      const step = (gradient: readonly number[]): void => {
        model.x.grad = fromArray(ctx, gradient, [4], { dtype });
        optimizer.step();
        optimizer.zeroGrad();
      };
      step([1, 1, Number.NaN, 1]);
      const master = optimizer.stateDict().tensors.get("x.master") as Tensor;
      const kept = (await master.read())[0]!;
      expect(kept).toBeCloseTo(0.9999, 6);
      load(ctx, model, [1, 5, 0.001, -2], dtype);
      const bits = await model.x.read();
      expect(optimizer.stateDict().tensors.get("x.master")).toBe(master);
      expect(Array.from(await master.read())).toEqual([kept, 5, bits[2], -2]);
      step([0, 0, 0, 0]);
      expect((await model.x.read())[1]).toBe(5);
    }));
});

test("a gradient of a parameter that was frozen when the optimizer was created is rejected", () =>
  onOneRank((ctx) => {
    using model = new PointModel(fromArray(ctx, [1, 1], [2]));
    model.x.requiresGrad = false;
    using optimizer = new AdamW(model);
    optimizer.step();
    model.x.requiresGrad = true;
    model.x.grad = fromArray(ctx, [1, 1], [2]);
    expect(() => optimizer.step()).toThrow(
      /expected gradients only of parameters that required one .* received a gradient of "x", which was frozen then; create the optimizer after/,
    );
    model.x.grad.dispose();
  }));

test("a state with invalid steps is rejected, and loading a valid one clears an earlier failure", () =>
  onOneRank(async (ctx) => {
    using model = new PointModel(fromArray(ctx, [1, 1], [2]));
    using optimizer = new AdamW(model, { errorIfNonFinite: true });
    const state = optimizer.stateDict();
    for (const invalidSteps of [-1, 2.5])
      expect(() => optimizer.loadStateDict({ ...state, numbers: { steps: invalidSteps } })).toThrow(
        /expected an integer steps ≥ 0/,
      );
    model.x.grad = fromArray(ctx, [1, Number.NaN], [2]);
    optimizer.step();
    await expect(optimizer.assertFinite()).rejects.toThrow(NonFiniteError);
    optimizer.loadStateDict(state);
    model.x.grad.dispose();
    model.x.grad = fromArray(ctx, [1, 1], [2]);
    optimizer.step();
    await optimizer.assertFinite();
    optimizer.zeroGrad();
  }));

test("a parameter counts its own steps from its first gradient, even if the optimizer state was loaded", () =>
  onOneRank(async (ctx) => {
    class TwoPoints extends Module {
      readonly early = this.addParameter("early", fromArray(ctx, [0], [1]));
      readonly late = this.addParameter("late", fromArray(ctx, [0], [1]));
    }
    using model = new TwoPoints();
    using first = new AdamW(model, { lr: 0.1, weightDecay: 0 });
    for (let step = 0; step < 100; step++) {
      model.early.grad = fromArray(ctx, [1], [1]);
      first.step();
      first.zeroGrad();
    }
    const state = first.stateDict();
    expect(state.numbers).toEqual({ steps: 100, "late.step": 0 });
    using second = new AdamW(model, { lr: 0.1, weightDecay: 0 });
    second.loadStateDict(state);
    model.late.grad = fromArray(ctx, [1], [1]);
    second.step();
    expect(await model.late.item()).toBeCloseTo(-0.1, 6);
    expect(second.stateDict().numbers).toEqual({ steps: 101, "early.step": 100, "late.step": 1 });
    second.zeroGrad();
  }));

test("the state contains a learning rate that was assigned, and restores the option if none was", () =>
  onOneRank((ctx) => {
    using model = new PointModel(fromArray(ctx, [1, 1], [2]));
    using optimizer = new AdamW(model, { lr: 0.1, schedule: linearDecay(4) });
    const initialState = optimizer.stateDict();
    expect(initialState.numbers).toEqual({ steps: 0 });
    optimizer.step();
    expect(optimizer.stateDict().numbers).not.toHaveProperty("lr");
    optimizer.lr = 0.02;
    const state = optimizer.stateDict();
    expect(state.numbers).toMatchObject({ steps: 1, lr: 0.02 });
    using resumed = new AdamW(model, { lr: 0.1, schedule: linearDecay(4) });
    resumed.loadStateDict(state, { dryRun: true });
    expect(resumed.lr).toBe(0.1);
    resumed.loadStateDict(state);
    expect(resumed.lr).toBe(0.02);
    expect(resumed.learningRate).toBe(optimizer.learningRate);
    expect(resumed.stateDict().numbers).toMatchObject({ steps: 1, lr: 0.02 });
    resumed.loadStateDict(initialState);
    expect(resumed.lr).toBe(0.1);
    for (const lr of [-1, Number.NaN, null as unknown as number]) {
      expect(() => resumed.loadStateDict({ ...state, numbers: { steps: 1, lr } })).toThrow(
        /AdamW\.loadStateDict: expected a finite lr ≥ 0, received/,
      );
    }
    expect(resumed.lr).toBe(0.1);
  }));
