import {
  AutogradError,
  checkpoint,
  type Context,
  type Coordinate,
  DisposedError,
  full,
  Linear,
  OptionError,
  reduceGradients,
  type Tensor,
} from "@mosaic/core";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  fullyShard,
  type FullyShardOptions,
  loadCheckpoint,
  NonFiniteError,
  readSafetensors,
  saveCheckpoint,
  ScheduleFreeAdamW,
  summonFullParameters,
} from "../src/index.ts";
import { shardOf } from "../src/sharding/flat-parameters.ts";
import {
  adamW,
  backwardStep,
  forwardStep,
  Blocks,
  type BlocksOptions,
  readAll,
  trainBlocks,
} from "./reference/blocks.ts";
import { directory } from "./reference/directory.ts";
import { maxDifference } from "./reference/numbers.ts";
import { alone, onMesh } from "./reference/world.ts";

type Stage = NonNullable<FullyShardOptions["stage"]>;

const stages: readonly Stage[] = [1, 2, 3];

interface Run {
  readonly mesh: Coordinate;
  /** 0: not sharded. */
  readonly stage: Stage | 0;
  readonly maxNorm?: number;
  readonly make?: typeof adamW;
  readonly options?: BlocksOptions;
}

interface Outcome {
  readonly losses: number[];
  readonly parameters: number[];
}

const steps = 6;

/** Losses, and the parameters at the end; every rank must have the same bits. */
async function run({ mesh, stage, maxNorm = 1, make = adamW, options }: Run): Promise<Outcome> {
  const all = await onMesh(mesh, async (ctx) => {
    using model = new Blocks(ctx, options);
    if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage, axis: Object.keys(mesh)[0]! });
    using optimizer = make(model);
    const losses: number[] = [];
    while (optimizer.steps < steps) losses.push(await trainBlocks(ctx, { model, optimizer, maxNorm }));
    if (optimizer instanceof ScheduleFreeAdamW) optimizer.eval();
    const values = await summonFullParameters(model, () => Promise.all(model.parameters().map((each) => each.read())));
    return { losses, parameters: values.flatMap((each) => [...each]) };
  });
  for (const each of all) expect(each).toEqual(all[0]);
  return all[0]!;
}

const known = new Map<string, Promise<Outcome>>();

/** A run that several tests compare with. */
function reference(each: Pick<Run, "mesh" | "maxNorm">): Promise<Outcome> {
  const key = JSON.stringify(each);
  if (!known.has(key)) known.set(key, run({ ...each, stage: 0 }));
  return known.get(key)!;
}

const meshes = [{ dp: 4, sp: 1 }, { dp: 2, sp: 2 }, { sp: 2 }] as const;

test.each(meshes.flatMap((mesh) => stages.map((stage) => ({ mesh, stage }))))(
  "the loss curve on $mesh, stage $stage, is that of one rank",
  async (each) => {
    const free = await run({ ...each, maxNorm: Infinity });
    // The same sums in the same order: only the norm that clips is added up otherwise.
    expect(free).toEqual(await reference({ mesh: each.mesh, maxNorm: Infinity }));
    const one = await reference({ mesh: { sp: 1 }, maxNorm: Infinity });
    expect(one.losses.at(-1)).toBeLessThan(0.95 * one.losses[0]!);
    expect(maxDifference(free.losses, one.losses)).toBeLessThan(1e-5);
    if (Object.keys(each.mesh).length < 2) return;
    const clipped = await run(each);
    expect(maxDifference(clipped.losses, (await reference({ mesh: { sp: 1 } })).losses)).toBeLessThan(1e-5);
  },
);

test.each(stages)(
  "stage %i trains with activation checkpoints, bfloat16 and a schedule-free optimizer",
  async (stage) => {
    const mesh = { dp: 2, sp: 1 };
    const variants: Partial<Run>[] = [
      { options: { around: (block, x) => checkpoint((each) => block.forward(each), x) } },
      { options: { dtype: "bfloat16" } },
      { make: (model) => new ScheduleFreeAdamW(model, { lr: 2e-2 }) },
    ];
    for (const [i, variant] of variants.entries()) {
      const free = { mesh, maxNorm: Infinity, ...variant };
      const [sharded, whole] = [await run({ ...free, stage }), await run({ ...free, stage: 0 })];
      // Gradients of bfloat16 are rounded once without sharding, and never with it.
      if (i === 1) expect(maxDifference(sharded.losses, whole.losses)).toBeLessThan(0.02);
      else expect(sharded).toEqual(whole);
    }
  },
);

