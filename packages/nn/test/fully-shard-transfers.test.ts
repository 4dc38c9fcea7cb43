import {
  checkpoint,
  type Context,
  fromArray,
  Linear,
  Module,
  noGrad,
  ones,
  reduceGradients,
  scope,
  type Tensor,
  type Work,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  fullyShard,
  ModuleList,
  readStateDict,
  Sequential,
  summonFullParameters,
  SwiGLU,
} from "../src/index.ts";
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
import { onMesh } from "./reference/world.ts";

// Memory use of sharding, the bytes it sends, and the order of its transfers.

describe("memory and traffic match the formulas", () => {
  test.each(stages.flatMap((stage) => [2, 4].map((ranks) => ({ stage, ranks }))))(
    "stage $stage on $ranks ranks",
    async ({ stage, ranks }) => {
      await onMesh({ dp: ranks, sp: 1 }, async (ctx) => {
        const { device } = ctx;
        const allocatedBefore = device.memory().allocated;
        using model = fullyShard(ctx, new Blocks(ctx), { stage });
        const units = listUnitSizes(model);
        const shardBytes = units.reduce((sum, unit) => sum + 4 * computeShardSize(unit, ranks), 0);
        const parameters = stage === 3 ? shardBytes : ranks * shardBytes;
        // The tables of rotary embeddings are created by the first forward.
        expect(device.memory().allocated - allocatedBefore).toBe(parameters);
        using optimizer = new AdamW(model);
        // Two numbers per element on this rank. Blocks of memory are multiples of 64 bytes.
        const stateBytes = device.memory().allocated - allocatedBefore - parameters;
        expect(stateBytes).toBeGreaterThanOrEqual(0);
        expect(stateBytes).toBeLessThanOrEqual(2 * (shardBytes + 64 * model.parameters().length));

        backwardStep(ctx, model, 0).dispose();
        reduceGradients(ctx, model);
        optimizer.step();
        await device.stream.synchronize();
        const group = ctx.mesh.group("dp");
        const allocatedBeforeZeroGrad = device.memory().allocated;
        optimizer.zeroGrad();
        expect(allocatedBeforeZeroGrad - device.memory().allocated, "gradients").toBe(shardBytes);

        const bytesSentBefore = group.traffic().bytesSent;
        await trainBlocks(ctx, { model, optimizer, maxNorm: Infinity });
        await device.stream.synchronize();
        const rootUnitShardBytes = 4 * computeShardSize(units.at(-1)!, ranks);
        // One reduce-scatter and one all-gather. Stage 3 has another all-gather before the backward, except for the
        // model's own unit.
        const expectedBytes =
          stage === 3 ? 3 * (shardBytes - rootUnitShardBytes) + 2 * rootUnitShardBytes : 2 * shardBytes;
        // The loss and its count are all-reduced over all ranks: 12 bytes to each other rank.
        expect(group.traffic().bytesSent - bytesSentBefore).toBe((ranks - 1) * (expectedBytes + 12));
      });
    },
  );
});

