import { normalCdf } from "./reference/normal.ts";
import { DeviceError, fromArray, keep, Linear, Module, mul, OptionError, sum, type Tensor } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  AdamW,
  Embedding,
  embedding,
  GELU,
  LayerNorm,
  MLP,
  ModuleList,
  RMSNorm,
  Sequential,
  SiLU,
} from "../src/index.ts";
import { mapRows, checkLayer, linear } from "./reference/gradients.ts";
import { generateNumbers } from "./reference/numbers.ts";
import { onOneRank } from "./reference/world.ts";

const gelu = (x: number) => x * normalCdf(x);
const geluTanh = (x: number) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const silu = (x: number) => x / (1 + Math.exp(-x));
const mean = (row: readonly number[]) => row.reduce((a, b) => a + b, 0) / row.length;

/** Returns normalized rows times weight plus bias. */
function norm(
  x: readonly number[],
  p: Readonly<Record<string, readonly number[]>>,
  { epsilon, isCentred }: { epsilon: number; isCentred: boolean },
): number[] {
  const { weight, bias } = p;
  return mapRows(x, weight!.length, (row) => {
    const rowMean = isCentred ? mean(row) : 0;
    const rstd = 1 / Math.sqrt(mean(row.map((value) => (value - rowMean) ** 2)) + epsilon);
    return row.map((value, i) => (value - rowMean) * rstd * weight![i]! + (bias?.[i] ?? 0));
  });
}

describe("forward and every gradient match float64", () => {
  test("LayerNorm", () =>
    onOneRank(async (ctx) => {
      using module = new LayerNorm(ctx, 5, { epsilon: 1e-3 });
      const reference = (x: readonly number[], p: Record<string, readonly number[]>) =>
        norm(x, p, { epsilon: 1e-3, isCentred: true });
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [2, 3, 5], reference });
    }));

  test("LayerNorm without bias", () =>
    onOneRank(async (ctx) => {
      using module = new LayerNorm(ctx, 5, { bias: false });
      const reference = (x: readonly number[], p: Record<string, readonly number[]>) =>
        norm(x, p, { epsilon: 1e-5, isCentred: true });
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [4, 5], reference });
    }));

  test("RMSNorm", () =>
    onOneRank(async (ctx) => {
      using module = new RMSNorm(ctx, 5);
      const reference = (x: readonly number[], p: Record<string, readonly number[]>) =>
        norm(x, p, { epsilon: 1e-6, isCentred: false });
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [2, 3, 5], reference });
    }));

  test("RMSNorm as in Gemma, whose weight is added to 1 and initially zero", () =>
    onOneRank(async (ctx) => {
      using module = new RMSNorm(ctx, 5, { weightOffset: 1 });
      expect(Array.from(await module.weight.read())).toEqual([0, 0, 0, 0, 0]);
      const reference = (x: readonly number[], p: Record<string, readonly number[]>) =>
        norm(x, { weight: p.weight!.map((each) => 1 + each) }, { epsilon: 1e-6, isCentred: false });
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [2, 3, 5], reference });
    }));

  test("GELU", () =>
    onOneRank(async (ctx) => {
      using module = new GELU();
      await checkLayer(ctx, {
        module,
        forward: (x) => module.forward(x),
        shape: [3, 7],
        reference: (x) => x.map(gelu),
      });
    }));

  test("GELU, approximated by tanh", () =>
    onOneRank(async (ctx) => {
      using module = new GELU({ approximate: "tanh" });
      const reference = (x: readonly number[]) => x.map(geluTanh);
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [3, 7], reference });
    }));

  test("SiLU", () =>
    onOneRank(async (ctx) => {
      using module = new SiLU();
      await checkLayer(ctx, {
        module,
        forward: (x) => module.forward(x),
        shape: [3, 7],
        reference: (x) => x.map(silu),
      });
    }));

  const activations = {
    gelu,
    geluTanh,
    silu,
    relu: (x: number) => Math.max(0, x),
    tanh: Math.tanh,
    sigmoid: (x: number) => 1 / (1 + Math.exp(-x)),
  };
  test.each(Object.entries(activations))("MLP with %s", (name, f) =>
    onOneRank(async (ctx) => {
      using module = new MLP(ctx, {
        embedDim: 3,
        hiddenDim: 4,
        outDim: 2,
        activation: name as keyof typeof activations,
      });
      const reference = (x: readonly number[], p: Record<string, readonly number[]>) =>
        linear(linear(x, p["fc1.weight"]!, p["fc1.bias"]!).map(f), p["fc2.weight"]!, p["fc2.bias"]!);
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [2, 3], reference });
    }),
  );

  test("Sequential", () =>
    onOneRank(async (ctx) => {
      using module = new Sequential(new Linear(ctx, 3, 4), new GELU(), new LayerNorm(ctx, 4));
      const reference = (x: readonly number[], p: Record<string, readonly number[]>) =>
        norm(
          linear(x, p["0.weight"]!, p["0.bias"]!).map(gelu),
          { weight: p["2.weight"]!, bias: p["2.bias"]! },
          { epsilon: 1e-5, isCentred: true },
        );
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [2, 3], reference });
    }));
});

