import {
  AutogradError,
  checkpoint,
  type Context,
  type Coordinate,
  DisposedError,
  full,
  Linear,
  Module,
  OptionError,
  reduceGradients,
  scope,
  type Tensor,
} from "@mosaic/core";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  clipGradNorm,
  fullyShard,
  loadCheckpoint,
  ModuleList,
  NonFiniteError,
  readSafetensors,
  readStateDict,
  saveCheckpoint,
  ScheduleFreeAdamW,
  SGD,
  summonFullParameters,
} from "../src/index.ts";
import { getShard } from "../src/sharding/flat-parameters.ts";
import {
  adamW,
  backwardStep,
  forwardStep,
  Blocks,
  type BlocksOptions,
  readParameters,
  type Stage,
  stages,
  trainBlocks,
} from "./reference/blocks.ts";
import { directory } from "./reference/directory.ts";
import { maxDifference } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

interface RunOptions {
  readonly mesh: Coordinate;
  /** 0: not sharded. */
  readonly stage: Stage | 0;
  readonly maxNorm?: number;
  readonly createOptimizer?: typeof adamW;
  readonly options?: BlocksOptions;
}

interface Outcome {
  readonly losses: number[];
  readonly parameters: number[];
}

const steps = 6;

/** Trains, and returns the losses and the final parameters, which must be bitwise equal on every rank. */
async function trainSharded({
  mesh,
  stage,
  maxNorm = 1,
  createOptimizer: make = adamW,
  options,
}: RunOptions): Promise<Outcome> {
  const outcomeByRank = await onMesh(mesh, async (ctx) => {
    using model = new Blocks(ctx, options);
    if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage, axis: Object.keys(mesh)[0]! });
    using optimizer = make(model);
    const losses: number[] = [];
    while (optimizer.steps < steps) losses.push(await trainBlocks(ctx, { model, optimizer, maxNorm }));
    if (optimizer instanceof ScheduleFreeAdamW) optimizer.eval();
    const values = await summonFullParameters(model, () => Promise.all(model.parameters().map((each) => each.read())));
    return { losses, parameters: values.flatMap((each) => [...each]) };
  });
  for (const rankOutcome of outcomeByRank) expect(rankOutcome).toEqual(outcomeByRank[0]);
  return outcomeByRank[0]!;
}

const referenceOutcomes = new Map<string, Promise<Outcome>>();

/** Returns the result of an unsharded run, which several tests use as reference. */
function getReference(runOptions: Pick<RunOptions, "mesh" | "maxNorm">): Promise<Outcome> {
  const key = JSON.stringify(runOptions);
  if (!referenceOutcomes.has(key)) referenceOutcomes.set(key, trainSharded({ ...runOptions, stage: 0 }));
  return referenceOutcomes.get(key)!;
}

const meshes = [{ dp: 4, sp: 1 }, { dp: 2, sp: 2 }, { sp: 2 }] as const;

test.each(meshes.flatMap((mesh) => stages.map((stage) => ({ mesh, stage }))))(
  "the loss curve on $mesh with stage $stage matches that of one rank",
  async (each) => {
    const unclippedOutcome = await trainSharded({ ...each, maxNorm: Infinity });
    const unshardedOutcome = await getReference({ mesh: each.mesh, maxNorm: Infinity });
    // Along one axis, the same sums in the same order. Along two, an unsharded gradient is summed over all ranks at once,
    // and a sharded one along one axis after the other.
    if (Object.values(each.mesh).filter((length) => length > 1).length === 1) {
      expect(unclippedOutcome).toEqual(unshardedOutcome);
    } else {
      expect(maxDifference(unclippedOutcome.losses, unshardedOutcome.losses)).toBeLessThan(1e-5);
      expect(maxDifference(unclippedOutcome.parameters, unshardedOutcome.parameters)).toBeLessThan(1e-4);
    }
    const singleRankOutcome = await getReference({ mesh: { sp: 1 }, maxNorm: Infinity });
    expect(singleRankOutcome.losses.at(-1)).toBeLessThan(0.95 * singleRankOutcome.losses[0]!);
    expect(maxDifference(unclippedOutcome.losses, singleRankOutcome.losses)).toBeLessThan(1e-5);
    if (Object.keys(each.mesh).length < 2) return;
    const clippedOutcome = await trainSharded(each);
    expect(maxDifference(clippedOutcome.losses, (await getReference({ mesh: { sp: 1 } })).losses)).toBeLessThan(1e-5);
  },
);