test("every stage posts the transfers of a unit before the computation that they overlap", async () => {
  const record = async (stage: Stage): Promise<string[]> => {
    const [log] = await onMesh({ dp: 2 }, (ctx) => {
      using model = new Sequential(...[0, 1, 2].map(() => new Linear(ctx, 8, 8)));
      fullyShard(ctx, model, { stage });
      const events: string[] = [];
      const group = ctx.mesh.group("dp");
      for (const name of ["allGather", "reduceScatter"] as const) {
        const post = group[name].bind(group) as (...args: unknown[]) => Work;
        group[name] = (...args: unknown[]) => {
          events.push(name);
          return post(...args);
        };
      }
      for (const [i, layer] of [...model].entries()) {
        layer.registerForwardPreHook((args) => {
          events.push(`forward ${i}`);
          return args;
        });
        layer.registerForwardHook((y) => addBackwardHook(y as Tensor, () => events.push(`backward ${i}`)));
      }
      using x = ones(ctx, [1, 8]);
      x.requiresGrad = true;
      using loss = scope(() => model.forward(x).sum());
      loss.backward();
      reduceGradients(ctx, model);
      return events;
    });
    return log!;
  };
  const layers = ["backward 2", "reduceScatter", "backward 1", "reduceScatter", "backward 0", "reduceScatter"];
  // The all-gather at the end has the result of the comparison of whole parameters.
  for (const stage of [1, 2] as const)
    expect(await record(stage)).toEqual(["forward 0", "forward 1", "forward 2", ...layers, "allGather"]);
  expect(await record(3)).toEqual([
    ...["allGather", "allGather", "forward 0", "allGather", "forward 1", "forward 2"],
    // The logging hook runs before the hook that gathers for the backward: the unit itself, and the previous one.
    ...["backward 2", "allGather", "allGather", "reduceScatter", "backward 1", "allGather", "reduceScatter"],
    ...["backward 0", "reduceScatter"],
  ]);
});

test("stage 1 begins to reduce before the last kernel of the backward, in the same order on every rank", async () => {
  const eventsByRank = await onMesh({ dp: 4 }, async (ctx) => {
    using model = fullyShard(
      ctx,
      new Sequential(...[8, 16, 8].map((width) => new SwiGLU(ctx, { embedDim: 8, hiddenDim: width }))),
      {
        stage: 1,
      },
    );
    using x = ones(ctx, [1, 8]);
    x.requiresGrad = true;
    using loss = scope(() => model.forward(x).sum());
    await ctx.device.stream.synchronize();
    ctx.startTrace();
    loss.backward();
    await ctx.device.stream.synchronize();
    const events = await ctx.stopTrace();
    const compute = events.filter(({ lane }) => lane === "compute").map(({ name }) => name);
    const postIndices = compute.flatMap((name, i) => (name === "collective ready" ? [i] : []));
    // The gradients of the last unit are packed and posted after all kernels of the backward, those of the others
    // earlier.
    const lastKernelIndex = compute.findLastIndex((name) => !/^(fill|copy|collective .*)$/.test(name));
    expect(postIndices.map((postIndex) => postIndex < lastKernelIndex)).toEqual([true, true, false]);
    const transfers = events.filter(({ lane }) => lane === "communication");
    reduceGradients(ctx, model);
    await ctx.device.stream.synchronize();
    return transfers.map(({ name, label, bytesSent }) => ({ name, label, bytesSent }));
  });
  expect(eventsByRank[0]!.map(({ name }) => name)).toEqual(["reduceScatter", "reduceScatter", "reduceScatter"]);
  for (const rankEvents of eventsByRank) expect(rankEvents).toEqual(eventsByRank[0]);
});

