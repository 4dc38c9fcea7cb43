import { type Context, DisposedError, fromArray, Linear, Module, OptionError, type Tensor, zeros } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  addLoRA,
  AdamW,
  Embedding,
  fullyShard,
  GELU,
  LoRA,
  loraStateDict,
  mergeLoRA,
  Sequential,
  SwiGLU,
  TiedLinear,
} from "../src/index.ts";
import { generateNumbers, maxDifference } from "./reference/numbers.ts";
import { onMesh, onOneRank } from "./reference/world.ts";

const options = { targets: ["up_proj", "down_proj", "head"], rank: 2, alpha: 6, dropout: 0.5 } as const;

class Model extends Module {
  readonly mlp: SwiGLU;
  readonly head: Linear;

  constructor(ctx: Context, dtype: "float32" | "bfloat16" = "float32") {
    super();
    this.mlp = this.addChild("mlp", new SwiGLU(ctx, { embedDim: 8, hiddenDim: 12, dtype }));
    this.head = this.addChild("head", new Linear(ctx, 8, 3, { dtype }));
  }

  forward(x: Tensor): Tensor {
    return this.head.forward(this.mlp.forward(x));
  }
}

/** Writes values to the adapters, as training does. */
function writeAdapters(ctx: Context, model: Module): void {
  for (const [i, x] of [...loraStateDict(model).values()].entries())
    ctx.device.write(x, generateNumbers(x.size, i + 1));
}

