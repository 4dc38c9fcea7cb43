import {
  type Context,
  fromArray,
  full,
  Linear,
  loadState,
  Module,
  MultiAxisAttention,
  noGrad,
  OptionError,
  randn,
  reduceGradients,
  shard,
  type Tensor,
  unshard,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  addLoRA,
  AdamW,
  type Layer,
  LoRA,
  loraStateDict,
  markOnlyLoRATrainable,
  ModuleList,
  mseLoss,
  readSafetensors,
  RMSNorm,
  Sequential,
  SwiGLU,
  writeSafetensors,
} from "../src/index.ts";
import { directory } from "./reference/directory.ts";
import { linear } from "./reference/gradients.ts";
import { numericalDerivative, maxDifference, generateNumbers } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const [inFeatures, outFeatures, rank, alpha] = [4, 3, 2, 5];

describe("LoRA", () => {
  test("matches float64, as do the gradients of x, A and B; the base gets no gradient", () =>
    onOneRank(async (ctx) => {
      using module = new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank, alpha });
      const p = Object.fromEntries(
        module.namedParameters().map(([name, each], i) => [name, generateNumbers(each.size, 10 + i)] as const),
      );
      expect(Object.keys(p)).toEqual(["base_layer.weight", "base_layer.bias", "lora_A.weight", "lora_B.weight"]);
      for (const [name, parameter] of module.namedParameters()) ctx.device.write(parameter, p[name]!);
      const reference = (x: readonly number[], values: Readonly<Record<string, readonly number[]>>): number[] => {
        const zeros = (size: number) => new Array<number>(size).fill(0);
        const lowRankOutput = linear(x, values["lora_A.weight"]!, zeros(rank));
        const adapterOutput = linear(lowRankOutput, values["lora_B.weight"]!, zeros(outFeatures));
        return linear(x, values["base_layer.weight"]!, values["base_layer.bias"]!).map(
          (value, i) => value + (alpha / rank) * adapterOutput[i]!,
        );
      };
      const [values, weights] = [generateNumbers(2 * inFeatures, 1), generateNumbers(2 * outFeatures, 2)];
      using x = fromArray(ctx, values, [2, inFeatures]);
      x.requiresGrad = true;
      using out = module.forward(x);
      expect(maxDifference(await out.read(), reference(values, p))).toBeLessThan(2e-6);
      using seed = fromArray(ctx, weights, [2, outFeatures]);
      out.backward(seed);
      const weightedSum = (outputValues: readonly number[]) =>
        outputValues.reduce((sum, value, i) => sum + value * weights[i]!, 0);
      const dx = numericalDerivative((each) => weightedSum(reference(each, p)), values);
      expect(maxDifference(await x.grad!.read(), dx)).toBeLessThan(1e-5);
      for (const [name, parameter] of module.namedParameters()) {
        if (name.startsWith("base_layer")) {
          expect([parameter.requiresGrad, parameter.grad]).toEqual([false, null]);
          continue;
        }
        const expected = numericalDerivative(
          (each) => weightedSum(reference(values, { ...p, [name]: each })),
          p[name]!,
        );
        expect(maxDifference(await parameter.grad!.read(), expected), name).toBeLessThan(1e-5);
      }
    }));

  test("does not change the output at first, and initializes A like the weight of a Linear", () =>
    onOneRank(async (ctx) => {
      const base = new Linear(ctx, 64, 8);
      using x = randn(ctx, [5, 64]);
      using outputBefore = base.forward(x);
      using module = new LoRA(ctx, base, { rank: 32 });
      using outputAfter = module.forward(x);
      expect(await outputAfter.read()).toEqual(await outputBefore.read());
      const initialA = await module.a.weight.read();
      expect(Math.max(...initialA.map(Math.abs))).toBeLessThanOrEqual(1 / 8);
      expect(Math.sqrt(initialA.reduce((sum, value) => sum + value ** 2, 0) / initialA.length) * 8).toBeCloseTo(
        3 ** -0.5,
        1,
      );
      expect(module.scale).toBe(1);
    }));

  test("applies dropout only to the input of A, and none after eval()", () =>
    onOneRank(async (ctx) => {
      using module = new LoRA(ctx, new Linear(ctx, 1, 1, { bias: false }), { rank: 1, alpha: 1, dropout: 0.5 });
      for (const parameter of module.parameters()) ctx.device.kernels.fill(parameter, 1);
      using x = full(ctx, [1000, 1], 1);
      using out = module.forward(x);
      expect(new Set(await out.read())).toEqual(new Set([1, 3]));
      using evalOutput = module.eval().forward(x);
      expect(new Set(await evalOutput.read())).toEqual(new Set([2]));
    }));

  test("trains to the same adapters on every mesh, and leaves the base unchanged", async () => {
    const runOnMesh = (mesh: { dp?: number; sp: number }) =>
      onMesh(mesh, async (ctx) => {
        using module = new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank, dropout: 0.25 });
        const base = await module.base.weight.read();
        using optimizer = new AdamW(module, { lr: 0.05 });
        expect(optimizer.stateDict().tensors.size).toBe(4);
        const rows = 8 / ctx.size;
        for (let step = 0; step < 5; step++) {
          using x = fromArray(ctx, generateNumbers(8 * inFeatures, step), [1, 8, inFeatures]).slice(
            1,
            ctx.rank * rows,
            (ctx.rank + 1) * rows,
          );
          using y = fromArray(ctx, generateNumbers(8 * outFeatures, 50 + step), [1, 8, outFeatures]);
          using outputShard = y.slice(1, ctx.rank * rows, (ctx.rank + 1) * rows);
          using loss = mseLoss(ctx, module.forward(x), outputShard);
          loss.backward();
          reduceGradients(ctx, module);
          optimizer.step();
          optimizer.zeroGrad();
        }
        expect(await module.base.weight.read()).toEqual(base);
        return (await Promise.all([...loraStateDict(module).values()].map((each) => each.read()))).flatMap((each) => [
          ...each,
        ]);
      });
    const [expected] = await runOnMesh({ sp: 1 });
    for (const sp of [2, 4]) {
      for (const actual of await runOnMesh({ sp })) expect(maxDifference(actual, expected!)).toBeLessThan(1e-5);
    }
  });
});

