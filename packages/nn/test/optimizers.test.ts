import { inspect } from "node:util";
import { fromArray, full, Linear, Module, ones, OptionError, StateDictError, type Tensor, zeros } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  type AdamWOptions,
  clipGradNorm,
  constant,
  cosine,
  inverseSquareRoot,
  linearDecay,
  linearWarmup,
  ModuleList,
  multiStep,
  Optimizer,
  type OptimizerOptions,
  type OptimizerSlot,
  type Schedule,
  ScheduleFreeAdamW,
  type ScheduleFreeOptions,
} from "../src/index.ts";
import { generateNumbers, maxDifference } from "./reference/numbers.ts";
import { PointModel } from "./reference/point-model.ts";
import { onOneRank } from "./reference/world.ts";

const steps = 60;

/**
 * Parameters of the test function ½ Σ scaleᵢ (xᵢ − optimumᵢ)², whose gradient has noise that both implementations add.
 */
const [optimum, scales] = [generateNumbers(7, 1), generateNumbers(7, 2).map((x) => 10 ** (2 * x))];
const computeGradient = (x: ArrayLike<number>, step: number): number[] => {
  const noise = generateNumbers(7, 100 + step);
  return optimum.map((each, i) => Math.fround(scales[i]! * (x[i]! - each) + noise[i]!));
};
const start = generateNumbers(7, 3);

/** Returns the path of an optimizer: the parameter after each step. */
async function recordPath(
  createOptimizer: (model: PointModel) => Optimizer,
  dtype: "float32" | "bfloat16" = "float32",
): Promise<number[][]> {
  return onOneRank(async (ctx) => {
    using model = new PointModel(fromArray(ctx, start, [7], { dtype }));
    using optimizer = createOptimizer(model);
    const visitedPoints: number[][] = [];
    for (let step = 0; step < steps; step++) {
      model.x.grad = fromArray(ctx, computeGradient(await model.x.read(), step), [7], { dtype });
      optimizer.step();
      optimizer.zeroGrad();
      visitedPoints.push(Array.from(await model.x.read()));
    }
    expect(optimizer.steps).toBe(steps);
    return visitedPoints;
  });
}

/** Options without optional fields. */
type RequiredOptions<T> = { readonly [Name in keyof T]-?: NonNullable<T[Name]> };

/** Kingma and Ba 2015 with decoupled decay, in float64. Uses the gradients at the points of the float32 path. */
function computeAdamWPath(
  visitedPoints: readonly (readonly number[])[],
  options: RequiredOptions<Pick<AdamWOptions, "lr" | "weightDecay" | "betas">> & { schedule?: Schedule },
): number[][] {
  const { lr, weightDecay, betas, schedule = () => 1 } = options;
  const [p, m, v] = [[...start], Array<number>(7).fill(0), Array<number>(7).fill(0)];
  return visitedPoints.map((_, step) => {
    const g = computeGradient(step === 0 ? start : visitedPoints[step - 1]!, step);
    const rate = lr * schedule(step);
    return p.map((_, i) => {
      m[i] = betas[0] * m[i]! + (1 - betas[0]) * g[i]!;
      v[i] = betas[1] * v[i]! + (1 - betas[1]) * g[i]! ** 2;
      const [mean, square] = [m[i] / (1 - betas[0] ** (step + 1)), v[i] / (1 - betas[1] ** (step + 1))];
      p[i] = p[i]! - rate * weightDecay * p[i]! - (rate * mean) / (Math.sqrt(square) + 1e-8);
      return p[i];
    });
  });
}

/**
 * Defazio et al. 2024, algorithm 1 with Adam's denominator, which computes x, y and z explicitly. Returns y and x after
 * each step.
 */