test("stage 1 accumulates whole gradients, bitwise equal to no sharding, with one reduction per step", async () => {
  const ranks = 2;
  const trainAndCount = async (ctx: Context, stage: Stage | 0) => {
    using model = new Blocks(ctx);
    if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage });
    using optimizer = adamW(model);
    const group = ctx.mesh.group("dp");
    const bytesSentByStep: number[] = [];
    await ctx.device.stream.synchronize();
    for (let step = 0; step < 4; step++) {
      const bytesSentBefore = group.traffic().bytesSent;
      // From the second step on, a step has as many backwards as the previous one. In the last step, a gradient changes
      // after them.
      for (const microBatch of [0, 1]) backwardStep(ctx, model, 2 * step + microBatch).dispose();
      const { grad } = model.blocks.at(1)!.norm.parameters()[0]!;
      if (step === 3) ctx.device.kernels.scalar("mul", grad!, grad!, 2);
      reduceGradients(ctx, model);
      optimizer.step();
      optimizer.zeroGrad();
      await ctx.device.stream.synchronize();
      bytesSentByStep.push(group.traffic().bytesSent - bytesSentBefore);
    }
    const units = listUnitSizes(model).map((unit) => 4 * computeShardSize(unit, ranks));
    const sizes = model.parameters().map(({ size }) => size);
    return { parameters: await readParameters(model), sizes, sent: bytesSentByStep, units };
  };
  const mesh = { dp: ranks, sp: 1 };
  const [[unshardedResult], [shardedResult]] = [
    await onMesh(mesh, (ctx) => trainAndCount(ctx, 0)),
    await onMesh(mesh, (ctx) => trainAndCount(ctx, 1)),
  ];
  expect(shardedResult!.parameters).toEqual(unshardedResult!.parameters);
  const { units, sizes, sent } = shardedResult!;
  const shard = units.reduce((sum, unit) => sum + unit, 0);
  // A reduce-scatter and an all-gather, the loss and its count of two backwards, and the reductions that were posted
  // too early.
  const countExpectedBytes = (earlyBytes: number): number => (ranks - 1) * (2 * shard + earlyBytes + 2 * 12);
  // In the first step, rank 0 sends its parameters and one number for each of them, to compare them.
  const compareBytes = 4 * sizes.reduce((sum, size) => sum + size, 0) + 4 * sizes.length;
  expect(sent).toEqual([
    countExpectedBytes(shard - units.at(-1)!) + compareBytes,
    countExpectedBytes(0),
    countExpectedBytes(0),
    countExpectedBytes(units[1]!),
  ]);
});

/** Returns a view of x. `body` runs when its gradient is complete. */
function addBackwardHook(x: Tensor, body: () => void): Tensor {
  return x.view({}).record([x], {
    name: "log",
    backward(dOutput) {
      body();
      return [dOutput];
    },
    free() {},
  });
}

test("peak memory decreases with every stage", async () => {
  const [width, layers, ranks] = [96, 8, 4];
  const measurePeakBytes = async (stage: Stage | 0): Promise<number> => {
    const peakByRank = await onMesh({ dp: ranks }, async (ctx) => {
      using model = new Sequential(...Array.from({ length: layers }, () => new Linear(ctx, width, width)));
      if (stage > 0) fullyShard(ctx, model, { stage: stage as Stage });
      using optimizer = new AdamW(model);
      for (let step = 0; step < 2; step++) {
        using x = fromArray(ctx, Array(width).fill(0.1 * ctx.rank), [1, width]);
        x.requiresGrad = true;
        using y = model.forward(x);
        using loss = y.sum();
        if (step === 1) ctx.device.resetPeakMemory();
        loss.backward();
        reduceGradients(ctx, model);
        optimizer.step();
        optimizer.zeroGrad();
        x.grad?.dispose();
      }
      await ctx.device.stream.synchronize();
      return ctx.device.memory().peak;
    });
    return Math.max(...peakByRank);
  };
  const [unshardedPeak, stage1Peak, stage2Peak, stage3Peak] = [
    await measurePeakBytes(0),
    await measurePeakBytes(1),
    await measurePeakBytes(2),
    await measurePeakBytes(3),
  ];
  const unit = 4 * computeShardSize([width * width, width], ranks) * ranks;
  // AdamW's states, two numbers per parameter: 8 of 8 layers without sharding, 2 of 8 with it. Without sharding, one
  // bucket holds all gradients.
  expect(unshardedPeak - stage1Peak).toBeGreaterThan(2 * layers * unit * (1 - 1 / ranks));
  // Gradients: those of all layers, or those of one layer, two buckets and this rank's shards.
  expect(stage1Peak - stage2Peak).toBeGreaterThan((layers - layers / ranks - 3) * unit);
  // Parameters: all, or this rank's shards, two layers and the one that is being gathered.
  expect(stage2Peak - stage3Peak).toBeGreaterThan((layers - layers / ranks - 3) * unit);
});