describe("merged LoRA", () => {
  test.each(["float32", "bfloat16"] as const)(
    "rounds the merged weight once, and restores the output bit for bit when unmerged, %s",
    (dtype) =>
      onOneRank(async (ctx) => {
        using module = new LoRA(ctx, new Linear(ctx, 16, 8, { dtype }), { rank, alpha });
        ctx.device.write(module.b.weight, generateNumbers(module.b.weight.size, 3));
        const [w, a, b] = await Promise.all([module.base, module.a, module.b].map(({ weight }) => weight.read()));
        using x = fromArray(ctx, generateNumbers(3 * 16, 1), [3, 16], { dtype });
        module.eval();
        using outputBefore = module.forward(x);
        const allocated = ctx.device.memory().allocated;
        expect([module.isMerged, module.mergedWeight]).toEqual([false, null]);
        using mergedOutput = module.merge().forward(x);
        expect(module.isMerged).toBe(true);
        const expectedWeight = Array.from(w!, (value, i) => {
          const [row, column] = [Math.floor(i / 16), i % 16];
          let sum = 0;
          for (let k = 0; k < rank; k++) sum += b![row * rank + k]! * a![k * 16 + column]!;
          return value + (alpha / rank) * sum;
        });
        const weight = await module.mergedWeight!.read();
        const [roundingUnit, minChange] = dtype === "float32" ? [2 ** -21, 2 ** -3] : [2 ** -8, 2 ** -8];
        for (const [i, value] of expectedWeight.entries()) {
          expect(Math.abs(weight[i]! - value)).toBeLessThanOrEqual(
            roundingUnit * Math.max(Math.abs(value), minChange) * 1.001,
          );
        }
        expect(maxDifference(await mergedOutput.read(), await outputBefore.read())).toBeLessThan(
          dtype === "float32" ? 2e-6 : 0.03,
        );
        expect(await module.base.weight.read()).toEqual(w);
        mergedOutput.dispose();
        using outputAfter = module.unmerge().forward(x);
        expect(await outputAfter.read()).toEqual(await outputBefore.read());
        outputAfter.dispose();
        expect(ctx.device.memory().allocated).toBe(allocated);
      }),
  );

  test("follows changes of the base and the adapters, and has the names of unmerged LoRA in its state dict", () =>
    onOneRank(async (ctx) => {
      using module = new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank });
      using x = randn(ctx, [2, inFeatures]);
      const names = [...module.stateDict().keys()];
      ctx.device.write(module.b.weight, generateNumbers(outFeatures * rank, 3));
      module.eval().merge();
      expect([...module.stateDict().keys()]).toEqual(names);
      for (const { weight } of [module.b, module.a, module.base]) {
        using outputBefore = module.merge().forward(x);
        ctx.device.write(weight, generateNumbers(weight.size, 4));
        using outputAfter = module.forward(x);
        using unmergedOutput = module.unmerge().forward(x);
        expect(maxDifference(await outputAfter.read(), await unmergedOutput.read())).toBeLessThan(2e-6);
        expect(maxDifference(await outputAfter.read(), await outputBefore.read())).toBeGreaterThan(1e-2);
      }
    }));

  test("runs the forward hooks of its layers", () =>
    onOneRank(async (ctx) => {
      using module = new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank, alpha });
      ctx.device.write(module.b.weight, generateNumbers(module.b.weight.size, 3));
      module.eval();
      using x = fromArray(ctx, generateNumbers(inFeatures, 1), [1, inFeatures]);
      for (const layer of [module.base, module.a, module.b]) {
        using handle = layer.registerForwardHook((y) => (y as Tensor).scale(2));
        using unmergedOut = module.forward(x);
        module.merge();
        using mergedOut = module.forward(x);
        expect(await mergedOut.read()).toEqual(await unmergedOut.read());
        handle.remove();
        using outWithoutHook = module.forward(x);
        expect(maxDifference(await outWithoutHook.read(), await unmergedOut.read())).toBeGreaterThan(0.1);
        module.unmerge();
      }
    }));

  test("cannot be trained", () =>
    onOneRank((ctx) => {
      using module = new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank });
      using x = randn(ctx, [2, inFeatures]);
      module.merge();
      expect(() => module.forward(x)).toThrow(/unmerged adapters for training.*call unmerge\(\) before training/s);
      module.unmerge().forward(x).dispose();
    }));
});