test("gradients add up over backwards before they are reduced, and frozen parameters stay", async () => {
  const train = async (ctx: Context, stage: Stage | 0): Promise<number[]> => {
    using model = new Blocks(ctx);
    for (const parameter of model.blocks.at(1)!.mlp.parameters()) parameter.requiresGrad = false;
    if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage });
    using optimizer = adamW(model);
    for (const step of [0, 1]) backwardStep(ctx, model, step).dispose();
    reduceGradients(ctx, model);
    optimizer.step();
    return readAll(model);
  };
  const mesh = { dp: 2, sp: 2 };
  const [whole] = await onMesh(mesh, (ctx) => train(ctx, 0));
  for (const stage of stages) {
    const [sharded] = await onMesh(mesh, (ctx) => train(ctx, stage));
    expect(maxDifference(sharded!, whole!)).toBeLessThan(1e-5);
  }
});

describe("a checkpoint", () => {
  const [first, last] = [3, steps];

  /** Losses of a training up to a step, from a checkpoint if there is one, which is then saved. */
  function train(
    mesh: Coordinate,
    stage: Stage | 0,
    at: { path: string; until: number; load: boolean },
  ): Promise<Outcome[]> {
    return onMesh(mesh, async (ctx) => {
      using model = new Blocks(ctx);
      if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage });
      using optimizer = adamW(model);
      if (at.load) expect(await loadCheckpoint(ctx, at.path, { model, optimizer })).toEqual({ steps: first, data: 7 });
      const losses: number[] = [];
      while (optimizer.steps < at.until) losses.push(await trainBlocks(ctx, { model, optimizer }));
      await saveCheckpoint(ctx, at.load ? `${at.path}.end` : at.path, { model, optimizer, data: 7 });
      return { losses, parameters: await readAll(model) };
    });
  }

  test.each(stages)("of stage %i continues bit for bit, and loads on other meshes and stages", async (stage) => {
    const path = join(directory(), "training.safetensors");
    const mesh = { dp: 2, sp: 2 };
    const [whole] = await train(mesh, stage, { path: `${path}.whole`, until: last, load: false });
    await train(mesh, stage, { path, until: first, load: false });
    const resumed = await train(mesh, stage, { path, until: last, load: true });
    for (const each of resumed)
      expect(each).toEqual({ losses: whole!.losses.slice(first), parameters: whole!.parameters });
    // The file is that of a training that is not sharded, and of any other.
    const [a, b] = [await readSafetensors(`${path}.end`), await readSafetensors(`${path}.whole`)];
    expect([...a.tensors]).toEqual([...b.tensors]);
    expect([...a.metadata]).toEqual([...b.metadata]);
    const others = [
      { mesh: { sp: 1 }, stage: 0 },
      { mesh: { dp: 4, sp: 1 }, stage: (stage % 3) + 1 },
    ] as const;
    for (const other of others) {
      const [elsewhere] = await train(other.mesh, other.stage as Stage, { path, until: last, load: true });
      expect(maxDifference(elsewhere!.losses, whole!.losses.slice(first))).toBeLessThan(1e-5);
    }
  });

  test("of one rank loads into every stage, from a file and from the state dict of an optimizer", async () => {
    const path = join(directory(), "training.safetensors");
    const [whole] = await train({ sp: 1 }, 0, { path, until: first, load: false });
    for (const stage of stages) {
      await onMesh({ dp: 4, sp: 1 }, async (ctx) => {
        const [model, other] = [
          fullyShard(ctx, new Blocks(ctx), { stage }),
          fullyShard(ctx, new Blocks(ctx), { stage }),
        ];
        const [optimizer, second] = [adamW(model), adamW(other)];
        await loadCheckpoint(ctx, path, { model, optimizer });
        expect(await readAll(model)).toEqual(whole!.parameters);
        const state = optimizer.stateDict();
        const { tensors } = await readSafetensors(path);
        for (const [name, x] of state.tensors) {
          expect(await (x as Tensor).read()).toEqual(tensors.get(`optimizer.${name}`)!.values);
        }
        second.loadStateDict(state);
        const again = second.stateDict();
        for (const [name, x] of again.tensors) {
          expect(await (x as Tensor).read()).toEqual(await (state.tensors.get(name) as Tensor).read());
        }
      });
    }
  });
});

