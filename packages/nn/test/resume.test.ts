import { copyFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  AutogradError,
  type Context,
  type Coordinate,
  fromArray,
  Linear,
  type Module,
  randn,
  reduceGradients,
  shard,
  StateDictError,
  type Tensor,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  Dropout,
  FileError,
  findCheckpoint,
  fullyShard,
  GELU,
  LayerNorm,
  loadCheckpoint,
  mseLoss,
  type Optimizer,
  readSafetensors,
  saveCheckpoint,
  ScheduleFreeAdamW,
  Sequential,
  SGD,
  type TrainingState,
  writeSafetensors,
} from "../src/index.ts";
import { directory, isOpen } from "./reference/directory.ts";
import { getBatchShare, onOneRank, onMesh } from "./reference/world.ts";

function buildModel(ctx: Context): Sequential {
  return new Sequential(
    new Linear(ctx, 4, 8),
    new GELU(),
    new Dropout(ctx, 0.25),
    new LayerNorm(ctx, 8),
    new Linear(ctx, 8, 1),
  );
}

const hybridMesh: Coordinate = { dp_replicate: 2, dp_shard: 2, sp: 2 };
const optimizers: Readonly<Record<string, (model: Module) => Optimizer>> = {
  AdamW: (model) => new AdamW(model, { lr: 1e-2 }),
  ScheduleFreeAdamW: (model) => new ScheduleFreeAdamW(model, { lr: 1e-2, warmupSteps: 4 }),
  SGD: (model) => new SGD(model, { lr: 1e-2, momentum: 0.9, nesterov: true, weightDecay: 1e-2 }),
};

/** Trains on data from the context's random number generator, from which a resumed run must draw the same numbers. */
async function trainSteps(
  ctx: Context,
  { model, optimizer }: { model: Sequential; optimizer: Optimizer },
  steps: number,
): Promise<number[]> {
  const losses: number[] = [];
  for (let step = 0; step < steps; step++) {
    using fullInput = randn(ctx, [4, 6, 4], { seed: 9 });
    const { index, count } = getBatchShare(ctx);
    const rowsPerRank = 4 / count;
    using rankInput = fullInput.slice(0, index * rowsPerRank, (index + 1) * rowsPerRank);
    using x = shard(ctx, rankInput, 1);
    using target = x.slice(-1, 0, 1).contiguous();
    using out = model.forward(x);
    using loss = mseLoss(ctx, out, target);
    loss.backward();
    reduceGradients(ctx, model);
    optimizer.step();
    optimizer.zeroGrad();
    losses.push(await loss.item());
  }
  return losses;
}

const values = (state: ReadonlyMap<string, Tensor>) =>
  Promise.all([...state].map(async ([name, each]) => [name, Array.from(await each.read())]));

describe.each(Object.entries(optimizers))("%s", (_, createOptimizer) => {
  test.each<Coordinate>([{ sp: 1 }, { dp: 2, sp: 2 }, hybridMesh])(
    "resumes from a checkpoint bit for bit like an uninterrupted run, on %o",
    async (mesh) => {
      const path = join(directory(), "training.safetensors");
      const undisturbedLosses = await onMesh(mesh, async (ctx) => {
        const model = buildModel(ctx);
        const optimizer = createOptimizer(model);
        await trainSteps(ctx, { model, optimizer }, 5);
        await saveCheckpoint(ctx, path, { model, optimizer, data: { epoch: 2, note: "half" } });
        const losses = await trainSteps(ctx, { model, optimizer }, 5);
        return { losses, state: await values(model.stateDict()) };
      });
      const resumedLosses = await onMesh(mesh, async (ctx) => {
        const model = buildModel(ctx);
        const optimizer = createOptimizer(model);
        expect(await loadCheckpoint(ctx, path, { model, optimizer })).toEqual({
          steps: 5,
          data: { epoch: 2, note: "half" },
        });
        const losses = await trainSteps(ctx, { model, optimizer }, 5);
        return { losses, state: await values(model.stateDict()) };
      });
      expect(resumedLosses).toEqual(undisturbedLosses);
    },
  );
});