class Model extends Module {
  readonly layers: Sequential;

  constructor(firstLayer: Layer, secondLayer: Layer) {
    super();
    this.layers = this.addChild("layers", new Sequential(firstLayer, secondLayer));
  }

  forward(x: Tensor): Tensor {
    return this.layers.forward(x);
  }
}

test("adapters are saved without the base, and load into another model of the same base", () =>
  onOneRank(async (ctx) => {
    const createModel = () =>
      new Model(new RMSNorm(ctx, inFeatures), new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank }));
    const path = `${directory()}/adapters.safetensors`;
    using tunedModel = createModel();
    const [a, b] = [...loraStateDict(tunedModel).values()];
    ctx.device.write(b!, generateNumbers(b!.size, 5));
    await writeSafetensors(path, loraStateDict(tunedModel));
    const { tensors } = await readSafetensors(path);
    expect([...tensors.keys()].toSorted()).toEqual(["layers.1.lora_A.weight", "layers.1.lora_B.weight"]);
    using model = createModel();
    const base = await model.stateDict().get("layers.1.base_layer.weight")!.read();
    expect(loadState("adapters", loraStateDict(model), tensors)).toEqual({ missing: [], unexpected: [] });
    const loadedTensors = [...loraStateDict(model).values()];
    expect(await loadedTensors[0]!.read()).toEqual(await a!.read());
    expect(await loadedTensors[1]!.read()).toEqual(await b!.read());
    expect(await model.stateDict().get("layers.1.base_layer.weight")!.read()).toEqual(base);
  }));

test("markOnlyLoRATrainable freezes other parameters, which get no gradient and no optimizer state", () =>
  onOneRank((ctx) => {
    using model = new Model(
      new RMSNorm(ctx, inFeatures),
      new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank }),
    );
    using x = randn(ctx, [2, inFeatures]);
    using lossBefore = model.forward(x).sum();
    lossBefore.backward();
    expect(model.stateDict().get("layers.0.weight")!.grad).not.toBe(null);
    markOnlyLoRATrainable(model);
    using lossAfter = model.forward(x).sum();
    lossAfter.backward();
    reduceGradients(ctx, model);
    const trainedNames = model.namedParameters().flatMap(([name, { grad }]) => (grad ? [name] : []));
    expect(trainedNames).toEqual(["layers.1.lora_A.weight", "layers.1.lora_B.weight"]);
    using optimizer = new AdamW(model);
    expect([...optimizer.stateDict().tensors.keys()].every((name) => name.includes("lora_"))).toBe(true);
  }));

/**
 * A block that holds its layers like a transformer's: in properties of attention and feed-forward modules, and in a
 * list.
 */
class Block extends Module {
  readonly attn: MultiAxisAttention;
  readonly mlps: ModuleList<SwiGLU>;

  constructor(ctx: Context) {
    super();
    const options = { embedDim: 8, numHeads: 2, attentionAxis: 1, causal: true, backend: "ring" } as const;
    this.attn = this.addChild("attn", new MultiAxisAttention(ctx, { ...options, placement: "zigzag" }));
    this.mlps = this.addChild("mlps", new ModuleList([new SwiGLU(ctx, { embedDim: 8, hiddenDim: 12 })]));
  }

  forward(x: Tensor): Tensor {
    const y = x.add(this.attn.forward(x));
    return y.add(this.mlps.at(0)!.forward(y));
  }
}