test.each(stages)(
  "stage %i trains with activation checkpoints, bfloat16, a schedule-free optimizer and SGD",
  async (stage) => {
    const mesh = { dp: 2, sp: 1 };
    const variants: Partial<RunOptions>[] = [
      { options: { wrapBlock: (block, x) => checkpoint((each) => block.forward(each), x) } },
      { options: { dtype: "bfloat16" } },
      { createOptimizer: (model) => new ScheduleFreeAdamW(model, { lr: 2e-2 }) },
      { createOptimizer: (model) => new SGD(model, { lr: 1e-2, momentum: 0.9, weightDecay: 0.1 }) },
    ];
    for (const [i, variant] of variants.entries()) {
      const unclippedOptions = { mesh, maxNorm: Infinity, ...variant };
      const [shardedOutcome, unshardedOutcome] = [
        await trainSharded({ ...unclippedOptions, stage }),
        await trainSharded({ ...unclippedOptions, stage: 0 }),
      ];
      // Gradients of bfloat16 are rounded once without sharding, and not at all with it.
      if (i === 1) expect(maxDifference(shardedOutcome.losses, unshardedOutcome.losses)).toBeLessThan(0.02);
      else expect(shardedOutcome).toEqual(unshardedOutcome);
    }
  },
);

test("gradients accumulate over several backwards, and frozen parameters remain unchanged", async () => {
  const trainLosses = async (ctx: Context, stage: Stage | 0): Promise<number[]> => {
    using model = new Blocks(ctx);
    for (const parameter of model.blocks.at(1)!.mlp.parameters()) parameter.requiresGrad = false;
    if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage });
    using optimizer = adamW(model);
    for (const step of [0, 1]) backwardStep(ctx, model, step).dispose();
    reduceGradients(ctx, model);
    optimizer.step();
    return readParameters(model);
  };
  const mesh = { dp: 2, sp: 2 };
  const [unshardedLosses] = await onMesh(mesh, (ctx) => trainLosses(ctx, 0));
  for (const stage of stages) {
    const [sharded] = await onMesh(mesh, (ctx) => trainLosses(ctx, stage));
    expect(maxDifference(sharded!, unshardedLosses!)).toBeLessThan(1e-5);
  }
});

describe("checkpoints", () => {
  const [firstSteps, lastStep] = [3, steps];

  /** Trains up to a step, from a checkpoint if `load` is set, saves a checkpoint, and returns the losses. */
  function train(
    mesh: Coordinate,
    stage: Stage | 0,
    checkpointPlan: { path: string; until: number; load: boolean },
  ): Promise<Outcome[]> {
    return onMesh(mesh, async (ctx) => {
      using model = new Blocks(ctx);
      if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage });
      using optimizer = adamW(model);
      if (checkpointPlan.load)
        expect(await loadCheckpoint(ctx, checkpointPlan.path, { model, optimizer })).toEqual({
          steps: firstSteps,
          data: 7,
        });
      const losses: number[] = [];
      while (optimizer.steps < checkpointPlan.until) losses.push(await trainBlocks(ctx, { model, optimizer }));
      await saveCheckpoint(ctx, checkpointPlan.load ? `${checkpointPlan.path}.end` : checkpointPlan.path, {
        model,
        optimizer,
        data: 7,
      });
      return { losses, parameters: await readParameters(model) };
    });
  }

  test.each(stages)("of stage %i resume bit for bit, and load on other meshes and stages", async (stage) => {
    const path = join(directory(), "training.safetensors");
    const mesh = { dp: 2, sp: 2 };
    const [undisturbedLosses] = await train(mesh, stage, { path: `${path}.whole`, until: lastStep, load: false });
    await train(mesh, stage, { path, until: firstSteps, load: false });
    const resumedLosses = await train(mesh, stage, { path, until: lastStep, load: true });
    for (const rankLosses of resumedLosses)
      expect(rankLosses).toEqual({
        losses: undisturbedLosses!.losses.slice(firstSteps),
        parameters: undisturbedLosses!.parameters,
      });
    // The file of the resumed run equals that of the uninterrupted run.
    const [a, b] = [await readSafetensors(`${path}.end`), await readSafetensors(`${path}.whole`)];
    expect([...a.tensors]).toEqual([...b.tensors]);
    expect([...a.metadata]).toEqual([...b.metadata]);
    const otherLayouts = [
      { mesh: { sp: 1 }, stage: 0 },
      { mesh: { dp: 4, sp: 1 }, stage: (stage % 3) + 1 },
    ] as const;
    for (const otherLayout of otherLayouts) {
      const [otherLayoutLosses] = await train(otherLayout.mesh, otherLayout.stage as Stage, {
        path,
        until: lastStep,
        load: true,
      });
      expect(maxDifference(otherLayoutLosses!.losses, undisturbedLosses!.losses.slice(firstSteps))).toBeLessThan(1e-5);
    }
  });

  test("of one rank load into every stage, from a file and from the state dict of an optimizer", async () => {
    const path = join(directory(), "training.safetensors");
    const [undisturbedLosses] = await train({ sp: 1 }, 0, { path, until: firstSteps, load: false });
    for (const stage of stages) {
      await onMesh({ dp: 4, sp: 1 }, async (ctx) => {
        const [model, otherModel] = [
          fullyShard(ctx, new Blocks(ctx), { stage }),
          fullyShard(ctx, new Blocks(ctx), { stage }),
        ];
        const [optimizer, otherOptimizer] = [adamW(model), adamW(otherModel)];
        await loadCheckpoint(ctx, path, { model, optimizer });
        expect(await readParameters(model)).toEqual(undisturbedLosses!.parameters);
        const state = optimizer.stateDict();
        const { tensors } = await readSafetensors(path);
        for (const [name, x] of state.tensors) {
          expect(await (x as Tensor).read()).toEqual(tensors.get(`optimizer.${name}`)!.values);
        }
        otherOptimizer.loadStateDict(state);
        const reloadedState = otherOptimizer.stateDict();
        for (const [name, x] of reloadedState.tensors) {
          expect(await (x as Tensor).read()).toEqual(await (state.tensors.get(name) as Tensor).read());
        }
      });
    }
  });
});