function computeScheduleFreePath(
  visitedPoints: readonly (readonly number[])[],
  o: RequiredOptions<Pick<ScheduleFreeOptions, "lr" | "weightDecay" | "betas" | "warmupSteps" | "r">>,
): { y: number[]; x: number[] }[] {
  const [x, z, v] = [[...start], [...start], Array<number>(7).fill(0)];
  let [weightSum, maxLr] = [0, 0];
  return visitedPoints.map((_, step) => {
    const g = computeGradient(step === 0 ? start : visitedPoints[step - 1]!, step);
    const rate = o.lr * Math.min(1, (step + 1) / o.warmupSteps);
    maxLr = Math.max(maxLr, rate);
    const weight = (step + 1) ** o.r * maxLr ** 2;
    weightSum += weight;
    const c = weight / weightSum;
    const interpolate = (i: number) => (1 - o.betas[0]) * z[i]! + o.betas[0] * x[i]!;
    for (let i = 0; i < 7; i++) {
      const y = interpolate(i);
      v[i] = o.betas[1] * v[i]! + (1 - o.betas[1]) * g[i]! ** 2;
      const update = g[i]! / (Math.sqrt(v[i]! / (1 - o.betas[1] ** (step + 1))) + 1e-8) + o.weightDecay * y;
      z[i] = z[i]! - rate * update;
      x[i] = (1 - c) * x[i]! + c * z[i]!;
    }
    return { y: x.map((_, i) => interpolate(i)), x: [...x] };
  });
}

describe("optimizers follow the trajectory in float64", () => {
  test.each([
    { lr: 0.05, weightDecay: 0.1, betas: [0.9, 0.999] },
    { lr: 0.02, weightDecay: 0, betas: [0.5, 0.9], schedule: linearWarmup(7, cosine(30, { end: 0.1 })) },
  ] as const)("AdamW %o", async (options) => {
    const visitedPoints = await recordPath((model) => new AdamW(model, options));
    expect(maxDifference(visitedPoints.flat(), computeAdamWPath(visitedPoints, options).flat())).toBeLessThan(3e-6);
  });

  test.each([
    { lr: 0.1, weightDecay: 0.05, betas: [0.9, 0.99], warmupSteps: 10, r: 0 },
    { lr: 0.05, weightDecay: 0, betas: [0.95, 0.999], warmupSteps: 1, r: 1 },
  ] as const)("ScheduleFreeAdamW %o", async (options) => {
    let average: number[] = [];
    const visitedPoints = await recordPath((model) => {
      const optimizer = new ScheduleFreeAdamW(model, options);
      const { step } = optimizer;
      optimizer.step = () => {
        step.call(optimizer);
        if (optimizer.steps < steps) return;
        optimizer.eval();
        void model.x.read().then((values) => (average = Array.from(values)));
        optimizer.train();
      };
      return optimizer;
    });
    const expected = computeScheduleFreePath(visitedPoints, options);
    expect(
      maxDifference(
        visitedPoints.flat(),
        expected.flatMap(({ y }) => y),
      ),
    ).toBeLessThan(1e-5);
    expect(maxDifference(average, expected.at(-1)!.x)).toBeLessThan(1e-5);
  });

  test("AdamW accumulates small updates of a bfloat16 parameter", async () => {
    const options = { lr: 1e-4, weightDecay: 0 };
    const visitedPoints = await recordPath((model) => new AdamW(model, options), "bfloat16");
    // Updates far below the spacing of bfloat16 accumulate instead of being lost.
    const changedValues = visitedPoints.at(-1)!.filter((value, i) => value !== visitedPoints[0]![i]);
    expect(changedValues.length).toBeGreaterThan(0);
  });
});

test("evaluation of a schedule-free optimizer does not change the training by a single bit", async () => {
  const plainPath = await recordPath((model) => new ScheduleFreeAdamW(model, { lr: 0.1 }));
  const measuredPath = await recordPath((model) => {
    const optimizer = new ScheduleFreeAdamW(model, { lr: 0.1 });
    const { step } = optimizer;
    optimizer.step = () => {
      optimizer.eval().eval().train().train();
      step.call(optimizer);
    };
    return optimizer;
  });
  expect(measuredPath).toEqual(plainPath);
});