describe("addLoRA", () => {
  const targets = ["qkv_proj", "0.down_proj"];
  const options = { targets, rank: 2, alpha: 4, dropout: 0.25, sharding: { placement: "zigzag" } } as const;

  test("adapts the named layers, freezes the others, and trains to the same output on one and four ranks", async () => {
    const runOnMesh = (sp: number) =>
      onMesh({ sp }, async (ctx) => {
        using model = new Block(ctx);
        const placement = { placement: "zigzag" } as const;
        using fullInput = fromArray(ctx, generateNumbers(2 * 8 * 8, 1), [2, 8, 8]);
        using x = shard(ctx, fullInput, 1, placement);
        using outputBefore = model.forward(x);
        expect(addLoRA(ctx, model, options)).toEqual(["attn.qkv_proj", "mlps.0.down_proj"]);
        using evalOutput = model.eval().forward(x);
        expect(await evalOutput.read()).toEqual(await outputBefore.read());
        model.train();
        using optimizer = new AdamW(model, { lr: 0.05 });
        expect(optimizer.stateDict().tensors.size).toBe(2 * 4);
        for (let step = 0; step < 4; step++) {
          using loss = mseLoss(ctx, model.forward(x), x);
          loss.backward();
          reduceGradients(ctx, model);
          optimizer.step();
          optimizer.zeroGrad();
        }
        using outputAfter = model.eval().forward(x);
        using fullOutput = unshard(ctx, outputAfter, 1, placement);
        expect(maxDifference(await outputAfter.read(), await outputBefore.read())).toBeGreaterThan(1e-2);
        for (const module of [model.attn.qkvProjection, model.mlps.at(0)!.downProjection]) {
          expect(module).toBeInstanceOf(LoRA);
        }
        return Array.from(await fullOutput.read());
      });
    const [expected] = await runOnMesh(1);
    for (const actual of await runOnMesh(4)) expect(maxDifference(actual, expected!)).toBeLessThan(1e-5);
  });

  test("keeps the training mode, and creates one adapter for a shared layer", () =>
    onOneRank((ctx) => {
      const layer = new Linear(ctx, 4, 4);
      using sharedLayerModel = new Sequential(layer, layer).eval();
      expect(addLoRA(ctx, sharedLayerModel, { targets: ["0", "1"], rank: 1 })).toEqual(["0", "1"]);
      expect(sharedLayerModel.at(0)).toBe(sharedLayerModel.at(1));
      expect(sharedLayerModel.at(0)!.training).toBe(false);
      expect(sharedLayerModel.namedParameters().map(([name]) => name)).toEqual([
        ...["0.base_layer.weight", "0.base_layer.bias", "0.lora_A.weight", "0.lora_B.weight"],
      ]);
      // Layers within adapters are not adapted again.
      expect(() => addLoRA(ctx, sharedLayerModel, { targets: ["base_layer"], rank: 1 })).toThrow(
        /\(available: none\), received "base_layer"/,
      );
    }));

  test("rejects names that match no layer, and layers that it cannot replace", () =>
    onOneRank((ctx) => {
      using model = new Block(ctx);
      const names = [...model.stateDict().keys()];
      expect(() => addLoRA(ctx, model, { targets: ["out_proj", "q_proj"], rank: 2 })).toThrow(
        /available: "attn.qkv_proj", "attn.out_proj", "mlps.0.gate_proj".*received "q_proj"/,
      );
      expect(() => addLoRA(ctx, model, { targets, rank: 0 })).toThrow(/rank: expected an integer ≥ 1/);
      expect([...model.stateDict().keys()]).toEqual(names);
      class HiddenLinear extends Module {
        readonly #layer = this.addChild("layer", new Linear(ctx, 2, 2));

        forward(x: Tensor): Tensor {
          return this.#layer.forward(x);
        }
      }
      using hiddenModel = new HiddenLinear();
      expect(() => addLoRA(ctx, hiddenModel, { targets: ["layer"], rank: 1 })).toThrow(/keep the child in a property/);
      expect(hiddenModel.parameters().every(({ requiresGrad }) => requiresGrad)).toBe(true);
      expect(() => hiddenModel.replaceChild("other", new Linear(ctx, 2, 2))).toThrow(
        /available: layer\), received "other"/,
      );
    }));
});

test("LoRA frees its memory on dispose, and rejects invalid options and layers other than Linear", () =>
  onOneRank((ctx) => {
    const allocatedBefore = ctx.device.memory().allocated;
    const module = new LoRA(ctx, new Linear(ctx, inFeatures, outFeatures), { rank });
    noGrad(() => module.eval().merge());
    module.dispose();
    expect(ctx.device.memory().allocated).toBe(allocatedBefore);
    using base = new Linear(ctx, inFeatures, outFeatures);
    for (const createInvalid of [
      () => new LoRA(ctx, base, { rank: 0 }),
      () => new LoRA(ctx, base, { rank, alpha: 0 }),
      () => new LoRA(ctx, base, { rank, r: 2 } as never),
      () => new LoRA(ctx, base, undefined as never),
      () => new LoRA(ctx, new RMSNorm(ctx, 4) as never, { rank }),
    ]) {
      expect(createInvalid).toThrow(OptionError);
    }
  }));