describe("rejects", () => {
  test("an axis that is missing, foreign units, sharding twice, and an optimizer that was there before", async () => {
    await onMesh({ dp: 2, sp: 1 }, (ctx) => {
      const model = new Blocks(ctx);
      expect(() => fullyShard(ctx, model, { axis: "tp" })).toThrow(/expected one of the axes dp, sp, received "tp"/);
      const units = [new Linear(ctx, 2, 2)];
      expect(() => fullyShard(ctx, model, { units })).toThrow(/units\[0\]: expected a submodule of the model/);
      expect(() => fullyShard(ctx, model, { stage: 4 as Stage })).toThrow(OptionError);
      const early = adamW(model);
      fullyShard(ctx, model);
      expect(() => fullyShard(ctx, model)).toThrow(
        /a model that is not sharded, received a sharded parameter "embed.weight"/,
      );
      expect(() => early.step()).toThrow(/call fullyShard\(ctx, model\) before new AdamW/);
    });
  });

  test.each(stages)("stage %i: a step with gradients that were not reduced, and NaN on every rank", async (stage) => {
    const errors = await onMesh({ dp: 2, sp: 1 }, async (ctx) => {
      const model = fullyShard(ctx, new Blocks(ctx), { stage });
      const optimizer = new AdamW(model, { errorIfNonFinite: true });
      backwardStep(ctx, model, 0).dispose();
      const lax = new AdamW(model, { allowLocalGradients: true });
      expect(() => lax.step()).toThrow(/gradients reduced over the 2 ranks/);
      expect(() => optimizer.step()).toThrow(/gradients reduced over the 2 ranks.*call reduceGradients/);
      reduceGradients(ctx, model);
      optimizer.step();
      await optimizer.assertFinite();
      optimizer.zeroGrad();
      using loss = backwardStep(ctx, model, 1);
      reduceGradients(ctx, model);
      // The last parameter, of which not every rank holds a part.
      using nan = full(ctx, [], Number.NaN);
      const { grad } = shardOf(model.norm.weight)!.tensor;
      if (grad!.size > 0) ctx.device.kernels.binary("mul", grad!, grad!, nan);
      optimizer.step({ loss });
      return optimizer.assertFinite().catch((error: unknown) => error);
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(NonFiniteError);
      expect((error as NonFiniteError).parameters).toEqual(["norm.weight"]);
    }
  });

  test.each(stages)(
    "stage %i: a backward after a step, as the parameters that were saved have moved",
    async (stage) => {
      await onMesh({ dp: 2, sp: 1 }, (ctx) => {
        const model = fullyShard(ctx, new Blocks(ctx), { stage });
        const optimizer = new AdamW(model);
        backwardStep(ctx, model, 0).dispose();
        reduceGradients(ctx, model);
        const loss = forwardStep(ctx, model, 1);
        optimizer.step();
        expect(() => loss.backward()).toThrow(AutogradError);
      });
    },
  );

  test("a parameter of stage 3 outside of its unit", async () => {
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

test("zeroGrad of the model and of the optimizer are the same, and frozen parameters are released", async () => {
  await onMesh({ dp: 2, sp: 1 }, async (ctx) => {
    for (const zero of ["model", "optimizer"] as const) {
      const model = new Blocks(ctx).eval();
      model.norm.weight.requiresGrad = false;
      fullyShard(ctx, model);
      const optimizer = new AdamW(model);
      const holders = { model, optimizer };
      for (let i = 0; i < 2; i++) {
        holders[zero].zeroGrad();
        backwardStep(ctx, model, 0).dispose();
        reduceGradients(ctx, model);
      }
      const { grad } = shardOf(model.blocks.at(1)!.mlp.parameters()[0]!)!.tensor;
      const once = await grad!.read();
      expect(model.norm.weight.storage.isReleased).toBe(true);
      // Without zeroGrad they add up.
      backwardStep(ctx, model, 0).dispose();
      reduceGradients(ctx, model);
      const twice = await shardOf(model.blocks.at(1)!.mlp.parameters()[0]!)!.tensor.grad!.read();
      const doubled = [...once].map((each) => 2 * each);
      expect(maxDifference(twice, doubled)).toBeLessThan(1e-6);
    }
  });
});

test("on one rank nothing is sharded", async () => {
  await alone((ctx) => {
    using model = new Blocks(ctx);
    expect(fullyShard(ctx, model, { axis: "sp" })).toBe(model);
    expect(model.parameters().some((parameter) => shardOf(parameter))).toBe(false);
  });
});

test("memory is given back with the model and the optimizer", async () => {
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
      // Tables of rotary embeddings are the modules' that made them.
      expect(ctx.device.memory().allocated - allocated).toBeLessThan(4096);
    });
  }
});
