import {
  type Coordinate,
  fromArray,
  full,
  Linear,
  Module,
  OptionError,
  OutOfMemoryError,
  StateDictError,
} from "@mosaic/core";
import { join } from "node:path";
import { describe, expect, test, vi } from "vitest";
import {
  cosine,
  fullyShard,
  linearWarmup,
  loadCheckpoint,
  readSafetensors,
  saveCheckpoint,
  Sequential,
  SGD,
  type SGDOptions,
} from "../src/index.ts";
import { Blocks, trainBlocks } from "./reference/blocks.ts";
import { directory } from "./reference/directory.ts";
import { generateNumbers, maxDifference } from "./reference/numbers.ts";
import { PointModel } from "./reference/point-model.ts";
import { onMesh, onOneRank } from "./reference/world.ts";

const [size, steps] = [7, 40];
const start = generateNumbers(size, 1);
const computeGradient = (x: ArrayLike<number>, step: number): number[] => {
  const noise = generateNumbers(size, 100 + step);
  return Array.from(x, (value, i) => Math.fround((i + 1) * value + noise[i]!));
};

/** Trains a point and returns it after each step. */
async function recordPath(options: SGDOptions, dtype: "float32" | "bfloat16" = "float32"): Promise<number[][]> {
  return onOneRank(async (ctx) => {
    using model = new PointModel(fromArray(ctx, start, [size], { dtype }));
    using optimizer = new SGD(model, options);
    const path: number[][] = [];
    for (let step = 0; step < steps; step++) {
      const gradient = computeGradient(await model.x.read(), step);
      model.x.grad = fromArray(ctx, gradient, [size], { dtype });
      optimizer.step();
      expect(await model.x.grad.read()).toEqual(await fromArray(ctx, gradient, [size], { dtype }).read());
      optimizer.zeroGrad();
      path.push(Array.from(await model.x.read()));
    }
    return path;
  });
}

/** The algorithm of PyTorch's SGD in float64. Uses the gradients at the points of the float32 path. */
function computePath(path: readonly (readonly number[])[], options: SGDOptions): number[][] {
  const { lr = 1e-3, momentum = 0, dampening = 0, nesterov = false, weightDecay = 0, schedule = () => 1 } = options;
  const p = [...start];
  let buffer: number[] | undefined;
  return path.map((_, step) => {
    const gradient = computeGradient(step === 0 ? start : path[step - 1]!, step);
    let update = gradient.map((g, i) => g + weightDecay * p[i]!);
    if (momentum !== 0) {
      buffer = buffer ? buffer.map((b, i) => momentum * b + (1 - dampening) * update[i]!) : [...update];
      update = nesterov ? update.map((g, i) => g + momentum * buffer![i]!) : buffer;
    }
    for (const [i, each] of update.entries()) p[i] = p[i]! - lr * schedule(step) * each;
    return [...p];
  });
}