test("a checkpoint of 4 ranks loads on 1, 2 and 8 ranks, and training continues with the same losses", async () => {
  const path = join(directory(), "x");
  const trainWithResume = async (ctx: Context, shouldResume: boolean): Promise<number[]> => {
    const model = buildModel(ctx);
    const optimizer = optimizers.AdamW!(model);
    if (shouldResume) await loadCheckpoint(ctx, path, { model, optimizer });
    else {
      await trainSteps(ctx, { model, optimizer }, 3);
      await saveCheckpoint(ctx, path, { model, optimizer });
    }
    const state = (await values(model.stateDict())).flat(2) as number[];
    return [...state, ...(await trainSteps(ctx, { model, optimizer }, 4))];
  };
  const [expected] = await onMesh({ dp: 2, sp: 2 }, (ctx) => trainWithResume(ctx, false));
  for (const mesh of [{ sp: 1 }, { sp: 2 }, { dp: 4, sp: 2 }, hybridMesh] satisfies Coordinate[]) {
    for (const actual of await onMesh(mesh, (ctx) => trainWithResume(ctx, true))) {
      const parameters = expected!.length - 4;
      expect(actual.slice(0, parameters)).toEqual(expected!.slice(0, parameters));
      for (const [i, loss] of actual.slice(parameters).entries()) {
        expect(Math.abs(loss / expected![parameters + i]! - 1)).toBeLessThan(1e-5);
      }
    }
  }
});

