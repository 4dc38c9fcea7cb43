import { type Context, type Coordinate, OptionError, reduceGradients, type Tensor } from "@mosaic/core";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  clipGradNorm,
  fullyShard,
  loadCheckpoint,
  NonFiniteError,
  saveCheckpoint,
  ScheduleFreeAdamW,
} from "../src/index.ts";
import { gatherShard, getShard } from "../src/sharding/flat-parameters.ts";
import {
  adamW,
  backwardStep,
  Blocks,
  computeShardSize,
  listUnitSizes,
  readParameters,
  type Stage,
  stages,
  trainBlocks,
} from "./reference/blocks.ts";
import { directory } from "./reference/directory.ts";
import { maxDifference } from "./reference/numbers.ts";
import { onMesh } from "./reference/world.ts";

// Hybrid sharded data parallelism: the batch is divided over two axes, parameters are sharded over one of them and
// replicated over the other.

const allStages: readonly (Stage | 0)[] = [0, ...stages];
const hybridMesh = { dp_replicate: 2, dp_shard: 2, sp: 2 } as const;
const steps = 6;

interface Plan {
  readonly mesh: Coordinate;
  /** 0: not sharded. */
  readonly stage: Stage | 0;
  readonly axis?: string;
  readonly maxNorm?: number;
  /** Number of backwards of each step. */
  readonly backwards?: number;
  readonly createOptimizer?: typeof adamW;
}

interface Outcome {
  readonly losses: number[];
  readonly parameters: number[];
  /** Gradients of all parameters in the first step, after the reduction, and their norm. */
  readonly gradients: number[];
  readonly gradientNorm: number;
}

function createModel(ctx: Context, { stage, axis = "dp_shard" }: Pick<Plan, "stage" | "axis">): Blocks {
  const model = new Blocks(ctx);
  return stage === 0 ? model : fullyShard(ctx, model, { stage, axis });
}

/** Reads all elements of all gradients, sharded or not. */
async function readGradients(model: Blocks): Promise<number[]> {
  const read = async (parameter: Tensor): Promise<number[]> => {
    const shard = getShard(parameter);
    if (!shard) return Array.from(await parameter.grad!.read());
    using gradient = gatherShard(shard, shard.tensor.grad!);
    return Array.from(await gradient.read());
  };
  return (await Promise.all(model.parameters().map(read))).flat();
}

/** Trains, and returns losses, gradients and final parameters, which must be bitwise equal on every rank. */
async function trainOnMesh({ mesh, maxNorm = Infinity, backwards = 1, ...plan }: Plan): Promise<Outcome> {
  const outcomes = await onMesh(mesh, async (ctx) => {
    using model = createModel(ctx, plan);
    using optimizer = (plan.createOptimizer ?? adamW)(model);
    for (let i = 0; i < backwards; i++) backwardStep(ctx, model, i).dispose();
    reduceGradients(ctx, model);
    using norm = clipGradNorm(model, Infinity);
    const gradients = await readGradients(model);
    const gradientNorm = await norm.item();
    optimizer.zeroGrad();
    const losses: number[] = [];
    while (optimizer.steps < steps) {
      for (let i = 1; i < backwards; i++) backwardStep(ctx, model, 10 + i).dispose();
      losses.push(await trainBlocks(ctx, { model, optimizer, maxNorm }));
    }
    if (optimizer instanceof ScheduleFreeAdamW) optimizer.eval();
    return { losses, parameters: await readParameters(model), gradients, gradientNorm };
  });
  for (const outcome of outcomes) expect(outcome).toEqual(outcomes[0]);
  return outcomes[0]!;
}

const singleRankOutcomes = new Map<string, Promise<Outcome>>();

/** Trains on one rank, once for each plan. */
function trainOnOneRank(plan: Omit<Plan, "mesh" | "stage" | "axis">): Promise<Outcome> {
  const key = JSON.stringify(plan) + String(plan.createOptimizer);
  const outcome = singleRankOutcomes.get(key) ?? trainOnMesh({ ...plan, mesh: { sp: 1 }, stage: 0 });
  singleRankOutcomes.set(key, outcome);
  return outcome;
}