describe("SGD", () => {
  test.each<SGDOptions>([
    {},
    { lr: 0.05, weightDecay: 0.1 },
    { lr: 0.05, momentum: 0.9 },
    { lr: 0.05, momentum: 0.9, dampening: 0.3 },
    { lr: 0.05, momentum: 0.8, dampening: 0.3, weightDecay: 0.2 },
    { lr: 0.02, momentum: 0.9, nesterov: true },
    { lr: 0.02, momentum: 0.7, nesterov: true, weightDecay: 0.1 },
    { lr: 0.1, momentum: 0.9, schedule: linearWarmup(5, cosine(20, { end: 0.1 })) },
  ])("follows the trajectory in float64, %o", async (options) => {
    const path = await recordPath(options);
    expect(maxDifference(path.flat(), computePath(path, options).flat())).toBeLessThan(3e-6);
  });

  test("accumulates small updates of a bfloat16 parameter in its master copy", () =>
    onOneRank(async (ctx) => {
      const dtype = "bfloat16";
      using model = new PointModel(full(ctx, [4], 1, { dtype }));
      using optimizer = new SGD(model, { lr: 2 ** -12, weightDecay: 0 });
      model.x.grad = full(ctx, [4], 1, { dtype });
      for (let step = 0; step < 16; step++) optimizer.step();
      optimizer.zeroGrad();
      // Each update is an eighth of the spacing of bfloat16 below 1.
      expect(Array.from(await model.x.read())).toEqual(Array(4).fill(1 - 2 ** -8));
      expect([...optimizer.stateDict().tensors.keys()]).toEqual(["x.master"]);
    }));

  test("has no state without momentum, and one tensor of each parameter's size with momentum", () =>
    onOneRank(async (ctx) => {
      using model = new Linear(ctx, 64, 32);
      const measureBytes = async (options: SGDOptions): Promise<number> => {
        await ctx.device.stream.synchronize();
        const { allocated } = ctx.device.memory();
        using optimizer = new SGD(model, options);
        for (const parameter of model.parameters()) parameter.grad ??= full(ctx, parameter.shape, 1);
        const withGradients = ctx.device.memory().allocated;
        optimizer.step();
        await ctx.device.stream.synchronize();
        expect(ctx.device.memory().allocated).toBe(withGradients);
        model.zeroGrad();
        await ctx.device.stream.synchronize();
        return ctx.device.memory().allocated - allocated;
      };
      expect(await measureBytes({ weightDecay: 0.1 })).toBe(0);
      const bytes = await measureBytes({ momentum: 0.9, nesterov: true });
      expect(bytes).toBeGreaterThanOrEqual(4 * (64 * 32 + 32));
      expect(bytes).toBeLessThan(1.5 * 4 * (64 * 32 + 32));
    }));

  test("starts the momentum of a parameter with its first gradient, also after its state was loaded", () =>
    onOneRank(async (ctx) => {
      class TwoPoints extends Module {
        readonly early = this.addParameter("early", fromArray(ctx, [0], [1]));
        readonly late = this.addParameter("late", fromArray(ctx, [0], [1]));
      }
      using model = new TwoPoints();
      const options = { lr: 1, momentum: 0.5, dampening: 0.5 };
      using first = new SGD(model, options);
      model.early.grad = full(ctx, [1], 1);
      first.step();
      first.step();
      expect(await model.early.item()).toBe(-2); // buffer 1, then 0.5 · 1 + 0.5 · 1
      using second = new SGD(model, options);
      second.loadStateDict(first.stateDict());
      model.late.grad = full(ctx, [1], 1);
      second.step();
      expect([await model.early.item(), await model.late.item()]).toEqual([-3, -1]);
      second.zeroGrad();
    }));

  test("applies the options of individual parameters", () =>
    onOneRank(async (ctx) => {
      using layer = new Linear(ctx, 1, 1);
      for (const parameter of layer.parameters()) ctx.device.kernels.fill(parameter, 1);
      using optimizer = new SGD(layer, {
        lr: 0.5,
        weightDecay: 0.5,
        forParameter: (_, { rank }) => (rank < 2 ? { weightDecay: 0, lrScale: 0.5 } : {}),
      });
      for (const parameter of layer.parameters()) parameter.grad = full(ctx, parameter.shape, 1);
      optimizer.step();
      expect([await layer.weight.item(), await layer.bias!.item()]).toEqual([0.25, 0.75]);
      optimizer.zeroGrad();
    }));

  test("changes nothing if a step runs out of memory", () =>
    onOneRank(async (ctx) => {
      using model = new Sequential(new Linear(ctx, 4, 3), new Linear(ctx, 3, 2));
      using optimizer = new SGD(model, { lr: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.1 });
      for (const parameter of model.parameters()) parameter.grad = full(ctx, parameter.shape, 1);
      const readParameters = () => Promise.all(model.parameters().map(async (each) => Array.from(await each.read())));
      const before = await readParameters();
      const allocate = ctx.device.empty.bind(ctx.device);
      for (let numAllocations = 0; ; numAllocations++) {
        let allocationsLeft = numAllocations;
        const empty = vi.spyOn(ctx.device, "empty").mockImplementation((...args) => {
          if (allocationsLeft-- > 0) return allocate(...args);
          throw new OutOfMemoryError({ where: "empty" });
        });
        try {
          optimizer.step();
          expect(numAllocations).toBeGreaterThan(0);
          break;
        } catch (error) {
          expect(error).toBeInstanceOf(OutOfMemoryError);
        } finally {
          empty.mockRestore();
        }
        expect(await readParameters()).toEqual(before);
        expect(optimizer.steps).toBe(0);
      }
      expect(await readParameters()).not.toEqual(before);
      optimizer.zeroGrad();
    }));

  test("resumes from the checkpoint of a sharded run, with and without sharding", async () => {
    const path = join(directory(), "sgd.safetensors");
    const options = { lr: 0.05, momentum: 0.9, weightDecay: 0.01, schedule: cosine(10) };
    const train = (mesh: Coordinate, isSharded: boolean, { load, until }: { load: boolean; until: number }) =>
      onMesh(mesh, async (ctx) => {
        using model = new Blocks(ctx);
        if (isSharded) fullyShard(ctx, model);
        using optimizer = new SGD(model, options);
        if (load) await loadCheckpoint(ctx, path, { model, optimizer });
        const losses: number[] = [];
        while (optimizer.steps < until) losses.push(await trainBlocks(ctx, { model, optimizer }));
        if (!load) await saveCheckpoint(ctx, path, { model, optimizer });
        return losses;
      });
    const [expected] = await train({ dp: 2, sp: 1 }, true, { load: false, until: 6 });
    await train({ dp: 2, sp: 1 }, true, { load: false, until: 3 });
    const names = [...(await readSafetensors(path)).tensors.keys()].filter((name) => name.startsWith("optimizer."));
    expect(names.length).toBeGreaterThan(3);
    expect(names.every((name) => name.endsWith(".momentum_buffer"))).toBe(true);
    const [resumed] = await train({ dp: 2, sp: 1 }, true, { load: true, until: 6 });
    expect(resumed).toEqual(expected!.slice(3));
    const [unsharded] = await train({ sp: 1 }, false, { load: true, until: 6 });
    expect(maxDifference(unsharded!, expected!.slice(3))).toBeLessThan(1e-5);
  });

  test("rejects invalid options, and the state of SGD with other options", () =>
    onOneRank((ctx) => {
      using layer = new Linear(ctx, 2, 1);
      for (const options of [
        { momentum: -0.1 },
        { momentum: Number.NaN },
        { dampening: Infinity },
        { weightDecay: -1 },
        { betas: [0.9, 0.999] } as object,
      ])
        expect(() => new SGD(layer, options)).toThrow(OptionError);
      for (const options of [{}, { momentum: 0.9, dampening: 0.1 }])
        expect(() => new SGD(layer, { ...options, nesterov: true })).toThrow(
          /SGD: nesterov: expected momentum > 0 and dampening 0, received momentum/,
        );
      using withMomentum = new SGD(layer, { momentum: 0.9 });
      using plain = new SGD(layer);
      expect(() => plain.loadStateDict(withMomentum.stateDict())).toThrow(/unexpected "weight\.momentum_buffer"/);
      expect(() => withMomentum.loadStateDict(plain.stateDict())).toThrow(StateDictError);
    }));
});