describe("Embedding", () => {
  test.each(["float32", "bfloat16"] as const)("gathers rows and adds up their gradients, %s", (dtype) =>
    onOneRank(async (ctx) => {
      using embeddingLayer = new Embedding(ctx, 5, 3, { dtype });
      using tokens = fromArray(ctx, [4, 0, 4, 2], [2, 2]);
      using out = embeddingLayer.forward(tokens);
      const values = await embeddingLayer.weight.read();
      const rows = [4, 0, 4, 2].flatMap((token) => Array.from(values.slice(3 * token, 3 * token + 3)));
      expect(Array.from(await out.read())).toEqual(rows);
      using weights = fromArray(
        ctx,
        Array.from({ length: 12 }, (_, i) => i + 1),
        [2, 2, 3],
        { dtype },
      );
      using weightedOutput = mul(out, weights);
      using loss = sum(weightedOutput);
      loss.backward();
      expect(embeddingLayer.weight.grad!.dtype).toBe(dtype);
      expect(Array.from(await embeddingLayer.weight.grad!.read())).toEqual([
        4, 5, 6, 0, 0, 0, 10, 11, 12, 0, 0, 0, 8, 10, 12,
      ]);
    }),
  );

  test("initializes its weight from N(0, std²)", () =>
    onOneRank(async (ctx) => {
      using table = new Embedding(ctx, 100, 50, { std: 0.02 });
      const values = Array.from(await table.weight.read());
      expect(Math.sqrt(mean(values.map((value) => value ** 2))) / 0.02).toBeCloseTo(1, 1);
    }));

  test.each([[7], [-1], [1.5], [Number.NaN]])("rejects token %d with an error that names the valid range", (token) =>
    onOneRank(async (ctx) => {
      using table = new Embedding(ctx, 7, 2);
      using tokens = fromArray(ctx, [0, token], [2]);
      await expect(
        (async () => {
          using out = table.forward(tokens);
          return await out.read();
        })(),
      ).rejects.toThrow(/gatherRows: expected integers from 0 to 6, received/);
    }).catch((error: unknown) => {
      // A failed device reports the failure again when it is closed.
      expect(error).toBeInstanceOf(DeviceError);
    }),
  );
});

test("ModuleList names and iterates its modules, and switches their training mode", () =>
  onOneRank(async (ctx) => {
    using moduleList = new ModuleList([new MLP(ctx, { embedDim: 2 }), new MLP(ctx, { embedDim: 2 })]);
    expect([...moduleList].length).toBe(2);
    expect(moduleList.length).toBe(2);
    expect(moduleList.at(-1)).toBe([...moduleList][1]);
    expect(moduleList.namedParameters()[4]![0]).toBe("1.fc1.weight");
    moduleList.eval();
    expect([...moduleList].every(({ training }) => !training)).toBe(true);
    expect(moduleList.train().at(0)!.training).toBe(true);
    using x = fromArray(ctx, [1], [1]);
    expect(() => new Sequential().forward(x)).toThrow(/at least one layer/);
  }));

test("a tied table accumulates the gradients of both uses, and an optimizer updates it once", () =>
  onOneRank(async (ctx) => {
    class TiedEmbeddings extends ModuleList<Embedding> {
      readonly head = this.addParameter("head", this.at(0)!.weight);
    }
    using model = new TiedEmbeddings([new Embedding(ctx, 2, 2)]);
    using tokens = fromArray(ctx, [1], [1]);
    using x = embedding(tokens, model.head);
    using y = model.at(0)!.forward(tokens);
    using product = mul(x, y);
    using loss = sum(product);
    const [, , a, b] = await model.head.read();
    loss.backward();
    expect(Array.from(await model.head.grad!.read())).toEqual([0, 0, 2 * a!, 2 * b!]);
    using optimizer = new AdamW(model, { lr: 0.5, weightDecay: 0 });
    optimizer.step();
    const weightAfter = await model.head.read();
    expect(Math.abs(weightAfter[2]! - a!)).toBeCloseTo(0.5, 5);
  }));

test("unknown and out-of-range options are rejected", () =>
  onOneRank((ctx) => {
    for (const createInvalid of [
      () => new Embedding(ctx, 0, 3),
      () => new Embedding(ctx, 3, 2.5),
      () => new LayerNorm(ctx, 0),
      () => new LayerNorm(ctx, 3, { epsilon: -1 }),
      () => new RMSNorm(ctx, 3, { bias: false } as object),
      () => new RMSNorm(ctx, 3, { weightOffset: 2 as never }),
      () => new MLP(ctx, { embedDim: 4, hidden: 3 } as never),
      () => new MLP(ctx, { embedDim: 4, activation: "swish" as never }),
      () => new MLP(ctx, { embedDim: 4, dropout: 1 }),
    ]) {
      expect(createInvalid).toThrow(OptionError);
    }
    using x = fromArray(ctx, generateNumbers(3, 1), [3]);
    expect(() => embedding(x, x)).toThrow(/a table \[V,E\]/);
  }));

test("Sequential disposes tensors between layers, except those that it did not create or that are kept", () =>
  onOneRank(async (ctx) => {
    class Identity extends Module {
      forward(x: Tensor): Tensor {
        return x;
      }
    }
    using linear = new Linear(ctx, 2, 2);
    let between: Tensor | undefined;
    using x = fromArray(ctx, [1, 2], [1, 2]);
    using first = new Sequential(new Identity(), new Linear(ctx, 2, 2));
    using y = first.forward(x);
    expect([x.isDisposed, y.isDisposed]).toEqual([false, false]);
    using last = new Sequential(new Linear(ctx, 2, 2), new Identity());
    using z = last.forward(x);
    expect((await z.read()).length).toBe(2);
    linear.registerForwardHook((out) => {
      between = out as Tensor;
    });
    using module = new Sequential(linear, new GELU(), new Identity());
    using out = module.forward(x);
    expect([between!.isDisposed, out.isDisposed]).toEqual([true, false]);
    linear.registerForwardHook((output) => keep(output as Tensor));
    using outAgain = module.forward(x);
    expect([between!.isDisposed, outAgain.isDisposed]).toEqual([false, false]);
    between!.dispose();
  }));