async function expectSameAsOneRank({ mesh, stage, axis, ...plan }: Plan): Promise<void> {
  const actual = await trainOnMesh({ mesh, stage, ...(axis !== undefined && { axis }), ...plan });
  const expected = await trainOnOneRank(plan);
  expect(expected.losses.at(-1)).toBeLessThan(0.95 * expected.losses[0]!);
  expect(maxDifference(actual.losses, expected.losses)).toBeLessThan(1e-5);
  expect(maxDifference(actual.gradients, expected.gradients)).toBeLessThan(1e-5);
  expect(actual.gradientNorm).toBeCloseTo(expected.gradientNorm, 5);
  expect(maxDifference(actual.parameters, expected.parameters)).toBeLessThan(1e-4);
}

describe("losses, gradients and parameters match those of one rank", () => {
  test.each(allStages)("stage %i on a mesh of replicas, shards and sequences, clipped or not", async (stage) => {
    for (const maxNorm of [Infinity, 1]) await expectSameAsOneRank({ mesh: hybridMesh, stage, maxNorm });
  });

  test.each<Pick<Plan, "mesh" | "axis">>([
    { mesh: { dp_replicate: 2, dp_shard: 2, sp: 1 } },
    { mesh: { dp_shard: 2, sp: 3, dp_replicate: 2 } },
    { mesh: { dp_replicate: 2, dp_shard: 1, sp: 2 } },
    { mesh: { dp_replicate: 1, dp_shard: 4, sp: 1 } },
    { mesh: hybridMesh, axis: "sp" },
    { mesh: hybridMesh, axis: "dp_replicate" },
  ])("stage 3 on %j", (plan) => expectSameAsOneRank({ ...plan, stage: 3 }));

  test.each(allStages)("stage %i with two backwards per step", (stage) =>
    expectSameAsOneRank({ mesh: hybridMesh, stage, backwards: 2 }),
  );

  test.each(allStages)("stage %i with a schedule-free optimizer", (stage) =>
    expectSameAsOneRank({
      mesh: hybridMesh,
      stage,
      createOptimizer: (model) => new ScheduleFreeAdamW(model, { lr: 2e-2 }),
    }),
  );
});

test("replicas have bitwise the parameters of plain sharding if each of them has the same samples", async () => {
  // Along a power of two, the mean of equal gradients is exact.
  const read = (mesh: Coordinate, axis: string) =>
    onMesh(mesh, async (ctx) => {
      using model = fullyShard(ctx, new Blocks(ctx).eval(), { axis });
      using optimizer = new AdamW(model);
      // The sample is a function of the coordinate along the sharded axis only.
      using x = ctx.device.empty([1, 12], "float32");
      ctx.device.kernels.fill(x, 1 + ctx.mesh.coordinate[axis]!);
      using loss = model.forward(x).square().sum();
      loss.backward();
      reduceGradients(ctx, model);
      optimizer.step();
      return readParameters(model);
    });
  const [expected] = await read({ dp: 2, sp: 1 }, "dp");
  for (const parameters of await read({ dp_replicate: 4, dp_shard: 2, sp: 1 }, "dp_shard"))
    expect(parameters).toEqual(expected);
});

