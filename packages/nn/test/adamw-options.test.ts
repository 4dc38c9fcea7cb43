import { fromArray, Module, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { AdamW, linearDecay, multiStep, type Optimizer, type Schedule, ScheduleFreeAdamW } from "../src/index.ts";
import { generateNumbers, maxDifference } from "./reference/numbers.ts";
import { onOneRank } from "./reference/world.ts";

// Every option must change the trajectory as in float64, also those of a single parameter.

const steps = 12;

/** A matrix, and a scalar, whose options differ. */
const parameters = [
  { name: "matrix", shape: [2, 3], start: generateNumbers(6, 1), lrScale: 1, weightDecay: undefined },
  { name: "scalar", shape: [], start: generateNumbers(1, 2), lrScale: 0.25, weightDecay: 0.5 },
] as const;
type ParameterSpec = (typeof parameters)[number];

const computeGradient = ({ start }: ParameterSpec, step: number): number[] =>
  // Small, so that epsilon matters.
  generateNumbers(start.length, 10 * start.length + step).map((x) => Math.fround(1e-2 * x));

interface Settings {
  readonly lr: number;
  readonly weightDecay: number;
  readonly epsilon: number;
  readonly betas: readonly [number, number];
  readonly schedule: Schedule;
}

/** Returns the parameters after all steps, and after `finish`. */
async function train<O extends Optimizer>(
  createOptimizer: (model: Module) => O,
  finish: (optimizer: O) => void,
): Promise<{ readonly trained: number[][]; readonly finished: number[][] }> {
  return onOneRank(async (ctx) => {
    class Parameters extends Module {
      readonly tensors = parameters.map(({ name, start, shape }) =>
        this.addParameter(name, fromArray(ctx, start, shape)),
      );
    }
    using model = new Parameters();
    using optimizer = createOptimizer(model);
    for (let step = 0; step < steps; step++) {
      for (const [i, tensor] of model.tensors.entries())
        tensor.grad = fromArray(ctx, computeGradient(parameters[i]!, step), tensor.shape);
      optimizer.step();
      optimizer.zeroGrad();
    }
    const read = async (tensors: readonly Tensor[]): Promise<number[][]> =>
      Promise.all(tensors.map(async (x) => Array.from(await x.read())));
    const trained = await read(model.tensors);
    finish(optimizer);
    return { trained, finished: await read(model.tensors) };
  });
}

const forParameter = (name: string) => {
  const { lrScale, weightDecay } = parameters.find((each) => each.name === name)!;
  return { lrScale, weightDecay };
};

test.each<Settings>([
  { lr: 0.03, weightDecay: 0.2, epsilon: 1e-2, betas: [0.8, 0.95], schedule: linearDecay(20) },
  { lr: 0.05, weightDecay: 0, epsilon: 1e-8, betas: [0, 0.9], schedule: multiStep([3, 7], 0.5) },
])("AdamW %o follows the trajectory in float64", async (settings) => {
  const { lr, epsilon, betas, schedule } = settings;
  const expected = parameters.map((spec) => {
    const { lrScale, weightDecay = settings.weightDecay } = spec;
    return spec.start.map((start, i) => {
      let [p, m, v] = [start, 0, 0];
      for (let step = 0; step < steps; step++) {
        const g = computeGradient(spec, step)[i]!;
        m = betas[0] * m + (1 - betas[0]) * g;
        v = betas[1] * v + (1 - betas[1]) * g * g;
        const rate = lr * schedule(step) * lrScale;
        const denominator = Math.sqrt(v / (1 - betas[1] ** (step + 1))) + epsilon;
        p -= rate * (weightDecay * p + m / (1 - betas[0] ** (step + 1)) / denominator);
      }
      return p;
    });
  });
  const { trained } = await train(
    (model) => new AdamW(model, { ...settings, forParameter }),
    () => {},
  );
  for (const [i, values] of trained.entries()) expect(maxDifference(values, expected[i]!)).toBeLessThan(1e-6);
});

test.each<Settings & { readonly r: number; readonly weightLrPower: number }>([
  // The learning rate decreases, but the largest one so far determines the weights of the average.
  { lr: 0.03, weightDecay: 0.2, epsilon: 1e-2, betas: [0.8, 0.95], schedule: linearDecay(20), r: 0, weightLrPower: 2 },
  // It rises, so that the power matters.
  {
    lr: 0.02,
    weightDecay: 0,
    epsilon: 1e-8,
    betas: [0.9, 0.9],
    schedule: (step) => step + 1,
    r: 0.5,
    weightLrPower: 1,
  },
])("ScheduleFreeAdamW %o follows the trajectory in float64", async (settings) => {
  const { lr, epsilon, betas, schedule, r, weightLrPower } = settings;
  const expected = parameters.map((spec) => {
    const { lrScale, weightDecay = settings.weightDecay } = spec;
    return spec.start.map((start, i) => {
      let [x, z, v, weightSum, maxRate] = [start, start, 0, 0, 0];
      const interpolate = () => (1 - betas[0]) * z + betas[0] * x;
      for (let step = 0; step < steps; step++) {
        const g = computeGradient(spec, step)[i]!;
        v = betas[1] * v + (1 - betas[1]) * g * g;
        const denominator = Math.sqrt(v / (1 - betas[1] ** (step + 1))) + epsilon;
        const rate = lr * schedule(step);
        maxRate = Math.max(maxRate, rate);
        const weight = (step + 1) ** r * maxRate ** weightLrPower;
        weightSum += weight;
        z -= rate * lrScale * (g / denominator + weightDecay * interpolate());
        x += (weight / weightSum) * (z - x);
      }
      return { y: interpolate(), x };
    });
  });
  const { trained, finished } = await train(
    (model) => new ScheduleFreeAdamW(model, { ...settings, forParameter }),
    (optimizer) => optimizer.eval(),
  );
  for (const [i, points] of expected.entries()) {
    const [y, x] = [points.map((each) => each.y), points.map((each) => each.x)];
    expect(maxDifference(trained[i]!, y)).toBeLessThan(2e-6);
    expect(maxDifference(finished[i]!, x)).toBeLessThan(2e-6);
    expect(maxDifference(x, y)).toBeGreaterThan(1e-4);
  }
});