test("readStateDict returns whole tensors in every stage, and gathers only units of the given names", async () => {
  const [expectedValues] = await onMesh({ dp: 2, sp: 2 }, async (ctx) => readParameters(new Blocks(ctx)));
  for (const stage of stages) {
    await onMesh({ dp: 2, sp: 2 }, async (ctx) => {
      using model = fullyShard(ctx, new Blocks(ctx), { stage });
      const tensors = await readStateDict(ctx, model);
      expect([...tensors.keys()]).toEqual([...model.stateDict().keys()]);
      expect([...tensors.values()].flatMap(({ values }) => [...values])).toEqual(expectedValues);
      expect(tensors.get("embed.weight")).toMatchObject({ dtype: "float32", shape: [7, 16] });

      await ctx.device.stream.synchronize();
      const bytesSentBefore = ctx.mesh.group("dp").traffic().bytesSent;
      const names = ["norm.weight"];
      const selectedTensors = await readStateDict(ctx, model, { names, rank0Only: true });
      expect([...selectedTensors.keys()]).toEqual(ctx.rank === 0 ? names : []);
      await ctx.device.stream.synchronize();
      // This rank's half of the embedding [7,16] and the norm [16], padded to 160 elements.
      expect(ctx.mesh.group("dp").traffic().bytesSent - bytesSentBefore).toBe(stage === 3 ? 4 * 96 : 0);
      await expect(readStateDict(ctx, model, { names: ["norm"] })).rejects.toThrow(
        /readStateDict: names: expected names of parameters and buffers of the model, received "norm"/,
      );
    });
  }
});