describe("traffic", () => {
  /** Returns the number of bytes that this rank has sent in each group. */
  const readTraffic = async (ctx: Context): Promise<Record<string, number>> => {
    await ctx.device.stream.synchronize();
    const groups = [
      ...ctx.mesh.axes.map((axis) => [axis, ctx.mesh.group(axis)] as const),
      ["world", ctx.world] as const,
    ];
    return Object.fromEntries(groups.map(([name, group]) => [name, group.traffic().bytesSent]));
  };

  /** Returns the bytes that each rank sends in the second step, by group, and the sizes of the units' shards. */
  const measureStep = (mesh: Coordinate, stage: Stage | 0, backwards = 1) =>
    onMesh(mesh, async (ctx) => {
      using model = createModel(ctx, { stage });
      const unitBytes = listUnitSizes(model).map((sizes) => 4 * computeShardSize(sizes, ctx.mesh.shape.dp_shard!));
      const parameterBytes = model.parameters().reduce((sum, { size }) => sum + 4 * size, 0);
      using optimizer = adamW(model);
      const step = async (): Promise<void> => {
        for (let i = 1; i < backwards; i++) backwardStep(ctx, model, i).dispose();
        await trainBlocks(ctx, { model, optimizer, maxNorm: Infinity });
      };
      await step();
      const before = await readTraffic(ctx);
      await step();
      const after = await readTraffic(ctx);
      const sent = Object.fromEntries(Object.keys(after).map((name) => [name, after[name]! - before[name]!]));
      return { sent, parameterBytes, unitBytes };
    });

  test.each([
    { mesh: { dp_replicate: 2, dp_shard: 2, sp: 2 }, backwards: 1 },
    { mesh: { dp_replicate: 2, dp_shard: 2, sp: 2 }, backwards: 2 },
    { mesh: { dp_replicate: 2, dp_shard: 2, sp: 1 }, backwards: 1 },
    { mesh: { dp_replicate: 1, dp_shard: 4, sp: 2 }, backwards: 1 },
  ])("matches the formula in every stage on $mesh with $backwards backwards", async ({ mesh, backwards }) => {
    const { dp_replicate: replicas, dp_shard: shards, sp } = mesh;
    const ranks = replicas * shards * sp;
    const lossBytes = (ranks - 1) * 12 * backwards;
    const unshardedRanks = await measureStep(mesh, 0, backwards);
    for (const { sent, parameterBytes } of unshardedRanks) {
      // One all-reduce over all ranks, of gradients that are not divided equally: the sum over all ranks is exact.
      expect([sent.dp_replicate, sent.dp_shard]).toEqual([0, 0]);
      expect(sent.world).toBeGreaterThan(parameterBytes);
    }
    const sumOver = (results: typeof unshardedRanks) => results.reduce((sum, { sent }) => sum + sent.world!, 0);
    expect(sumOver(unshardedRanks)).toBe(2 * (ranks - 1) * unshardedRanks[0]!.parameterBytes + ranks * lossBytes);
    for (const stage of [1, 2, 3] as const) {
      for (const [rank, { sent, unitBytes }] of (await measureStep(mesh, stage, backwards)).entries()) {
        const shardBytes = unitBytes.reduce((sum, bytes) => sum + bytes, 0);
        // The root unit is gathered once per step, and reduced by reduceGradients.
        const rootBytes = unitBytes.at(-1)!;
        const gathers = stage === 3 ? 2 * backwards * (shardBytes - rootBytes) + rootBytes : shardBytes;
        const reductions = stage === 1 ? shardBytes : backwards * (shardBytes - rootBytes) + rootBytes;
        expect(sent.dp_shard).toBe((shards - 1) * (gathers + reductions));
        // An all-reduce of this rank's gradients, once per step, over the replicas and over the sequence.
        const allReduceBytes = (n: number): number => (2 * (n - 1) * shardBytes) / n;
        expect(sent.dp_replicate).toBe(allReduceBytes(replicas));
        expect(sent.sp! - unshardedRanks[rank]!.sent.sp!).toBe(allReduceBytes(sp));
        expect(sent.world).toBe(lossBytes);
      }
    }
  });
});