test("a schedule-free optimizer in evaluation mode rejects step and stateDict", () =>
  onOneRank((ctx) => {
    using optimizer = new ScheduleFreeAdamW(new Linear(ctx, 2, 2)).eval();
    for (const callOptimizer of [() => optimizer.step(), () => optimizer.stateDict()]) {
      expect(callOptimizer).toThrow(
        /an optimizer in evaluation mode, in which the parameters are averages; call optimizer\.train\(\) first/,
      );
    }
  }));

test("forParameter sets rates and decays; parameters that are frozen or lack a gradient stay unchanged", () =>
  onOneRank(async (ctx) => {
    using layer = new Linear(ctx, 2, 2);
    using otherLayer = new Linear(ctx, 2, 2);
    class SharedLayers extends Module {
      readonly a = this.addChild("a", layer);
      readonly b = this.addChild("b", otherLayer);
    }
    const model = new SharedLayers();
    otherLayer.weight.requiresGrad = false;
    const names: string[] = [];
    using optimizer = new AdamW(model, {
      lr: 0.1,
      weightDecay: 0.5,
      forParameter(name, { rank }) {
        names.push(name);
        return rank < 2 ? { weightDecay: 0, lrScale: 0.5 } : {};
      },
    });
    expect(names).toEqual(["a.weight", "a.bias", "b.bias"]);
    const valuesBefore = await Promise.all(model.parameters().map((each) => each.read()));
    layer.weight.grad = fromArray(ctx, [0, 0, 0, 0], [2, 2]);
    layer.bias!.grad = fromArray(ctx, [1, -1], [2]);
    optimizer.step();
    const valuesAfter = await Promise.all(model.parameters().map((each) => each.read()));
    expect(
      maxDifference(
        valuesAfter[0]!,
        Array.from(valuesBefore[0]!, (value) => value * 0.95),
      ),
    ).toBeLessThan(1e-6);
    expect(maxDifference(valuesAfter[1]!, [valuesBefore[1]![0]! - 0.05, valuesBefore[1]![1]! + 0.05])).toBeLessThan(
      1e-6,
    );
    expect([valuesAfter[2], valuesAfter[3]]).toEqual([valuesBefore[2], valuesBefore[3]]);
  }));

test("the learning rate follows lr and the schedule", () =>
  onOneRank((ctx) => {
    using optimizer = new AdamW(new Linear(ctx, 1, 1), { lr: 2, schedule: linearWarmup(4) });
    expect(optimizer.learningRate).toBe(0.5);
    optimizer.step();
    expect(optimizer.learningRate).toBe(1);
    optimizer.lr = 1;
    expect(optimizer.learningRate).toBe(0.5);
  }));

test("schedules return their factors for each step, and reject invalid arguments", () => {
  const evaluateSchedule = (schedule: Schedule, ...requestedSteps: number[]) =>
    requestedSteps.map((step) => Number(schedule(step).toFixed(4)));
  expect(evaluateSchedule(constant(), 0, 9)).toEqual([1, 1]);
  expect(evaluateSchedule(linearWarmup(2), 0, 1, 2)).toEqual([0.5, 1, 1]);
  expect(evaluateSchedule(linearWarmup(2.5, linearDecay(2)), 0, 1, 2, 3, 4)).toEqual([0.4, 0.8, 1, 0.75, 0.25]);
  expect(evaluateSchedule(cosine(4, { end: 0.2 }), 0, 1, 2, 4, 9)).toEqual([1, 0.8828, 0.6, 0.2, 0.2]);
  expect(evaluateSchedule(linearDecay(4), 0, 1, 4, 5)).toEqual([1, 0.75, 0, 0]);
  expect(evaluateSchedule(inverseSquareRoot(10), 0, 15, 30)).toEqual([1, 0.6325, 0.5]);
  expect(evaluateSchedule(multiStep([2, 4]), 1, 2, 4)).toEqual([1, 0.1, 0.01]);
  for (const invalidSchedule of [
    () => linearWarmup(0),
    () => cosine(-1),
    () => linearDecay(Number.NaN),
    () => multiStep([0]),
    () => multiStep([2], Number.NaN),
    () => cosine(4, { end: -1 }),
    () => linearDecay(4, { min: 0.1 } as object),
  ]) {
    expect(invalidSchedule).toThrow(OptionError);
  }
});