describe("invalid calls", () => {
  test("are rejected for a missing axis, foreign units, a sharded model, and an optimizer created earlier", async () => {
    await onMesh({ dp: 2, sp: 1 }, (ctx) => {
      const model = new Blocks(ctx);
      expect(() => fullyShard(ctx, model, { axis: "tp" })).toThrow(/expected one of the axes dp, sp, received "tp"/);
      const units = [new Linear(ctx, 2, 2)];
      expect(() => fullyShard(ctx, model, { units })).toThrow(/units\[0\]: expected a submodule of the model/);
      expect(() => fullyShard(ctx, model, { units: [model.blocks] })).toThrow(
        /units: expected an array, each element a Module with a forward, received \[a ModuleList\]/,
      );
      expect(() => fullyShard(ctx, model, { stage: 4 as Stage })).toThrow(OptionError);
      const earlyOptimizer = adamW(model);
      fullyShard(ctx, model);
      expect(() => fullyShard(ctx, model)).toThrow(
        /a model that is not sharded, received a sharded parameter "embed.weight"/,
      );
      expect(() => earlyOptimizer.step()).toThrow(/call fullyShard\(ctx, model\) before creating the optimizer/);
    });
  });

  test.each(stages)(
    "stage %i rejects a step with unreduced gradients, and reports NaN on every rank",
    async (stage) => {
      const errors = await onMesh({ dp: 2, sp: 1 }, async (ctx) => {
        const model = fullyShard(ctx, new Blocks(ctx), { stage });
        const optimizer = new AdamW(model, { errorIfNonFinite: true });
        backwardStep(ctx, model, 0).dispose();
        const lenientOptimizer = new AdamW(model, { allowLocalGradients: true });
        expect(() => lenientOptimizer.step()).toThrow(/gradients reduced over the 2 ranks/);
        expect(() => optimizer.step()).toThrow(/gradients reduced over the 2 ranks.*call reduceGradients/);
        reduceGradients(ctx, model);
        optimizer.step();
        await optimizer.assertFinite();
        optimizer.zeroGrad();
        using loss = backwardStep(ctx, model, 1);
        reduceGradients(ctx, model);
        // The last parameter, of which some ranks hold no element.
        using nanLoss = full(ctx, [], Number.NaN);
        const { grad } = getShard(model.norm.weight)!.tensor;
        if (grad!.size > 0) ctx.device.kernels.binary("mul", grad!, grad!, nanLoss);
        optimizer.step({ loss });
        return optimizer.assertFinite().catch((error: unknown) => error);
      });
      for (const error of errors) {
        expect(error).toBeInstanceOf(NonFiniteError);
        expect((error as NonFiniteError).parameters).toEqual(["norm.weight"]);
      }
    },
  );

  test.each(stages)(
    "stage %i checks gradients of parameters that were frozen when they were sharded",
    async (stage) => {
      await onMesh({ dp: 2, sp: 1 }, async (ctx) => {
        const model = new Blocks(ctx);
        const { weight } = model.norm;
        weight.requiresGrad = false;
        fullyShard(ctx, model, { stage });
        const earlyOptimizer = new AdamW(model);
        weight.requiresGrad = true;
        const optimizer = new AdamW(model, { errorIfNonFinite: true });
        backwardStep(ctx, model, 0).dispose();
        reduceGradients(ctx, model);
        expect(() => earlyOptimizer.step()).toThrow(/a gradient of "norm.weight", which was frozen then/);
        const { grad } = getShard(weight)!.tensor;
        if (grad!.size > 0) ctx.device.kernels.fill(grad!, Number.NaN);
        optimizer.step();
        await expect(optimizer.assertFinite()).rejects.toThrow(/the gradient of "norm.weight"/);
      });
    },
  );

  test.each(stages)("stage %i rejects a backward after a step that changed the saved parameters", async (stage) => {
    await onMesh({ dp: 2, sp: 1 }, (ctx) => {
      const model = fullyShard(ctx, new Blocks(ctx), { stage });
      const optimizer = new AdamW(model);
      backwardStep(ctx, model, 0).dispose();
      reduceGradients(ctx, model);
      const loss = forwardStep(ctx, model, 1);
      optimizer.step();
      expect(() => loss.backward()).toThrow(AutogradError);
    });
  });

  test("stage 3 rejects access to a parameter that is not gathered", async () => {
    await onMesh({ dp: 2, sp: 1 }, async (ctx) => {
      const model = fullyShard(ctx, new Blocks(ctx));
      const { weight } = model.blocks.at(0)!.norm;
      await expect(weight.read()).rejects.toThrow(DisposedError);
      await expect(weight.read()).rejects.toThrow(
        /a sharded parameter of shape \[16\] whose storage is freed.*summonFullParameters/,
      );
      expect(() => ctx.world.allReduce(weight)).toThrow(/whose storage is freed/);
    });
  });
});

test("parts sharded over different axes have one norm, and every rank reports a NaN of any part", async () => {
  const mesh = { dp: 2, sp: 2 };
  const step = async (ctx: Context, isSharded: boolean) => {
    using model = new Blocks(ctx);
    if (isSharded) {
      fullyShard(ctx, model.blocks, { axis: "sp" });
      fullyShard(ctx, model.embed, { axis: "dp", stage: 2 });
    }
    using optimizer = new AdamW(model, { errorIfNonFinite: true });
    backwardStep(ctx, model, 0).dispose();
    reduceGradients(ctx, model);
    using norm = clipGradNorm(model, 0.1);
    optimizer.step();
    await optimizer.assertFinite();
    const { grad } = getShard(model.blocks.at(0)!.norm.weight)?.tensor ?? {};
    using nan = full(ctx, [], Number.NaN);
    // Only one of the four ranks has the NaN.
    if (isSharded && ctx.mesh.coordinate.dp === 0 && grad!.size > 0)
      ctx.device.kernels.binary("mul", grad!, grad!, nan);
    optimizer.step();
    const error = await optimizer.assertFinite().catch((caught: unknown) => caught);
    if (isSharded) expect((error as NonFiniteError).parameters).toEqual(["blocks.0.norm.weight"]);
    return norm.item();
  };
  const [expectedNorm] = await onMesh(mesh, (ctx) => step(ctx, false));
  const norms = await onMesh(mesh, (ctx) => step(ctx, true));
  for (const norm of norms) expect(norm).toBeCloseTo(expectedNorm!, 5);
});