describe("checkpoints", () => {
  const [firstSteps, lastStep] = [3, steps];
  const readFiles = (folder: string): string[] => readdirSync(folder).toSorted();

  /** Trains up to a step, from a checkpoint if `load` is set, and saves a checkpoint. */
  const train = (plan: Plan, { path, until, load }: { path: string; until: number; load?: string }) =>
    onMesh(plan.mesh, async (ctx) => {
      using model = createModel(ctx, plan);
      using optimizer = adamW(model);
      if (load !== undefined) {
        const { steps: loadedSteps } = await loadCheckpoint(ctx, load, { model, optimizer });
        expect(loadedSteps).toBe(firstSteps);
      }
      const losses: number[] = [];
      while (optimizer.steps < until) losses.push(await trainBlocks(ctx, { model, optimizer }));
      await saveCheckpoint(ctx, path, { model, optimizer });
      return { losses, parameters: await readParameters(model) };
    });

  test.each(allStages)("of stage %i are one file, resume bit for bit, and load on one rank", async (stage) => {
    const folder = directory();
    const path = join(folder, "half");
    const plan = { mesh: hybridMesh, stage };
    const [uninterrupted] = await train(plan, { path: join(folder, "whole"), until: lastStep });
    await train(plan, { path, until: firstSteps });
    expect(readFiles(folder)).toEqual(["half", "whole"]);
    const expectedLosses = uninterrupted!.losses.slice(firstSteps);
    for (const resumed of await train(plan, { path: join(folder, "resumed"), until: lastStep, load: path }))
      expect(resumed).toEqual({ ...uninterrupted, losses: expectedLosses });
    expect(readFileSync(join(folder, "resumed"))).toEqual(readFileSync(join(folder, "whole")));
    const otherPlans: Plan[] = [
      { mesh: { sp: 1 }, stage: 0 },
      { mesh: { dp: 2, sp: 2 }, stage: 3, axis: "dp" },
      { mesh: { dp_replicate: 1, dp_shard: 4, sp: 2 }, stage: 2 },
    ];
    for (const otherPlan of otherPlans) {
      const [loaded] = await train(otherPlan, { path: join(folder, "other"), until: lastStep, load: path });
      expect(maxDifference(loaded!.losses, expectedLosses)).toBeLessThan(1e-5);
      expect(maxDifference(loaded!.parameters, uninterrupted!.parameters)).toBeLessThan(1e-4);
    }
    // Without a further step, the loaded state is saved with the same bytes.
    await train({ mesh: { sp: 1 }, stage: 0 }, { path: join(folder, "copy"), until: firstSteps, load: path });
    expect(readFileSync(join(folder, "copy"))).toEqual(readFileSync(path));
  });

  test("of one rank load on the mesh, and each host of a replica writes the same file", async () => {
    const path = join(directory(), "single");
    const [expected] = await train({ mesh: { sp: 1 }, stage: 0 }, { path, until: firstSteps });
    const folders = [directory(), directory()];
    await onMesh(hybridMesh, async (ctx) => {
      using model = createModel(ctx, { stage: 3 });
      using optimizer = adamW(model);
      await loadCheckpoint(ctx, path, { model, optimizer });
      expect(await readParameters(model)).toEqual(expected!.parameters);
      const host = ctx.mesh.coordinate.dp_replicate!;
      const hostOptions = { copies: "perHost", host: `n${host}` } as const;
      await saveCheckpoint(ctx, join(folders[host]!, "x"), { model, optimizer }, hostOptions);
      await saveCheckpoint(ctx, `${path}.chunks`, { model, optimizer }, { snapshot: false });
    });
    expect(readFileSync(`${path}.chunks`)).toEqual(readFileSync(path));
    const [[firstName], [secondName]] = folders.map(readFiles) as [string[], string[]];
    const files = [join(folders[0]!, firstName!), join(folders[1]!, secondName!)];
    expect(readFileSync(files[0]!)).toEqual(readFileSync(files[1]!));
  });
});

test("every rank reports a gradient that is NaN on one replica", async () => {
  const errors = await onMesh(hybridMesh, async (ctx) => {
    using model = createModel(ctx, { stage: 3 });
    using optimizer = new AdamW(model, { errorIfNonFinite: true });
    if (ctx.rank === 0) {
      const { tensor } = getShard(model.blocks.at(1)!.norm.weight)!;
      if (tensor.size > 0) ctx.device.kernels.fill(tensor, Number.NaN);
    }
    backwardStep(ctx, model, 0).dispose();
    reduceGradients(ctx, model);
    optimizer.step();
    return optimizer.assertFinite().catch((error: unknown) => error);
  });
  for (const error of errors) expect(error).toBeInstanceOf(NonFiniteError);
});

test("fullyShard requires an axis on a mesh with several data-parallel axes", async () => {
  await onMesh({ dp_replicate: 2, dp_shard: 1, sp: 1 }, (ctx) => {
    using model = new Blocks(ctx);
    const call = () => fullyShard(ctx, model);
    expect(call).toThrow(OptionError);
    expect(call).toThrow(
      "fullyShard: axis: expected one of the data-parallel axes dp_replicate, dp_shard, received none; " +
        'pass axis: "dp_shard", for example; parameters are replicated along the other axes',
    );
    expect(model.parameters().some((parameter) => getShard(parameter))).toBe(false);
  });
  await onMesh({ dp_shard: 2, sp: 1 }, (ctx) => {
    using model = fullyShard(ctx, new Blocks(ctx));
    expect(getShard(model.norm.weight)!.unit.group.name).toBe(ctx.mesh.group("dp_shard").name);
  });
  await onMesh({ sp: 2 }, (ctx) => {
    using model = new Blocks(ctx);
    expect(() => fullyShard(ctx, model)).toThrow(/expected one of the axes sp, received "dp"/);
  });
});
