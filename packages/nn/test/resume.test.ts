import { copyFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
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
  GELU,
  LayerNorm,
  loadCheckpoint,
  mseLoss,
  type Optimizer,
  readSafetensors,
  saveCheckpoint,
  ScheduleFreeAdamW,
  Sequential,
  writeSafetensors,
} from "../src/index.ts";
import { directory } from "./reference/directory.ts";
import { alone, onMesh } from "./reference/world.ts";

function build(ctx: Context): Sequential {
  return new Sequential(
    new Linear(ctx, 4, 8),
    new GELU(),
    new Dropout(ctx, 0.25),
    new LayerNorm(ctx, 8),
    new Linear(ctx, 8, 1),
  );
}

const optimizers: Readonly<Record<string, (model: Module) => Optimizer>> = {
  AdamW: (model) => new AdamW(model, { lr: 1e-2 }),
  ScheduleFreeAdamW: (model) => new ScheduleFreeAdamW(model, { lr: 1e-2, warmupSteps: 4 }),
};

/** Steps on data drawn from the context's own random numbers, which a resumed run must draw alike. */
async function train(
  ctx: Context,
  { model, optimizer }: { model: Sequential; optimizer: Optimizer },
  steps: number,
): Promise<number[]> {
  const losses: number[] = [];
  for (let step = 0; step < steps; step++) {
    using whole = randn(ctx, [4, 6, 4], { seed: 9 });
    const { dp: own = 0 } = ctx.mesh.coordinate;
    const each = 4 / (ctx.mesh.shape.dp ?? 1);
    using part = whole.slice(0, own * each, (own + 1) * each);
    using x = shard(ctx, part, 1);
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

describe.each(Object.entries(optimizers))("%s", (_, make) => {
  test.each<Coordinate>([{ sp: 1 }, { dp: 2, sp: 2 }])(
    "saved, loaded and continued, bit for bit the undisturbed run, on %o",
    async (mesh) => {
      const path = join(directory(), "training.safetensors");
      const undisturbed = await onMesh(mesh, async (ctx) => {
        const model = build(ctx);
        const optimizer = make(model);
        await train(ctx, { model, optimizer }, 5);
        await saveCheckpoint(ctx, path, { model, optimizer, data: { epoch: 2, note: "half" } });
        const losses = await train(ctx, { model, optimizer }, 5);
        return { losses, state: await values(model.stateDict()) };
      });
      const resumed = await onMesh(mesh, async (ctx) => {
        const model = build(ctx);
        const optimizer = make(model);
        expect(await loadCheckpoint(ctx, path, { model, optimizer })).toEqual({
          steps: 5,
          data: { epoch: 2, note: "half" },
        });
        const losses = await train(ctx, { model, optimizer }, 5);
        return { losses, state: await values(model.stateDict()) };
      });
      expect(resumed).toEqual(undisturbed);
    },
  );
});

test("a checkpoint of 4 ranks opens on 1, 2 and 8, and training goes on as it would have", async () => {
  const path = join(directory(), "x");
  const run = async (ctx: Context, resume: boolean): Promise<number[]> => {
    const model = build(ctx);
    const optimizer = optimizers.AdamW!(model);
    if (resume) await loadCheckpoint(ctx, path, { model, optimizer });
    else {
      await train(ctx, { model, optimizer }, 3);
      await saveCheckpoint(ctx, path, { model, optimizer });
    }
    const state = (await values(model.stateDict())).flat(2) as number[];
    return [...state, ...(await train(ctx, { model, optimizer }, 4))];
  };
  const [expected] = await onMesh({ dp: 2, sp: 2 }, (ctx) => run(ctx, false));
  for (const mesh of [{ sp: 1 }, { sp: 2 }, { dp: 4, sp: 2 }] satisfies Coordinate[]) {
    for (const found of await onMesh(mesh, (ctx) => run(ctx, true))) {
      const parameters = expected!.length - 4;
      expect(found.slice(0, parameters)).toEqual(expected!.slice(0, parameters));
      for (const [i, loss] of found.slice(parameters).entries()) {
        expect(Math.abs(loss / expected![parameters + i]! - 1)).toBeLessThan(1e-5);
      }
    }
  }
});

describe("a checkpoint that does not fit changes nothing, on any rank", () => {
  /** Everything that loading might change. */
  const all = async (ctx: Context, model: Sequential, optimizer: Optimizer) => {
    const { numbers, tensors } = optimizer.stateDict();
    return [
      ctx.randomStream,
      numbers,
      await values(model.stateDict()),
      await values(tensors as ReadonlyMap<string, Tensor>),
    ];
  };

  async function refused(path: string, make: (ctx: Context) => Sequential = build, seed = 3): Promise<unknown[]> {
    return onMesh(
      { sp: 2 },
      async (ctx) => {
        const model = make(ctx);
        const optimizer = optimizers.AdamW!(model);
        const before = await all(ctx, model, optimizer);
        // Rank 1 finds a sound file: rank 0's failure must reach it.
        const own = path.includes("only0") && ctx.rank === 1 ? path.replace("only0", "sound") : path;
        const error = await loadCheckpoint(ctx, own, { model, optimizer }).catch((each: unknown) => each);
        expect(await all(ctx, model, optimizer)).toEqual(before);
        return error;
      },
      seed,
    );
  }

  async function saved(make = optimizers.AdamW!): Promise<string> {
    const path = join(directory(), "sound");
    await alone(async (ctx) => {
      const model = build(ctx);
      await saveCheckpoint(ctx, path, { model, optimizer: make(model) });
    });
    return path;
  }

  test("cut short", async () => {
    const path = await saved();
    writeFileSync(path, readFileSync(path).subarray(0, 1000));
    for (const error of await refused(path)) {
      expect(error).toBeInstanceOf(FileError);
      expect(String(error)).toMatch(/a header of \d+ bytes in a file of 1000 bytes; pass a file in safetensors format/);
    }
  });

  test("damaged for one rank only", async () => {
    const path = await saved();
    const damaged = path.replace("sound", "only0");
    copyFileSync(path, damaged);
    writeFileSync(damaged, readFileSync(damaged).subarray(0, -1));
    const [first, second] = await refused(damaged);
    expect(String(first)).toMatch(/restore the file from a copy/);
    expect(String(second)).toMatch(/rank 1: expected success on every rank, received a failure on rank 0/);
  });

  test("of another model, another optimizer or another seed; missing; without a training's state", async () => {
    const path = await saved();
    const wider = (ctx: Context) => new Sequential(new Linear(ctx, 4, 8), new GELU(), new Linear(ctx, 8, 2));
    for (const error of await refused(path, wider)) {
      expect(error).toBeInstanceOf(StateDictError);
      expect(String(error)).toMatch(/missing "2\.weight", "2\.bias"; unexpected "3\.bias", "3\.weight"/);
    }
    expect(String((await refused(await saved(optimizers.ScheduleFreeAdamW)))[0])).toMatch(
      /the state of AdamW, received the state of ScheduleFreeAdamW/,
    );
    expect(String((await refused(path, build, 4))[0])).toMatch(
      /seed 4, the seed of the context, received 3; pass seed: 3 to init/,
    );
    expect(String((await refused(join(directory(), "none")))[0])).toMatch(
      /FileError: loadCheckpoint: .*none: expected a checkpoint, received no such file; correct the path, or call findCheckpoint/,
    );
    const faulty: Record<string, string>[] = [{}, { mosaic: "{" }, { mosaic: '{"version":2}' }];
    for (const metadata of faulty) {
      const plain = join(directory(), "plain");
      await writeSafetensors(plain, new Map(), metadata);
      expect(String((await refused(plain))[0])).toMatch(/a checkpoint, version 1/);
    }
    const bare = join(directory(), "bare");
    await alone((ctx) => saveCheckpoint(ctx, bare, { model: build(ctx) }));
    expect(String((await refused(bare))[0])).toMatch(/an optimizer's state, received none/);
  });
});

test("a checkpoint's folder is made", async () => {
  const path = join(directory(), "runs", "first", "x");
  await alone((ctx) => saveCheckpoint(ctx, path, { model: build(ctx) }));
  expect(existsSync(path)).toBe(true);
});

test("a checkpoint that cannot be written is an error on every rank", async () => {
  const file = join(directory(), "file");
  writeFileSync(file, "");
  const errors = await onMesh({ sp: 2 }, (ctx) =>
    saveCheckpoint(ctx, join(file, "x"), { model: build(ctx) }).catch((error: unknown) => String(error)),
  );
  expect(errors[0]).toMatch(
    /FileError: saveCheckpoint: .*: expected a folder that exists or can be created, received EEXIST/,
  );
  expect(errors[1]).toMatch(/a failure on rank 0/);
});

test("a model's weights load from a training's checkpoint, and from a plain file", async () => {
  const path = join(directory(), "x");
  await alone(async (ctx) => {
    const [model, other] = [build(ctx), build(ctx)];
    await saveCheckpoint(ctx, path, { model });
    expect(await loadCheckpoint(ctx, path, { model: other })).toEqual({ steps: 0, data: null });
    await writeSafetensors(path, model.stateDict());
    const third = build(ctx);
    third.loadStateDict((await readSafetensors(path)).tensors);
    const wanted = await values(model.stateDict());
    for (const each of [other, third]) expect(await values(each.stateDict())).toEqual(wanted);
    using x = fromArray(ctx, [1, 2, 3, 4], [1, 1, 4]);
    expect(await third.eval().forward(x).read()).toEqual(await model.eval().forward(x).read());
  });
});