describe("stage 3 holds gathered parameters only while their unit computes", () => {
  const createLayers = (ctx: Context, count: number): Linear[] =>
    Array.from({ length: count }, () => new Linear(ctx, 8, 8));
  const listGathered = (layers: readonly Linear[]): boolean[] => layers.map(({ weight }) => !weight.storage.isReleased);

  test.each([1, 2, 3])("in every forward of a model of %i units", async (numLayers) => {
    await onMesh({ dp: 2 }, (ctx) => {
      const layers = createLayers(ctx, numLayers);
      using model = fullyShard(ctx, new Sequential(...layers));
      const group = ctx.mesh.group("dp");
      const allGather = group.allGather.bind(group);
      const events: string[] = [];
      group.allGather = (...args: Parameters<typeof allGather>) => {
        events.push("allGather");
        return allGather(...args);
      };
      for (const [i, layer] of layers.entries()) layer.registerForwardPreHook(() => void events.push(`forward ${i}`));
      using x = ones(ctx, [1, 8]);
      x.requiresGrad = true;
      const runForward = (): Tensor => {
        events.length = 0;
        const loss = scope(() => model.forward(x).sum());
        expect(listGathered(layers)).toEqual(layers.map(() => false));
        // Before a unit computes, its own parameters and those of the next unit are gathered.
        const later = layers.slice(1).flatMap((_, i) => ["allGather", `forward ${i}`]);
        expect(events).toEqual(["allGather", ...later, `forward ${numLayers - 1}`]);
        return loss;
      };
      // A forward without a backward, two forwards before their backwards, and another step.
      noGrad(runForward).dispose();
      const losses = [runForward(), runForward()];
      for (const loss of losses) loss.backward();
      reduceGradients(ctx, model);
      runForward().backward();
      expect(listGathered(layers)).toEqual(layers.map(() => false));
      for (const loss of losses) loss.dispose();
    });
  });

  test("in a checkpoint of several units", async () => {
    await onMesh({ dp: 2 }, (ctx) => {
      const layers = createLayers(ctx, 4);
      using model = fullyShard(ctx, new ModuleList(layers), { units: layers });
      using x = ones(ctx, [1, 8]);
      x.requiresGrad = true;
      using loss = scope(() => {
        const runPair = (first: number, input: Tensor): Tensor =>
          checkpoint((each) => layers[first + 1]!.forward(layers[first]!.forward(each)), input);
        return runPair(2, runPair(0, x)).sum();
      });
      expect(listGathered(layers)).toEqual(layers.map(() => false));
      loss.backward();
      expect(listGathered(layers)).toEqual(layers.map(() => false));
      reduceGradients(ctx, model);
    });
  });

  test("in units whose arguments and results are in maps and sets", async () => {
    class MapUnit extends Module {
      readonly linear: Linear;

      constructor(ctx: Context) {
        super();
        this.linear = this.addChild("linear", new Linear(ctx, 8, 8));
      }

      forward(inputs: ReadonlyMap<string, Tensor>): Set<Tensor> {
        return new Set([this.linear.forward(inputs.get("x")!)]);
      }
    }
    await onMesh({ dp: 2 }, (ctx) => {
      const units = [new MapUnit(ctx), new MapUnit(ctx)];
      using model = fullyShard(ctx, new ModuleList(units), { units });
      using x = ones(ctx, [1, 8]);
      x.requiresGrad = true;
      using loss = scope(() => {
        const [hidden] = units[0]!.forward(new Map([["x", x]]));
        const [output] = units[1]!.forward(new Map([["x", hidden!]]));
        return output!.sum();
      });
      loss.backward();
      expect(listGathered(units.map(({ linear }) => linear))).toEqual([false, false]);
      reduceGradients(ctx, model);
    });
  });

  test("and the parameters outside of units once, from the first forward of any module of the model", async () => {
    class Model extends Module {
      readonly units: ModuleList<Linear>;
      readonly mlp: SwiGLU;
      readonly head: Linear;

      constructor(ctx: Context) {
        super();
        this.units = this.addChild("units", new ModuleList(createLayers(ctx, 2)));
        this.mlp = this.addChild("mlp", new SwiGLU(ctx, { embedDim: 8, hiddenDim: 16 }));
        this.head = this.addChild("head", new Linear(ctx, 8, 8));
      }
    }
    const firstForwards: ((model: Model, x: Tensor) => Tensor)[] = [
      ({ mlp, head, units }, x) => head.forward(units.at(1)!.forward(mlp.forward(x))),
      ({ mlp, head, units }, x) => mlp.forward(units.at(1)!.forward(head.forward(x))),
      // As in linearCrossEntropy, which reads the weight of the output projection.
      ({ mlp, head, units }, x) => units.at(1)!.forward(x).linear(head.weight).add(mlp.forward(x)),
    ];
    for (const stage of [2, 3] as const) {
      await onMesh({ dp: 2 }, (ctx) => {
        const group = ctx.mesh.group("dp");
        const allGather = group.allGather.bind(group);
        let numGathers = 0;
        group.allGather = (...args: Parameters<typeof allGather>) => {
          numGathers++;
          return allGather(...args);
        };
        for (const forward of firstForwards) {
          using model = fullyShard(ctx, new Model(ctx), { stage });
          // A fused operation, which hooks would prevent.
          expect(model.mlp.upProjection.hasForwardHooks).toBe(false);
          using x = ones(ctx, [1, 8]);
          x.requiresGrad = true;
          numGathers = 0;
          using loss = scope(() => forward(model, x).sum());
          // The root unit, and the last unit.
          expect(numGathers).toBe(stage === 3 ? 2 : 0);
          expect(listGathered([model.units.at(1)!, model.head, model.mlp.upProjection])).toEqual([
            stage === 2,
            true,
            true,
          ]);
          loss.backward();
          expect(numGathers).toBe(stage === 3 ? 4 : 0);
          reduceGradients(ctx, model);
          expect(listGathered([model.units.at(1)!, model.head])).toEqual([stage === 2, stage === 2]);
        }
      });
    }
  });

  test("and waits for an all-gather that was posted for a forward that did not follow", async () => {
    await onMesh({ dp: 2 }, async (ctx) => {
      const group = ctx.mesh.group("dp");
      const allGather = group.allGather.bind(group);
      const events: string[] = [];
      group.allGather = (...args: Parameters<typeof allGather>) => {
        const work = allGather(...args);
        return {
          wait() {
            events.push("wait");
            work.wait();
          },
        };
      };
      const read = async (readAll: (model: Sequential) => Promise<Float32Array>): Promise<Float32Array> => {
        using model = fullyShard(ctx, new Sequential(...createLayers(ctx, 2)));
        using x = ones(ctx, [1, 8]);
        noGrad(() => model.at(0)!.forward(x)).dispose();
        events.length = 0;
        const values = readAll(model);
        // The first layer was released, and the second one is in transfer.
        expect(events).toEqual(["wait", "wait"]);
        return values;
      };
      await read((model) => summonFullParameters(model, () => (model.at(1) as Linear).weight.read()));
      await read(async (model) => (await readStateDict(ctx, model)).get("1.weight")!.values);
    });
  });

  test("readStateDict keeps gathered parameters gathered, and releases the others", async () => {
    await onMesh({ dp: 2 }, async (ctx) => {
      using model = fullyShard(ctx, new Sequential(...createLayers(ctx, 2)));
      const weights = [0, 1].map((i) => (model.at(i) as Linear).weight);
      await readStateDict(ctx, model);
      expect(weights.map(({ storage }) => storage.isReleased)).toEqual([true, true]);
      await summonFullParameters(model, () => {
        const reading = readStateDict(ctx, model);
        expect(weights.map(({ storage }) => storage.isReleased)).toEqual([false, false]);
        return reading;
      });
    });
  });
});