test("nested module lists are sharded by their elements, because lists have no forward", async () => {
  class Stages extends Module {
    readonly stages: ModuleList<ModuleList<Linear>>;

    constructor(ctx: Context) {
      super();
      const createStage = () => new ModuleList([new Linear(ctx, 8, 8), new Linear(ctx, 8, 8)]);
      this.stages = this.addChild("stages", new ModuleList([createStage(), createStage()]));
    }

    forward(x: Tensor): Tensor {
      return [...this.stages].flatMap((stage) => [...stage]).reduce((y, layer) => layer.forward(y).relu(), x);
    }
  }
  const readLosses = (stage: Stage | 0) =>
    onMesh({ dp: 2 }, async (ctx) => {
      using model = new Stages(ctx);
      if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage });
      if (stage === 3)
        expect(getShard(model.stages.at(0)!.at(0)!.weight)!.unit).not.toBe(
          getShard(model.stages.at(0)!.at(1)!.weight)!.unit,
        );
      using optimizer = new AdamW(model);
      using x = full(ctx, [2, 8], 1 + ctx.rank);
      const losses: number[] = [];
      for (let step = 0; step < 3; step++) {
        using loss = scope(() => model.forward(x).square().sum());
        loss.backward();
        reduceGradients(ctx, model);
        optimizer.step();
        optimizer.zeroGrad();
        losses.push(await loss.item());
      }
      return losses;
    });
  for (const stage of stages) expect(await readLosses(stage)).toEqual(await readLosses(0));
});

test("zeroGrad of the model or the optimizer clears gradients, and frozen parameters are released", async () => {
  await onMesh({ dp: 2, sp: 1 }, async (ctx) => {
    for (const zeroedObject of ["model", "optimizer"] as const) {
      const model = new Blocks(ctx).eval();
      model.norm.weight.requiresGrad = false;
      fullyShard(ctx, model);
      const optimizer = new AdamW(model);
      const zeroGradObjects = { model, optimizer };
      for (let i = 0; i < 2; i++) {
        zeroGradObjects[zeroedObject].zeroGrad();
        backwardStep(ctx, model, 0).dispose();
        reduceGradients(ctx, model);
      }
      const { grad } = getShard(model.blocks.at(1)!.mlp.parameters()[0]!)!.tensor;
      const firstGradient = await grad!.read();
      expect(model.norm.weight.storage.isReleased).toBe(true);
      // Without zeroGrad, gradients accumulate.
      backwardStep(ctx, model, 0).dispose();
      reduceGradients(ctx, model);
      const accumulatedGradient = await getShard(model.blocks.at(1)!.mlp.parameters()[0]!)!.tensor.grad!.read();
      const doubledGradient = [...firstGradient].map((each) => 2 * each);
      expect(maxDifference(accumulatedGradient, doubledGradient)).toBeLessThan(1e-6);
    }
  });
});

test("summonFullParameters rejects an async function", async () => {
  await onOneRank((ctx) => {
    using model = new Blocks(ctx);
    expect(() => summonFullParameters(model, async () => model.parameters()[0]!.read())).toThrow(
      "summonFullParameters: body: expected a synchronous function, received an async function; return the promises of calls that read parameters, and await the result",
    );
  });
});

test("fullyShard does not shard a model on one rank", async () => {
  await onOneRank((ctx) => {
    using model = new Blocks(ctx);
    expect(fullyShard(ctx, model, { axis: "sp" })).toBe(model);
    expect(model.parameters().some((parameter) => getShard(parameter))).toBe(false);
  });
});

test("disposing the model and the optimizer frees their memory", async () => {
  for (const stage of stages) {
    await onMesh({ dp: 2, sp: 1 }, async (ctx) => {
      const train = async (): Promise<void> => {
        using model = fullyShard(ctx, new Blocks(ctx), { stage });
        using optimizer = adamW(model);
        await trainBlocks(ctx, { model, optimizer });
        backwardStep(ctx, model, 1).dispose();
      };
      await train();
      const { allocated } = ctx.device.memory();
      await train();
      // The tables of rotary embeddings belong to the modules that created them.
      expect(ctx.device.memory().allocated - allocated).toBeLessThan(4096);
    });
  }
});