describe("clipGradNorm", () => {
  const gradientParts = [generateNumbers(600, 1), generateNumbers(40, 2), generateNumbers(1, 3)];
  const length = Math.sqrt(gradientParts.flat().reduce((sum, x) => sum + x * x, 0));

  test.each([0.5, 1e9, Infinity])(
    "to %d scales all gradients by one factor, and returns their previous norm",
    (maxNorm) =>
      onOneRank(async (ctx) => {
        class ThreeParameters extends Module {
          readonly parameterList = gradientParts.map((gradientValues, i) =>
            this.addParameter(String(i), fromArray(ctx, gradientValues, i === 0 ? [20, 30] : i === 1 ? [40] : [])),
          );
        }
        using model = new ThreeParameters();
        for (const [i, parameter] of model.parameterList.entries())
          parameter.grad = fromArray(ctx, gradientParts[i]!, parameter.shape);
        const gradients = model.parameterList.map(({ grad }) => grad!);
        const versions = gradients.map(({ storage }) => storage.version);
        using norm = clipGradNorm(model, maxNorm);
        expect((await norm.item()) / length).toBeCloseTo(1, 6);
        // With Infinity, the norm is only measured.
        expect(gradients.every(({ storage }, i) => storage.version === versions[i])).toBe(maxNorm === Infinity);
        const factor = Math.min(1, maxNorm / (length + 1e-6));
        for (const [i, parameter] of model.parameterList.entries()) {
          expect(
            maxDifference(
              await parameter.grad!.read(),
              gradientParts[i]!.map((x) => x * factor),
            ),
          ).toBeLessThan(1e-6);
        }
      }),
  );

  test("measures long, strided, shifted and empty gradients", () =>
    onOneRank(async (ctx) => {
      // More than two blocks of 8192 elements and a remainder, which is larger than the rest.
      const values = generateNumbers(20_000, 4).map((x, i) => (i < 16_384 ? x : 10 * x));
      using whole = fromArray(ctx, values, [20_000]);
      const gradientViews = [
        whole.reshape([100, 200]).transpose(0, 1),
        whole.slice(0, 1000),
        whole.slice(0, 3, 20_000, 7),
        whole.slice(0, 0, 0),
      ];
      class Parameters extends Module {
        readonly parameterList = gradientViews.map(({ shape }, i) => this.addParameter(String(i), ones(ctx, shape)));
      }
      using model = new Parameters();
      for (const [i, parameter] of model.parameterList.entries()) parameter.grad = gradientViews[i]!;
      using norm = clipGradNorm(model, Infinity);
      const squares = values.map((x, i) => x * x * (1 + Number(i >= 1000) + Number(i % 7 === 3)));
      expect((await norm.item()) / Math.sqrt(squares.reduce((sum, x) => sum + x))).toBeCloseTo(1, 6);
    }));

  test("is 0 if no gradient has an element, whatever the memory held before", () =>
    onOneRank(async (ctx) => {
      using model = new PointModel(zeros(ctx, [0]));
      model.x.grad = zeros(ctx, [0]);
      full(ctx, [1], Number.NaN).dispose(); // the next tensor of this size reuses its memory
      using norm = clipGradNorm(model, 1);
      expect(await norm.item()).toBe(0);
    }));

  test("rejects a model without gradients and an invalid maxNorm", () =>
    onOneRank((ctx) => {
      using layer = new Linear(ctx, 1, 1);
      expect(() => clipGradNorm(layer, 1)).toThrow(/expected gradients, received none/);
      expect(() => clipGradNorm(layer, 0)).toThrow(/maxNorm > 0, received 0/);
    }));
});

