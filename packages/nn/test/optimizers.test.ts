import { type AdamStep, fromArray, Linear, Module, OptionError, StateDictError, type Tensor } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  AdamW,
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
import { numbers, maxDifference } from "./reference/numbers.ts";
import { alone } from "./reference/world.ts";

const steps = 60;

/** The gradient of a valley, ½ Σ scaleᵢ (xᵢ − goalᵢ)², with noise that both sides know. */
const [optimum, scales] = [numbers(7, 1), numbers(7, 2).map((x) => 10 ** (2 * x))];
const gradientAt = (x: ArrayLike<number>, step: number): number[] => {
  const noise = numbers(7, 100 + step);
  return optimum.map((each, i) => Math.fround(scales[i]! * (x[i]! - each) + noise[i]!));
};
const start = numbers(7, 3);

class Point extends Module {
  readonly x: Tensor;
  constructor(x: Tensor) {
    super();
    this.x = this.addParameter("x", x);
  }
}

/** Where an optimizer goes: the parameter after each step. */
async function path(make: (model: Point) => Optimizer, dtype: "float32" | "bfloat16" = "float32"): Promise<number[][]> {
  return alone(async (ctx) => {
    using model = new Point(fromArray(ctx, start, [7], { dtype }));
    using optimizer = make(model);
    const places: number[][] = [];
    for (let step = 0; step < steps; step++) {
      model.x.grad = fromArray(ctx, gradientAt(await model.x.read(), step), [7], { dtype });
      optimizer.step();
      optimizer.zeroGrad();
      places.push(Array.from(await model.x.read()));
    }
    expect(optimizer.steps).toBe(steps);
    return places;
  });
}

/** Options, each of which is given. */
type Given<T> = { readonly [Name in keyof T]-?: NonNullable<T[Name]> };