describe("loadCheckpoint changes nothing on any rank if a checkpoint", () => {
  /** Reads everything that loading might change. */
  const readTrainingState = async (ctx: Context, model: Sequential, optimizer: Optimizer) => {
    const { numbers, tensors } = optimizer.stateDict();
    return [
      ctx.randomStream,
      numbers,
      await values(model.stateDict()),
      await values(tensors as ReadonlyMap<string, Tensor>),
    ];
  };

  async function loadAndExpectError(
    path: string,
    createModel: (ctx: Context) => Sequential = buildModel,
    seed = 3,
  ): Promise<unknown[]> {
    return onMesh(
      { sp: 2 },
      async (ctx) => {
        const model = createModel(ctx);
        const optimizer = optimizers.AdamW!(model);
        const stateBefore = await readTrainingState(ctx, model, optimizer);
        // Rank 1 finds a valid file, and must receive the failure of rank 0.
        const rankPath = path.includes("only0") && ctx.rank === 1 ? path.replace("only0", "sound") : path;
        const error = await loadCheckpoint(ctx, rankPath, { model, optimizer }).catch((each: unknown) => each);
        expect(await readTrainingState(ctx, model, optimizer)).toEqual(stateBefore);
        return error;
      },
      seed,
    );
  }

  async function saveCheckpointFile(createOptimizer = optimizers.AdamW!): Promise<string> {
    const path = join(directory(), "sound");
    await onOneRank(async (ctx) => {
      const model = buildModel(ctx);
      await saveCheckpoint(ctx, path, { model, optimizer: createOptimizer(model) });
    });
    return path;
  }

  test("is truncated", async () => {
    const path = await saveCheckpointFile();
    writeFileSync(path, readFileSync(path).subarray(0, 1000));
    for (const error of await loadAndExpectError(path)) {
      expect(error).toBeInstanceOf(FileError);
      expect(String(error)).toMatch(
        /^FileError: loadCheckpoint: \S+sound: .*a header of \d+ bytes in a file of 1000 bytes; pass a file in safetensors/,
      );
    }
  });

  test("has a format that has no float32 values", async () => {
    const path = await saveCheckpointFile();
    const bytes = readFileSync(path);
    // Has the same number of bytes per element.
    bytes.write('"U32"', bytes.indexOf('"F32"', bytes.indexOf('"optimizer.')));
    writeFileSync(path, bytes);
    for (const error of await loadAndExpectError(path)) {
      expect(String(error)).toMatch(
        /^\w+: loadCheckpoint: \S+, tensor "optimizer\.\S+": expected dtype F64, F32, .*, received U32/,
      );
    }
    expect(isOpen(path)).toBe(false);
  });

  test("is a directory", async () => {
    const path = directory();
    const message = `: ${path}: expected a safetensors file, received a directory; correct the path, or the permissions of the file`;
    for (const error of await loadAndExpectError(path)) {
      expect(error).toBeInstanceOf(FileError);
      expect((error as Error).message).toBe(`loadCheckpoint${message}`);
    }
    await onOneRank(async (ctx) => {
      await expect(findCheckpoint(ctx, path)).rejects.toThrow(`findCheckpoint${message}`);
    });
  });

  test("is damaged for one rank only", async () => {
    const path = await saveCheckpointFile();
    const damagedPath = path.replace("sound", "only0");
    copyFileSync(path, damagedPath);
    writeFileSync(damagedPath, readFileSync(damagedPath).subarray(0, -1));
    const [rank0Error, rank1Error] = await loadAndExpectError(damagedPath);
    expect(String(rank0Error)).toMatch(/restore the file from a copy/);
    expect(String(rank1Error)).toMatch(/rank 1: expected success on every rank, received a failure on rank 0/);
  });

  test("is missing, has no training state, or has another model, optimizer or seed", async () => {
    const path = await saveCheckpointFile();
    const createWiderModel = (ctx: Context) => new Sequential(new Linear(ctx, 4, 8), new GELU(), new Linear(ctx, 8, 2));
    for (const error of await loadAndExpectError(path, createWiderModel)) {
      expect(error).toBeInstanceOf(StateDictError);
      expect(String(error)).toMatch(
        /^StateDictError: loadCheckpoint: \S+sound: Sequential\.loadStateDict: .* missing "2\.weight", "2\.bias"; unexpected "3\.bias", "3\.weight"/,
      );
    }
    expect(String((await loadAndExpectError(await saveCheckpointFile(optimizers.ScheduleFreeAdamW)))[0])).toMatch(
      /^StateDictError: loadCheckpoint: \S+: .*the state of AdamW, received the state of ScheduleFreeAdamW/,
    );
    expect(String((await loadAndExpectError(path, buildModel, 4))[0])).toMatch(
      /seed 4, the seed of the context, received 3; pass seed: 3 to init/,
    );
    expect(String((await loadAndExpectError(join(directory(), "none")))[0])).toMatch(
      /FileError: loadCheckpoint: .*none: expected a checkpoint, received no such file; correct the path, or call findCheckpoint/,
    );
    const invalidMetadata: Record<string, string>[] = [{}, { mosaic: "{" }, { mosaic: '{"version":2}' }];
    for (const metadata of invalidMetadata) {
      const plainPath = join(directory(), "plain");
      await writeSafetensors(plainPath, new Map(), metadata);
      expect(String((await loadAndExpectError(plainPath))[0])).toMatch(
        /^FileError: loadCheckpoint: \S+plain: expected a checkpoint, version 1/,
      );
    }
    const barePath = join(directory(), "bare");
    await onOneRank((ctx) => saveCheckpoint(ctx, barePath, { model: buildModel(ctx) }));
    expect(String((await loadAndExpectError(barePath))[0])).toMatch(/an optimizer's state, received none/);
  });
});

test("a checkpoint of another dtype is rejected with a remedy that applies to loadCheckpoint", async () => {
  const path = join(directory(), "x");
  await onMesh({ sp: 2 }, async (ctx) => {
    await saveCheckpoint(ctx, path, { model: new Linear(ctx, 2, 2, { dtype: "bfloat16" }) });
    const model = new Linear(ctx, 2, 2);
    const before = await values(model.stateDict());
    await expect(loadCheckpoint(ctx, path, { model })).rejects.toThrow(
      /^.*: expected "weight" and 1 more with the dtype of the model, float32, received bfloat16; create the model with dtype: "bfloat16"; no tensor was modified$/,
    );
    expect(await values(model.stateDict())).toEqual(before);
  });
});

test.each([0, 1, 2, 3] as const)("a backward after loadCheckpoint is rejected, in stage %i of ZeRO", async (stage) => {
  const path = join(directory(), "x");
  await onMesh({ dp: 2 }, async (ctx) => {
    const model = new Sequential(new Linear(ctx, 2, 3), new Linear(ctx, 3, 1));
    if (stage !== 0) fullyShard(ctx, model, { stage });
    await saveCheckpoint(ctx, path, { model });
    using x = fromArray(ctx, [1, 2], [1, 2]);
    const loss = model.forward(x).sum();
    await loadCheckpoint(ctx, path, { model });
    expect(() => loss.backward()).toThrow(AutogradError);
  });
});

test("saveCheckpoint creates the folder of the checkpoint, and loadCheckpoint closes the file", async () => {
  const path = join(directory(), "runs", "first", "x");
  await onOneRank(async (ctx) => {
    await saveCheckpoint(ctx, path, { model: buildModel(ctx) });
    await loadCheckpoint(ctx, path, { model: buildModel(ctx) });
  });
  expect(existsSync(path)).toBe(true);
  expect(isOpen(path)).toBe(false);
});

test("a checkpoint that cannot be written causes an error on every rank", async () => {
  const file = join(directory(), "file");
  writeFileSync(file, "");
  const errors = await onMesh({ sp: 2 }, (ctx) =>
    saveCheckpoint(ctx, join(file, "x"), { model: buildModel(ctx) }).catch((error: unknown) => String(error)),
  );
  expect(errors[0]).toMatch(
    /FileError: saveCheckpoint: .*: expected a folder that exists or can be created, received EEXIST/,
  );
  expect(errors[1]).toMatch(/a failure on rank 0/);
});

test("paths that differ between ranks are rejected on every rank, and no file is written", async () => {
  const path = join(directory(), "state");
  const errors = await onMesh({ sp: 2 }, (ctx) =>
    saveCheckpoint(ctx, `${path}-${ctx.rank}`, { model: buildModel(ctx) }).catch((error: unknown) => String(error)),
  );
  for (const error of errors)
    expect(error).toMatch(
      /^OptionError: saveCheckpoint: path: expected the same path on every rank, received .*1" on rank 1/,
    );
  expect([0, 1].map((rank) => existsSync(`${path}-${rank}`))).toEqual([false, false]);
});

const invalidArguments = [
  ["path", { path: undefined }, /^OptionError: \w+: expected the path of a file, received undefined/],
  ["option", { options: { copies: "none" } }, /^OptionError: \w+: copies: expected/],
  ["model", { model: null }, /^OptionError: \w+: model: expected a Module, received null/],
] as const;

const invalidCalls = [0, 3].flatMap((stage) => invalidArguments.map((each) => [...each, stage as 0 | 3] as const));

test.each(invalidCalls)("an invalid %s on one rank is an error on every rank (%o, %s, stage %i)", async (...call) => {
  const [, changes, message, stage] = call;
  const directoryPath = directory();
  await onMesh({ dp: 2 }, async (ctx) => {
    using model = buildModel(ctx);
    if (stage !== 0) fullyShard(ctx, model, { stage });
    const validArguments = { path: join(directoryPath, "state"), model, options: {} };
    await saveCheckpoint(ctx, validArguments.path, { model });
    const args = (ctx.rank === 1 ? { ...validArguments, ...changes } : validArguments) as typeof validArguments;
    const calls: readonly (() => Promise<unknown>)[] = [
      () => saveCheckpoint(ctx, args.path, { model: args.model }, args.options),
      () => loadCheckpoint(ctx, args.path, { model: args.model }, args.options),
      ...("model" in changes ? [] : [() => findCheckpoint(ctx, args.path, args.options)]),
    ];
    for (const invalidCall of calls) {
      const error = String(await invalidCall().catch((reason: unknown) => reason));
      expect(error).toMatch(ctx.rank === 1 ? message : /rank 0: .* received a failure on rank 1 \(/);
    }
    await saveCheckpoint(ctx, validArguments.path, { model });
  });
});

test("the weights of a model load from a training checkpoint and from a plain safetensors file", async () => {
  const path = join(directory(), "x");
  await onOneRank(async (ctx) => {
    const [model, otherModel] = [buildModel(ctx), buildModel(ctx)];
    await saveCheckpoint(ctx, path, { model });
    expect(await loadCheckpoint(ctx, path, { model: otherModel })).toEqual({ steps: 0, data: null });
    await writeSafetensors(path, model.stateDict());
    const thirdModel = buildModel(ctx);
    thirdModel.loadStateDict((await readSafetensors(path)).tensors);
    const expectedState = await values(model.stateDict());
    for (const loadedModel of [otherModel, thirdModel])
      expect(await values(loadedModel.stateDict())).toEqual(expectedState);
    using x = fromArray(ctx, [1, 2, 3, 4], [1, 1, 4]);
    expect(await thirdModel.eval().forward(x).read()).toEqual(await model.eval().forward(x).read());
  });
});

test("a checkpoint has the values at the call of saveCheckpoint, even if training continues", () =>
  onOneRank(async (ctx) => {
    const path = join(directory(), "x");
    using model = new Linear(ctx, 2, 1, { bias: false });
    using optimizer = new AdamW(model, { lr: 0.1 });
    model.weight.grad = fromArray(ctx, [1, 1], [1, 2]);
    optimizer.step();
    const readState = async (state: TrainingState): Promise<unknown> => [
      await values(state.model.stateDict()),
      await values(state.optimizer!.stateDict().tensors as ReadonlyMap<string, Tensor>),
    ];
    const expectedState = await readState({ model, optimizer });
    const data = { epoch: 1, losses: [0.5] };
    const saving = saveCheckpoint(ctx, path, { model, optimizer, data });
    optimizer.step();
    data.epoch = 2;
    data.losses.push(0.25);
    await saving;
    using otherModel = new Linear(ctx, 2, 1, { bias: false });
    using otherOptimizer = new AdamW(otherModel);
    const loadedState = { model: otherModel, optimizer: otherOptimizer };
    const loaded = await loadCheckpoint(ctx, path, loadedState);
    expect(loaded).toEqual({ steps: 1, data: { epoch: 1, losses: [0.5] } });
    expect(await readState(loadedState)).toEqual(expectedState);
    optimizer.zeroGrad();
  }));