describe("optimizer state", () => {
  test("uses names of PyTorch, and restores an optimizer bit for bit", () =>
    onOneRank(async (ctx) => {
      using model = new PointModel(fromArray(ctx, start, [7]));
      using secondModel = new PointModel(fromArray(ctx, start, [7]));
      const options = { lr: 0.1, warmupSteps: 3, schedule: cosine(10) };
      using optimizer = new ScheduleFreeAdamW(model, options);
      const stepModel = (steppedModel: PointModel, modelOptimizer: Optimizer, stepIndex: number): void => {
        steppedModel.x.grad?.dispose();
        steppedModel.x.grad = fromArray(ctx, computeGradient(start, stepIndex), [7]);
        modelOptimizer.step();
      };
      for (let i = 0; i < 5; i++) stepModel(model, optimizer, i);
      const state = optimizer.stateDict();
      expect([...state.tensors.keys()]).toEqual(["x.z", "x.exp_avg_sq"]);
      expect(Object.keys(state.numbers)).toEqual(["steps", "weightSum", "lrMax"]);
      using otherOptimizer = new ScheduleFreeAdamW(secondModel, options);
      otherOptimizer.loadStateDict(state);
      secondModel.loadStateDict(model.stateDict());
      for (let i = 5; i < 9; i++) {
        stepModel(model, optimizer, i);
        stepModel(secondModel, otherOptimizer, i);
        expect(await secondModel.x.read()).toEqual(await model.x.read());
      }
    }));

  test("is rejected if it is damaged or belongs to another optimizer or model", () =>
    onOneRank((ctx) => {
      using smallOptimizer = new AdamW(new Linear(ctx, 1, 1));
      using largeOptimizer = new AdamW(new Linear(ctx, 2, 1));
      using scheduleFreeOptimizer = new ScheduleFreeAdamW(new Linear(ctx, 1, 1));
      smallOptimizer.step();
      expect(() => scheduleFreeOptimizer.loadStateDict(smallOptimizer.stateDict())).toThrow(
        /the state of ScheduleFreeAdamW, received the state of AdamW/,
      );
      expect(() => largeOptimizer.loadStateDict(smallOptimizer.stateDict())).toThrow(
        /"weight\.exp_avg" has shape \[1,1\] instead of \[1,2\]/,
      );
      expect(() => largeOptimizer.loadStateDict({ ...largeOptimizer.stateDict(), numbers: {} })).toThrow(
        /a number "steps", received undefined/,
      );
      expect(() => largeOptimizer.loadStateDict({ ...largeOptimizer.stateDict(), tensors: new Map() })).toThrow(
        StateDictError,
      );
      expect(largeOptimizer.steps).toBe(0);
    }));

  test("is freed with the optimizer", () =>
    onOneRank((ctx) => {
      using layer = new Linear(ctx, 10, 10);
      const allocatedBefore = ctx.device.memory().allocated;
      new ScheduleFreeAdamW(layer).eval().dispose();
      new AdamW(layer).dispose();
      expect(ctx.device.memory().allocated).toBe(allocatedBefore);
    }));
});

test("a model without parameters is rejected", () =>
  onOneRank(() => {
    using emptyModel = new ModuleList();
    expect(() => new AdamW(emptyModel)).toThrow(
      /^AdamW: expected a model with parameters, received a ModuleList; register layers with addChild/,
    );
  }));

test("unknown and out-of-range options are rejected", () =>
  onOneRank((ctx) => {
    using layer = new Linear(ctx, 1, 1);
    const invalidOptions: AdamWOptions[] = [
      { lr: -1 },
      { betas: [0.9, 1] },
      { epsilon: Number.NaN },
      { weightDecay: -1 },
      { momentum: 1 } as object,
    ];
    for (const options of invalidOptions) {
      expect(() => new AdamW(layer, options)).toThrow(OptionError);
      expect(() => new ScheduleFreeAdamW(layer, options)).toThrow(OptionError);
    }
    for (const invalidOption of [
      { warmupSteps: -1 },
      { r: Number.NaN },
      { weightLrPower: -1 },
      { betas: [0, 0.9] as const },
    ])
      expect(() => new ScheduleFreeAdamW(layer, invalidOption)).toThrow(OptionError);
    for (const invalidOverride of [{ lrScale: -1 }, { lrScale: Number.NaN }, { weightDecay: Infinity }])
      expect(() => new AdamW(layer, { forParameter: () => invalidOverride })).toThrow(
        /forParameter\("weight"\): \w+: expected .* ≥ 0/,
      );
    expect(() => new AdamW(layer, { forParameter: () => ({ lr: 1 }) as object })).toThrow(/forParameter\("weight"\)/);
  }));