describe("mergeLoRA", () => {
  test.each(["float32", "bfloat16"] as const)(
    "writes the weights that merge() computes, and removes and frees the adapters, %s",
    (dtype) =>
      onOneRank(async (ctx) => {
        using model = new Model(ctx, dtype);
        const [names, bases] = [[...model.stateDict().keys()], [model.mlp.upProjection, model.head]];
        using x = fromArray(ctx, generateNumbers(5 * 8, 9), [5, 8], { dtype });
        await ctx.device.stream.synchronize();
        const { allocated } = ctx.device.memory();
        const paths = addLoRA(ctx, model, options);
        writeAdapters(ctx, model);
        model.eval();
        using before = model.forward(x);
        const adapter = model.head as unknown as LoRA;
        const mergedHead = await adapter.merge().mergedWeight!.read();
        expect(mergeLoRA(model)).toEqual(paths);
        expect(paths).toEqual(["mlp.up_proj", "mlp.down_proj", "head"]);
        expect([model.mlp.upProjection, model.head]).toEqual(bases);
        expect([...model.stateDict().keys()]).toEqual(names);
        expect(await model.head.weight.read()).toEqual(mergedHead);
        expect(model.head.weight.requiresGrad).toBe(false);
        expect(model.head.training).toBe(false);
        using after = model.forward(x);
        expect(maxDifference(await after.read(), await before.read())).toBeLessThan(dtype === "float32" ? 1e-5 : 0.3);
        before.dispose();
        after.dispose();
        await ctx.device.stream.synchronize();
        expect(ctx.device.memory().allocated).toBe(allocated);
        expect(mergeLoRA(model)).toEqual([]);
      }),
  );

  test("merges an adapter that two modules share once, which is in loraStateDict once", () =>
    onOneRank(async (ctx) => {
      const layer = new Linear(ctx, 2, 2, { bias: false });
      ctx.device.kernels.fill(layer.weight, 1);
      using model = new Sequential(layer, new GELU(), layer);
      addLoRA(ctx, model, { targets: ["0", "2"], rank: 1 });
      expect([...loraStateDict(model).keys()]).toEqual(["0.lora_A.weight", "0.lora_B.weight"]);
      for (const each of loraStateDict(model).values()) ctx.device.kernels.fill(each, 2);
      expect(mergeLoRA(model)).toEqual(["0", "2"]);
      expect([model.at(0), model.at(2)]).toEqual([layer, layer]);
      expect(Array.from(await layer.weight.read())).toEqual([5, 5, 5, 5]);
    }));

  test("errors of a merged adapter, and of an optimizer that was created before, name it", () =>
    onOneRank((ctx) => {
      using model = new Model(ctx);
      addLoRA(ctx, model, options);
      using optimizer = new AdamW(model);
      const adapter = model.head as unknown as LoRA;
      mergeLoRA(model);
      using x = zeros(ctx, [2, 8]);
      const message =
        ": expected an adapter that is not disposed, received .*; use the base of .* mergeLoRA has merged";
      for (const [name, call] of [
        ["forward", () => adapter.forward(x)],
        ["merge", () => adapter.merge()],
      ] as const) {
        expect(call).toThrow(new RegExp(`^LoRA.${name}${message}`));
        expect(call).toThrow(DisposedError);
      }
      const step = (): void => optimizer.step();
      expect(step).toThrow(
        /^AdamW.step 0: expected parameters that are not disposed, received "mlp.up_proj.lora_A.weight", .* mergeLoRA$/,
      );
      expect(step).toThrow(DisposedError);
    }));

  test("gives the same weights on every rank", async () => {
    const weights = await onMesh({ dp: 2, sp: 2 }, (ctx) => {
      using model = new Model(ctx);
      addLoRA(ctx, model, options);
      writeAdapters(ctx, model);
      mergeLoRA(model);
      return model.head.weight.read();
    });
    for (const each of weights) expect(each).toEqual(weights[0]);
  });

  test.each([1, 2, 3] as const)("rejects a model that is sharded in stage %i", async (stage) => {
    await onMesh({ dp: 2 }, (ctx) => {
      using model = new Model(ctx);
      addLoRA(ctx, model, options);
      fullyShard(ctx, model, { stage });
      expect(() => mergeLoRA(model)).toThrow(
        /mergeLoRA: "mlp.up_proj": expected a model that is not sharded, received .*; call saveCheckpoint, load/,
      );
      expect(model.head).toBeInstanceOf(LoRA);
    });
  });

  test("changes nothing if an adapter cannot be merged", () =>
    onOneRank(async (ctx) => {
      class Tied extends Module {
        readonly first = this.addChild("first", new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 1 }));
        readonly embed = this.addChild("embed", new Embedding(ctx, 6, 4));
        readonly head = this.addChild("head", new LoRA(ctx, new TiedLinear(this.embed) as never, { rank: 1 }));
      }
      class Hidden extends Module {
        readonly first = this.addChild("first", new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 1 }));
        readonly #second = this.addChild("second", new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 1 }));
        get second(): LoRA {
          return this.#second;
        }
      }
      class Shared extends Module {
        readonly first = this.addChild("first", new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 1 }));
        readonly second = this.addChild("second", this.first.base);
      }
      class SharedBase extends Module {
        readonly first = this.addChild("first", new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 1 }));
        readonly second = this.addChild("second", new LoRA(ctx, this.first.base, { rank: 1 }));
      }
      const shared = /"first": expected a base whose weight no other layer uses, received a Linear that shares/;
      for (const [model, message] of [
        [new Shared(), shared],
        [new SharedBase(), shared],
        [
          new Tied(),
          /"head": expected a base whose weight no other layer uses, received a TiedLinear .*; call merge\(\)/,
        ],
        [new Hidden(), /keep the child in a property of the module/],
      ] as const) {
        writeAdapters(ctx, model);
        const before = await model.first.base.weight.read();
        expect(() => mergeLoRA(model)).toThrow(message);
        expect(model.first).toBeInstanceOf(LoRA);
        expect(await model.first.base.weight.read()).toEqual(before);
        model.dispose();
        expect(() => mergeLoRA(model)).toThrow(DisposedError);
      }
      using adapter = new LoRA(ctx, new Linear(ctx, 4, 4), { rank: 1 });
      expect(() => mergeLoRA(adapter)).toThrow(/expected a model that contains adapters, received a LoRA/);
      expect(() => mergeLoRA({} as never)).toThrow(OptionError);
    }));

  test("an optimizer of the adapters rejects further steps", () =>
    onOneRank((ctx) => {
      using model = new Model(ctx);
      addLoRA(ctx, model, options);
      using optimizer = new AdamW(model);
      mergeLoRA(model);
      expect(() => optimizer.step()).toThrow(DisposedError);
    }));
});