/** Kingma and Ba 2015 with decoupled decay, in float64; follows the gradients that the float32 path saw. */
function adamW(
  seen: readonly (readonly number[])[],
  options: Given<Pick<OptimizerOptions, "lr" | "weightDecay" | "betas">> & { schedule?: Schedule },
): number[][] {
  const { lr, weightDecay, betas, schedule = () => 1 } = options;
  const [p, m, v] = [[...start], Array<number>(7).fill(0), Array<number>(7).fill(0)];
  return seen.map((_, step) => {
    const g = gradientAt(step === 0 ? start : seen[step - 1]!, step);
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

/** Defazio et al. 2024, algorithm 1 with Adam's denominator, by x, y and z themselves; y and x after each step. */
function scheduleFree(
  seen: readonly (readonly number[])[],
  o: Given<Pick<ScheduleFreeOptions, "lr" | "weightDecay" | "betas" | "warmupSteps" | "r">>,
): { y: number[]; x: number[] }[] {
  const [x, z, v] = [[...start], [...start], Array<number>(7).fill(0)];
  let [weights, most] = [0, 0];
  return seen.map((_, step) => {
    const g = gradientAt(step === 0 ? start : seen[step - 1]!, step);
    const rate = o.lr * Math.min(1, (step + 1) / o.warmupSteps);
    most = Math.max(most, rate);
    const weight = (step + 1) ** o.r * most ** 2;
    weights += weight;
    const c = weight / weights;
    const blend = (i: number) => (1 - o.betas[0]) * z[i]! + o.betas[0] * x[i]!;
    for (let i = 0; i < 7; i++) {
      const y = blend(i);
      v[i] = o.betas[1] * v[i]! + (1 - o.betas[1]) * g[i]! ** 2;
      const update = g[i]! / (Math.sqrt(v[i]! / (1 - o.betas[1] ** (step + 1))) + 1e-8) + o.weightDecay * y;
      z[i] = z[i]! - rate * update;
      x[i] = (1 - c) * x[i]! + c * z[i]!;
    }
    return { y: x.map((_, i) => blend(i)), x: [...x] };
  });
}

describe("follows float64's trajectory", () => {
  test.each([
    { lr: 0.05, weightDecay: 0.1, betas: [0.9, 0.999] },
    { lr: 0.02, weightDecay: 0, betas: [0.5, 0.9], schedule: linearWarmup(7, cosine(30, { end: 0.1 })) },
  ] as const)("AdamW %o", async (options) => {
    const seen = await path((model) => new AdamW(model, options));
    expect(maxDifference(seen.flat(), adamW(seen, options).flat())).toBeLessThan(3e-6);
  });

  test.each([
    { lr: 0.1, weightDecay: 0.05, betas: [0.9, 0.99], warmupSteps: 10, r: 0 },
    { lr: 0.05, weightDecay: 0, betas: [0.95, 0.999], warmupSteps: 1, r: 1 },
  ] as const)("ScheduleFreeAdamW %o", async (options) => {
    let average: number[] = [];
    const seen = await path((model) => {
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
    const expected = scheduleFree(seen, options);
    expect(
      maxDifference(
        seen.flat(),
        expected.flatMap(({ y }) => y),
      ),
    ).toBeLessThan(1e-5);
    expect(maxDifference(average, expected.at(-1)!.x)).toBeLessThan(1e-5);
  });

  test("a parameter of 16 bits through a float32 master copy", async () => {
    const options = { lr: 1e-4, weightDecay: 0 };
    const places = await path((model) => new AdamW(model, options), "bfloat16");
    // Steps far below bfloat16's spacing add up instead of being lost.
    const moved = places.at(-1)!.filter((value, i) => value !== places[0]![i]);
    expect(moved.length).toBeGreaterThan(0);
  });
});

test("evaluating schedule-free changes not one bit of the training", async () => {
  const plain = await path((model) => new ScheduleFreeAdamW(model, { lr: 0.1 }));
  const measured = await path((model) => {
    const optimizer = new ScheduleFreeAdamW(model, { lr: 0.1 });
    const { step } = optimizer;
    optimizer.step = () => {
      optimizer.eval().eval().train().train();
      step.call(optimizer);
    };
    return optimizer;
  });
  expect(measured).toEqual(plain);
});

test("schedule-free in evaluation neither steps nor saves", () =>
  alone((ctx) => {
    using optimizer = new ScheduleFreeAdamW(new Linear(ctx, 2, 2)).eval();
    for (const use of [() => optimizer.step(), () => optimizer.stateDict()]) {
      expect(use).toThrow(
        /an optimizer in evaluation mode, in which the parameters are averages; call optimizer\.train\(\) first/,
      );
    }
  }));

test("parameters have rates and decays of their own; frozen ones and those without a gradient stay", () =>
  alone(async (ctx) => {
    using layer = new Linear(ctx, 2, 2);
    using other = new Linear(ctx, 2, 2);
    class Both extends Module {
      readonly a = this.addChild("a", layer);
      readonly b = this.addChild("b", other);
    }
    const model = new Both();
    other.weight.requiresGrad = false;
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
    const before = await Promise.all(model.parameters().map((each) => each.read()));
    layer.weight.grad = fromArray(ctx, [0, 0, 0, 0], [2, 2]);
    layer.bias!.grad = fromArray(ctx, [1, -1], [2]);
    optimizer.step();
    const after = await Promise.all(model.parameters().map((each) => each.read()));
    expect(
      maxDifference(
        after[0]!,
        Array.from(before[0]!, (value) => value * 0.95),
      ),
    ).toBeLessThan(1e-6);
    expect(maxDifference(after[1]!, [before[1]![0]! - 0.05, before[1]![1]! + 0.05])).toBeLessThan(1e-6);
    expect([after[2], after[3]]).toEqual([before[2], before[3]]);
  }));

test("the learning rate follows lr and the schedule", () =>
  alone((ctx) => {
    using optimizer = new AdamW(new Linear(ctx, 1, 1), { lr: 2, schedule: linearWarmup(4) });
    expect(optimizer.learningRate).toBe(0.5);
    optimizer.step();
    expect(optimizer.learningRate).toBe(1);
    optimizer.lr = 1;
    expect(optimizer.learningRate).toBe(0.5);
  }));

test("schedules", () => {
  const at = (schedule: Schedule, ...wanted: number[]) => wanted.map((step) => Number(schedule(step).toFixed(4)));
  expect(at(constant(), 0, 9)).toEqual([1, 1]);
  expect(at(linearWarmup(2), 0, 1, 2)).toEqual([0.5, 1, 1]);
  expect(at(cosine(4, { end: 0.2 }), 0, 1, 2, 4, 9)).toEqual([1, 0.8828, 0.6, 0.2, 0.2]);
  expect(at(linearDecay(4), 0, 1, 4, 5)).toEqual([1, 0.75, 0, 0]);
  expect(at(inverseSquareRoot(10), 0, 15, 30)).toEqual([1, 0.6325, 0.5]);
  expect(at(multiStep([2, 4]), 1, 2, 4)).toEqual([1, 0.1, 0.01]);
  for (const wrong of [
    () => linearWarmup(0),
    () => cosine(-1),
    () => linearDecay(Number.NaN),
    () => multiStep([0]),
    () => multiStep([2], Number.NaN),
    () => cosine(4, { end: -1 }),
    () => linearDecay(4, { min: 0.1 } as object),
  ]) {
    expect(wrong).toThrow(OptionError);
  }
});

describe("clipping", () => {
  const parts = [numbers(600, 1), numbers(40, 2), numbers(1, 3)];
  const length = Math.sqrt(parts.flat().reduce((sum, x) => sum + x * x, 0));

  test.each([0.5, 1e9, Infinity])("to %d scales all gradients alike, and reports their length", (most) =>
    alone(async (ctx) => {
      class Three extends Module {
        readonly all = parts.map((part, i) =>
          this.addParameter(String(i), fromArray(ctx, part, i === 0 ? [20, 30] : i === 1 ? [40] : [])),
        );
      }
      using model = new Three();
      for (const [i, each] of model.all.entries()) each.grad = fromArray(ctx, parts[i]!, each.shape);
      using norm = clipGradNorm(model, most);
      expect((await norm.item()) / length).toBeCloseTo(1, 6);
      const factor = Math.min(1, most / (length + 1e-6));
      for (const [i, each] of model.all.entries()) {
        expect(
          maxDifference(
            await each.grad!.read(),
            parts[i]!.map((x) => x * factor),
          ),
        ).toBeLessThan(1e-6);
      }
    }),
  );

  test("reports what does not fit", () =>
    alone((ctx) => {
      using layer = new Linear(ctx, 1, 1);
      expect(() => clipGradNorm(layer, 1)).toThrow(/expected gradients, received none/);
      expect(() => clipGradNorm(layer, 0)).toThrow(/maxNorm > 0, received 0/);
    }));
});

describe("state", () => {
  test("names what PyTorch names, and carries an optimizer over bit for bit", () =>
    alone(async (ctx) => {
      using model = new Point(fromArray(ctx, start, [7]));
      using twin = new Point(fromArray(ctx, start, [7]));
      const options = { lr: 0.1, warmupSteps: 3, schedule: cosine(10) };
      using optimizer = new ScheduleFreeAdamW(model, options);
      const step = (each: Point, by: Optimizer, at: number): void => {
        each.x.grad?.dispose();
        each.x.grad = fromArray(ctx, gradientAt(start, at), [7]);
        by.step();
      };
      for (let i = 0; i < 5; i++) step(model, optimizer, i);
      const state = optimizer.stateDict();
      expect([...state.tensors.keys()]).toEqual(["x.z", "x.exp_avg_sq"]);
      expect(Object.keys(state.numbers)).toEqual(["steps", "weightSum", "lrMax"]);
      using other = new ScheduleFreeAdamW(twin, options);
      other.loadStateDict(state);
      twin.loadStateDict(model.stateDict());
      for (let i = 5; i < 9; i++) {
        step(model, optimizer, i);
        step(twin, other, i);
        expect(await twin.x.read()).toEqual(await model.x.read());
      }
    }));

  test("of another optimizer, of another model or damaged is rejected, whole", () =>
    alone((ctx) => {
      using small = new AdamW(new Linear(ctx, 1, 1));
      using large = new AdamW(new Linear(ctx, 2, 1));
      using free = new ScheduleFreeAdamW(new Linear(ctx, 1, 1));
      small.step();
      expect(() => free.loadStateDict(small.stateDict())).toThrow(
        /the state of ScheduleFreeAdamW, received the state of AdamW/,
      );
      expect(() => large.loadStateDict(small.stateDict())).toThrow(
        /"weight\.exp_avg" has shape \[1,1\] instead of \[1,2\]/,
      );
      expect(() => large.loadStateDict({ ...large.stateDict(), numbers: {} })).toThrow(
        /a number "steps", received undefined/,
      );
      expect(() => large.loadStateDict({ ...large.stateDict(), tensors: new Map() })).toThrow(StateDictError);
      expect(large.steps).toBe(0);
    }));

  test("is given back with the optimizer", () =>
    alone((ctx) => {
      using layer = new Linear(ctx, 10, 10);
      const before = ctx.device.memory().allocated;
      new ScheduleFreeAdamW(layer).eval().dispose();
      new AdamW(layer).dispose();
      expect(ctx.device.memory().allocated).toBe(before);
    }));
});

test("a model without parameters is rejected", () =>
  alone(() => {
    using empty = new ModuleList();
    expect(() => new AdamW(empty)).toThrow(
      /^AdamW: expected a model with parameters, received a ModuleList; register layers with addChild/,
    );
  }));

test("options that do not exist or are out of range are rejected", () =>
  alone((ctx) => {
    using layer = new Linear(ctx, 1, 1);
    const wrong: OptimizerOptions[] = [
      { lr: -1 },
      { betas: [0.9, 1] },
      { epsilon: Number.NaN },
      { weightDecay: -1 },
      { momentum: 1 } as object,
    ];
    for (const options of wrong) {
      expect(() => new AdamW(layer, options)).toThrow(OptionError);
      expect(() => new ScheduleFreeAdamW(layer, options)).toThrow(OptionError);
    }
    for (const wrong of [{ warmupSteps: -1 }, { r: Number.NaN }, { weightLrPower: -1 }, { betas: [0, 0.9] as const }])
      expect(() => new ScheduleFreeAdamW(layer, wrong)).toThrow(OptionError);
    for (const own of [{ lrScale: -1 }, { lrScale: Number.NaN }, { weightDecay: Infinity }])
      expect(() => new AdamW(layer, { forParameter: () => own })).toThrow(
        /forParameter\("weight"\): \w+: expected .* ≥ 0/,
      );
    expect(() => new AdamW(layer, { forParameter: () => ({ lr: 1 }) as object })).toThrow(/forParameter\("weight"\)/);
  }));

/** Signed gradients: Adam that forgets at once. Written as a user would, with what the package exports. */
class SignDescent extends Optimizer {
  constructor(model: Module, options: OptimizerOptions = {}) {
    super(model, options, { kind: "SignDescent", firstName: "exp_avg", lr: 0.5 });
  }

  protected numbers(): Readonly<Record<string, number>> {
    return {};
  }

  protected setNumbers(): void {}

  protected adamStep({ lrScale, weightDecay = 0 }: Pick<OptimizerSlot, "lrScale" | "weightDecay">): AdamStep {
    const numbers = { beta1: 0, beta2: 0, epsilon: 0, correction1: 1, correction2: 1, mix: 0 };
    return { kind: "adamW", rate: this.learningRate * lrScale, decay: weightDecay, ...numbers };
  }
}

test("a custom optimizer reports only what a step's numbers are", () =>
  alone(async (ctx) => {
    using model = new Point(fromArray(ctx, [1, 2, 3], [3]));
    using optimizer = new SignDescent(model);
    model.x.grad = fromArray(ctx, [0.001, -7, 4], [3]);
    optimizer.step();
    expect(Array.from(await model.x.read())).toEqual([0.5, 2.5, 2.5]);
    optimizer.zeroGrad();
  }));