/** Descent along the gradient, with a state tensor for each of the given names. A custom optimizer. */
class GradientDescent extends Optimizer {
  constructor(model: Module, stateTensors?: readonly string[], options: OptimizerOptions = {}) {
    super(model, options, { kind: "GradientDescent", lr: 0.5, ...(stateTensors && { stateTensors }) });
  }

  protected updateParameter({ parameter, master, state, lrScale }: OptimizerSlot, gradient: Tensor): void {
    const { kernels } = parameter.device;
    using update = parameter.device.empty(parameter.shape, "float32");
    kernels.scalar("mul", update, gradient, this.learningRate * lrScale);
    kernels.binary("sub", master ?? parameter, master ?? parameter, update);
    for (const sum of Object.values(state)) kernels.binary("add", sum, sum, gradient);
  }
}

test("inspect and String format an optimizer without its tensors", () =>
  onOneRank(async (ctx) => {
    using model = new Linear(ctx, 3, 2);
    using optimizer = new AdamW(model, { lr: 0.01 });
    const text = "AdamW(lr 0.01; 0 steps; 2 parameters of 8 elements)";
    expect([inspect(optimizer), `${optimizer}`, inspect({ optimizer })]).toEqual([
      text,
      text,
      `{ optimizer: ${text} }`,
    ]);
    class Named extends ScheduleFreeAdamW {
      override toString(): string {
        return "Named";
      }
    }
    using named = new Named(model);
    expect(inspect(named)).toBe("Named");
  }));

describe("a custom optimizer", () => {
  test.each(["float32", "bfloat16"] as const)("has only the state tensors that it declares, %s", (dtype) =>
    onOneRank(async (ctx) => {
      const size = 4096;
      using model = new PointModel(fromArray(ctx, Array<number>(size).fill(1), [size], { dtype }));
      const listState = async (stateTensors?: readonly string[]) => {
        await ctx.device.stream.synchronize();
        const { allocated } = ctx.device.memory();
        using optimizer = new GradientDescent(model, stateTensors);
        await ctx.device.stream.synchronize();
        const bytes = ctx.device.memory().allocated - allocated;
        return { names: [...optimizer.stateDict().tensors.keys()], tensors: bytes / (4 * size) };
      };
      const master = dtype === "float32" ? [] : ["x.master"];
      expect(await listState()).toEqual({ names: master, tensors: master.length });
      expect(await listState(["sum"])).toEqual({ names: ["x.sum", ...master], tensors: 1 + master.length });
    }),
  );

  test("updates parameters and its state, which starts at 0 and can be restored", () =>
    onOneRank(async (ctx) => {
      using model = new PointModel(fromArray(ctx, [1, 2, 3], [3]));
      using optimizer = new GradientDescent(model, ["sum"]);
      model.x.grad = fromArray(ctx, [0.5, -7, 4], [3]);
      optimizer.step();
      optimizer.step();
      expect(Array.from(await model.x.read())).toEqual([0.5, 9, -1]);
      using other = new GradientDescent(model, ["sum"]);
      other.loadStateDict(optimizer.stateDict());
      const sum = other.stateDict().tensors.get("x.sum") as Tensor;
      expect(Array.from(await sum.read())).toEqual([1, -14, 8]);
      expect(other.steps).toBe(2);
      optimizer.zeroGrad();
    }));

  test.each([[["sum", "sum"]], [["master"]], [["step"]], [["a.b"]], [[""]], ["sum"], [[1]]])(
    "rejects the state tensors %j",
    (names) =>
      onOneRank((ctx) => {
        using model = new PointModel(fromArray(ctx, [1], [1]));
        expect(() => new GradientDescent(model, names as never)).toThrow(
          /GradientDescent: stateTensors: expected distinct identifiers other than "master" and "step", received/,
        );
      }),
  );
});
