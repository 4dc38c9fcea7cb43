import { beforeEach, describe, expect, test } from "vitest";
import type { Context } from "../../src/context.ts";
import { fromArray, ones, zeros } from "../../src/creation.ts";
import { ClosedError, DisposedError, DTypeError, OptionError, ShapeError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { causal, full, slidingWindow } from "../../src/mask/index.ts";
import type { Mask } from "../../src/mask/slice.ts";
import { CrossAxisAttention } from "../../src/modules/cross-axis-attention.ts";
import { Linear } from "../../src/modules/linear.ts";
import { Module } from "../../src/modules/module.ts";
import { MultiAxisAttention, type MultiAxisAttentionOptions } from "../../src/modules/multi-axis-attention.ts";
import { MultiAxisAttention2D } from "../../src/modules/multi-axis-attention-2d.ts";
import { createParameter, reduceGradients } from "../../src/modules/parameters.ts";
import { sum } from "../../src/ops/reduction.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

let ctx: Context;
beforeEach(async () => {
  ctx = await init({ device: new ReferenceDevice(), seed: 3 });
});

const options: MultiAxisAttentionOptions = { embedDim: 8, numHeads: 2, attentionAxis: 1 };
const createAttention = (extraOptions: object = {}) => new MultiAxisAttention(ctx, { ...options, ...extraOptions });
const input = (shape: readonly number[], seed = 1) =>
  fromArray(
    ctx,
    values(
      shape.reduce((a, b) => a * b),
      seed,
    ),
    shape,
  );
const readValues = async (x: Tensor) => [...(await x.read())];

describe("parameters", () => {
  test("have the expected names and shapes", () => {
    const shapes = createAttention({ numHeads: 4, numKvHeads: 2 })
      .namedParameters()
      .map(([name, x]) => [name, x.shape]);
    expect(shapes).toEqual([
      ["qkv_proj.weight", [16, 8]],
      ["qkv_proj.bias", [16]],
      ["out_proj.weight", [8, 8]],
      ["out_proj.bias", [8]],
    ]);
    expect(createAttention({ bias: false }).parameters().length).toBe(2);
    expect(createAttention({ headDim: 3 }).parameters()[0]!.shape).toEqual([18, 8]);
    const cross = new CrossAxisAttention(ctx, { embedDim: 8, numHeads: 2, qAxis: 0, kvAxis: 0, kvEmbedDim: 5 });
    expect(cross.namedParameters().map(([name, x]) => [name, x.shape])).toEqual([
      ["q_proj.weight", [8, 8]],
      ["q_proj.bias", [8]],
      ["kv_proj.weight", [16, 5]],
      ["kv_proj.bias", [16]],
      ["out_proj.weight", [8, 8]],
      ["out_proj.bias", [8]],
    ]);
  });

  test("are the same on every rank and mesh, and differ for another seed", async () => {
    const readInitialWeights = async (ranks: readonly Context[]) => {
      const weights = ranks.map((each) => new Linear(each, 3, 2)).flatMap((each) => each.parameters());
      return new Set(await Promise.all(weights.map(async (each) => String(await each.read()))));
    };
    const singleRankWeights = await readInitialWeights(await referenceWorld(1, { seed: 5 }));
    expect(singleRankWeights.size).toBe(2);
    expect(await readInitialWeights(await referenceWorld(4, { seed: 5, spSize: 2 }))).toEqual(singleRankWeights);
    expect((await readInitialWeights(await referenceWorld(1, { seed: 6 }))).has([...singleRankWeights][0]!)).toBe(
      false,
    );
  });

  test("are those of rank 0, even if another device draws other numbers", async () => {
    const ranks = await referenceWorld(2);
    ranks[1]!.device.kernels.random = (out) => ranks[1]!.device.kernels.fill(out, 7);
    const [rank0Layer, rank1Layer] = ranks.map((each) => new Linear(each, 3, 2));
    expect(await readValues(rank1Layer!.weight)).toEqual(await readValues(rank0Layer!.weight));
  });

  test("are drawn within ±1/√inFeatures", async () => {
    const drawnWeights = await new Linear(ctx, 16, 64).weight.read();
    expect(Math.max(...drawnWeights)).toBeGreaterThan(0.2);
    expect(Math.max(...drawnWeights)).toBeLessThan(0.25);
    expect(Math.min(...drawnWeights)).toBeLessThan(-0.2);
  });

  test("are freed by dispose, and their gradients by zeroGrad", async () => {
    const module = createAttention();
    {
      using x = input([1, 3, 8]);
      using out = module.forward(x);
      using loss = sum(out);
      loss.backward();
    }
    expect(module.parameters().every((each) => each.grad !== null)).toBe(true);
    module.zeroGrad();
    expect(module.parameters().every((each) => each.grad === null)).toBe(true);
    module.dispose();
    expect(ctx.device.memory().allocated).toBe(0);
  });

  test("disposing a module calls dispose of its children", () => {
    class Holder extends Module {
      moduleOption = true;
      override [Symbol.dispose](): void {
        this.moduleOption = false;
        super[Symbol.dispose]();
      }
    }
    class Outer extends Module {
      readonly inner = this.addChild("inner", new Holder());
    }
    const outer = new Outer();
    outer.dispose();
    expect(outer.inner.moduleOption).toBe(false);
  });

  test("train and eval apply to the whole tree, and names of children must be unique", () => {
    class Pair extends Module {
      readonly left = this.addChild("left", new Linear(ctx, 1, 1));
      add(name: string): void {
        this.addChild(name, this.left);
      }
    }
    const pair = new Pair();
    pair.eval();
    expect([pair.training, pair.left.training]).toEqual([false, false]);
    expect(pair.train().left.training).toBe(true);
    expect(pair.children().map(([name]) => name)).toEqual(["left"]);
    expect(() => pair.add("left")).toThrow(/Pair: expected a unique, non-empty name without dots, received "left"/);
    expect(() => pair.add("a.b")).toThrow(OptionError);
  });
});

describe("a layer in a field that is not a registered child", () => {
  class Plain extends Module {
    attn = createAttention();
    forward(x: Tensor): Tensor {
      return this.attn.forward(x);
    }
  }
  const message =
    /^Plain: expected every layer to be a registered child, received the field "attn" \(MultiAxisAttention\); write attn = this\.addChild\("attn", …\)/;

  test("is rejected by forward, parameters, stateDict and reduceGradients", () => {
    const module = new Plain();
    expect(() => module.forward(input([1, 2, 8]))).toThrow(message);
    expect(() => module.parameters()).toThrow(message);
    expect(() => module.stateDict()).toThrow(message);
    expect(() => reduceGradients(ctx, module)).toThrow(message);
    class Outer extends Module {
      inner = this.addChild("inner", new Plain());
    }
    expect(() => new Outer().parameters()).toThrow(message);
  });

  test("is found in an array, beside registered layers, and after a field is reassigned", () => {
    class Blocks extends Module {
      blocks = [createAttention(), createAttention()];
    }
    expect(() => new Blocks().parameters()).toThrow(
      /Blocks: .* the field "blocks" \(MultiAxisAttention\[\]\); write blocks = this\.addChild\("blocks", new ModuleList\(\[…\]\)\)/,
    );
    const anonymousModule = new (class extends Module {
      head = new Linear(ctx, 8, 2);
    })();
    expect(() => anonymousModule.parameters()).toThrow(/^Module: expected every layer to be a registered child/);
    class HalfRegistered extends Module {
      blocks = [this.addChild("first", createAttention()), createAttention()];
    }
    expect(() => new HalfRegistered().parameters()).toThrow(/the field "blocks"/);
    class AssignedField extends Module {
      head = this.addChild("head", new Linear(ctx, 8, 2));
    }
    const assignedModule = new AssignedField();
    assignedModule.head = new Linear(ctx, 8, 3);
    expect(() => assignedModule.parameters()).toThrow(/the field "head" \(Linear\)/);
  });

  test("is allowed if a child registers it, or in a private field", () => {
    class SharedProjection extends Module {
      readonly #teacher = new Linear(ctx, 8, 8);
      inner = this.addChild("inner", createAttention());
      projection = this.inner.outProjection;
      layers = [this.inner, this.projection];
      forward(x: Tensor): Tensor {
        return this.projection.forward(this.#teacher.forward(x));
      }
    }
    const module = new SharedProjection();
    expect(module.forward(input([1, 2, 8])).shape).toEqual([1, 2, 8]);
    expect(module.parameters().length).toBe(4);
  });
});

describe("forward", () => {
  test("accepts a mask or document lengths for one call", async () => {
    const module = createAttention();
    const x = input([1, 4, 8]);
    const plainOutput = await readValues(module.forward(x));
    expect(await readValues(module.forward(x, { mask: full() }))).toEqual(plainOutput);
    expect(await readValues(module.forward(x, { mask: causal() }))).not.toEqual(plainOutput);
    const separateOutput = await readValues(module.forward(x, { documents: [3, 1] }));
    expect(separateOutput.slice(24)).toEqual(await readValues(module.forward(x.slice(1, 3))));
    expect(() => module.forward(x, { mask: full(), documents: [4] })).toThrow(/mask or documents, received both/);
  });

  test("uses 1 / √headDim as the default softmax scale", async () => {
    const outcomes = [];
    for (const scale of [undefined, 0.5, 0.1]) {
      const freshContext = await init({ device: new ReferenceDevice() });
      const module = new MultiAxisAttention(freshContext, { ...options, ...(scale && { scale }) });
      outcomes.push(await readValues(module.forward(fromArray(freshContext, values(32), [1, 4, 8]))));
    }
    expect(outcomes[1]).toEqual(outcomes[0]);
    expect(outcomes[2]).not.toEqual(outcomes[0]);
  });

  test("applies causal documents in a causal module", async () => {
    const module = createAttention({ causal: true });
    const x = input([1, 4, 8]);
    expect((await readValues(module.forward(x, { documents: [3, 1] }))).slice(0, 24)).toEqual(
      await readValues(module.forward(x.slice(1, 0, 3))),
    );
  });

  test("treats all axes but the attention axis as batch axes", async () => {
    const module = createAttention({ attentionAxis: 2 });
    const x = input([2, 3, 4, 8]);
    const out = module.forward(x);
    const partialOutput = module.forward(x.slice(0, 1).slice(1, 2));
    expect(await readValues(out.slice(0, 1).slice(1, 2))).toEqual(await readValues(partialOutput));
  });

  test("returns bfloat16 output and gradients for bfloat16 input", async () => {
    const module = createAttention({ dtype: "bfloat16" });
    const x = input([1, 4, 8]).to("bfloat16");
    x.requiresGrad = true;
    const out = module.forward(x);
    expect(out.dtype).toBe("bfloat16");
    out.backward(ones(ctx, out.shape, { dtype: "bfloat16" }));
    expect([x, ...module.parameters()].every((each) => each.grad!.dtype === "bfloat16")).toBe(true);
  });

  test('keeps only its input and output with useCheckpoint, and attention results with "keepAttention"', () => {
    const memoryByMode = ([false, true, "keepAttention"] as const).map((useCheckpoint) => {
      const module = createAttention({ useCheckpoint });
      const allocatedBefore = ctx.device.memory().allocated;
      using x = input([1, 4, 8]);
      using out = module.forward(x);
      return [ctx.device.memory().allocated - allocatedBefore, out.size] as const;
    });
    expect(memoryByMode[1]![0]).toBe(2 * 4 * 4 * 8);
    expect(memoryByMode[1]![0]).toBeLessThan(memoryByMode[0]![0]);
    // "keepAttention" also saves out and lse of attention.
    expect(memoryByMode[2]![0]).toBe(3 * 4 * 4 * 8 + 4 * 4 * options.numHeads);
  });

  test("does not increase peak memory over many steps", () => {
    const module = createAttention({ causal: true });
    let level = 0;
    for (let step = 0; step < 100; step++) {
      using x = input([1, 3, 8]);
      using out = module.forward(x);
      using loss = sum(out);
      loss.backward();
      module.zeroGrad();
      (ctx.device as ReferenceDevice).flush();
      if (step === 0) level = ctx.device.memory().peak;
    }
    expect(ctx.device.memory().peak).toBe(level);
  });
});

describe("modules with invalid input", () => {
  test("reject invalid options and state the expected values", () => {
    expect(() => createAttention({ embedDim: 10, numHeads: 4 })).toThrow(
      /an integer head size \(headDim or embedDim \/ numHeads\) from 1 to 256, received 10 \/ 4; change numHeads/,
    );
    expect(() => createAttention({ numHeads: 4, numKvHeads: 3 })).toThrow(
      /numHeads divisible by numKvHeads, received 4 and 3/,
    );
    expect(() => createAttention({ embedDim: 0 })).toThrow(/embedDim: expected an integer ≥ 1, received 0/);
    expect(() => createAttention({ headDim: 300 })).toThrow(/headDim: .* received 300/);
    expect(() => createAttention({ causal: true, mask: slidingWindow(2) })).toThrow(/causal or mask, received both/);
    expect(() => createAttention({ meshSize: [2, 2] })).toThrow(
      /options among attentionAxis, embedDim, .*received "meshSize"/,
    );
    expect(() => createAttention({ backend: "flash" })).toThrow(/one of "local", received "flash"/);
    expect(() => createAttention({ placement: "spiral" })).toThrow(/contiguous, zigzag, striped/);
    expect(() => createAttention({ sequenceLength: 1.5 })).toThrow(OptionError);
    expect(() => new Linear(ctx, 0, 1)).toThrow(OptionError);
    expect(() => createAttention().forward(input([1, 2, 8]), { causal: true } as object)).toThrow(
      /MultiAxisAttention.forward: .*"causal"/,
    );
  });

  test("reject invalid shapes, axes and masks", () => {
    expect(() => createAttention().forward(input([1, 2, 7]))).toThrow(
      /x \[\.\.,8\] with embedDim as the last axis, received \[1,2,7\]/,
    );
    expect(() => createAttention({ attentionAxis: 3 }).forward(input([1, 2, 8]))).toThrow(
      /attention axis from 0 to 1, or from -3 to -2, .* received axis 3 of \[1,2,8\]/,
    );
    expect(() => createAttention({ attentionAxis: -1 }).forward(input([1, 2, 8]))).toThrow(
      /other than the last axis, the embedding, received axis -1 of \[1,2,8\]/,
    );
    expect(() => createAttention({ attentionAxis: 0 }).forward(input([8]))).toThrow(/at least two axes/);
    expect(() => createAttention({ sequenceLength: 5 }).forward(input([1, 4, 8]))).toThrow(
      /MultiAxisAttention, rank 0: expected 5 rows/,
    );
    const duplicateAxes = new MultiAxisAttention2D(ctx, { embedDim: 8, numHeads: 2, axis1: 1, axis2: -2 });
    expect(() => duplicateAxes.forward(input([2, 3, 8]))).toThrow(/two distinct axes/);
    const cross = new CrossAxisAttention(ctx, { embedDim: 8, numHeads: 2, qAxis: 1, kvAxis: 1 });
    expect(() => cross.forward(input([2, 3, 8]), input([3, 3, 8]))).toThrow(/the same batch size/);
    expect(() => createAttention({}).forward(input([1, 4, 8]), { documents: [2, 3] })).toThrow(ShapeError);
    expect(() => createAttention({ mask: slidingWindow(2) }).forward(input([1, 4, 8]), { documents: [2, 2] })).toThrow(
      /expected either mask or documents, received documents in a module with mask slidingWindow\(2\)/,
    );
    expect(() => createAttention({ mask: "causal" as unknown as Mask })).toThrow(
      /MultiAxisAttention: mask: expected a Mask, such as masks\.causal\(\).*, received "causal"/,
    );
    expect(() => createAttention({}).forward(input([1, 4, 8]), { mask: "causal" as unknown as Mask })).toThrow(
      /MultiAxisAttention.forward: mask: expected a Mask/,
    );
  });

  test("report the rank of a shard with the wrong length", async () => {
    const ranks = await referenceWorld(2, { backends: [allGatherBackend()] });
    const module = new MultiAxisAttention(ranks[1]!, { ...options, backend: "gather", sequenceLength: 6 });
    expect(() => module.forward(zeros(ranks[1]!, [1, 4, 8]))).toThrow(
      /MultiAxisAttention, rank 1: expected 3 rows along the attention axis/,
    );
  });

  test("reject a length other than the input's before creating spans for each of its rows", async () => {
    const module = new MultiAxisAttention2D(ctx, {
      embedDim: 8,
      numHeads: 2,
      axis1: 1,
      axis2: 2,
      placement: "striped",
    });
    expect(() => module.forward(input([1, 4, 2, 8]), { sequenceLength: 2 ** 31 })).toThrow(
      /MultiAxisAttention2D, rank 0: expected 2147483648 rows along axis1, this rank's shard of 2147483648 rows, received 4/,
    );
  });

  test("reject rows that are not a shard before the position encoding runs", () => {
    const encode = () => expect.unreachable();
    const module = createAttention({ sequenceLength: 4, positions: { headDim: 4, encode } });
    expect(() => module.forward(input([1, 3, 8]))).toThrow(
      /^MultiAxisAttention, rank 0: expected 4 rows along the attention axis, this rank's shard of 4 rows, received 3; pass this rank's shard, from shard\(\), the placement .* as sequenceLength$/,
    );
    const cross = new CrossAxisAttention(ctx, { embedDim: 8, numHeads: 2, qAxis: 1, kvAxis: 1, kvSequenceLength: 4 });
    expect(() => cross.forward(input([1, 2, 8]), input([1, 3, 8]))).toThrow(
      /CrossAxisAttention, rank 0: expected 4 rows along kvAxis/,
    );
  });

  test("reject another dtype, a disposed tensor and a closed context", async () => {
    const module = createAttention();
    const x = input([1, 2, 8]);
    expect(() => module.forward(x.to("float16"))).toThrow(DTypeError);
    expect(() => module.forward(x.to("float16"))).toThrow(/MultiAxisAttention: expected float32, received float16/);
    x.dispose();
    expect(() => module.forward(x)).toThrow(DisposedError);
    const y = input([1, 2, 8]);
    await ctx.close();
    expect(() => module.forward(y)).toThrow(ClosedError);
    expect(() => createAttention()).toThrow(ClosedError);
    expect(() => reduceGradients(ctx, module)).toThrow(ClosedError);
  });
});

test("reduceGradients fills missing gradients with zeros on one rank, and rejects a disposed module", async () => {
  const [ctx] = await referenceWorld(1, {});
  const module = new Linear(ctx!, 1, 1);
  reduceGradients(ctx!, module);
  expect(await readValues(module.weight.grad!)).toEqual([0]);
  expect(await readValues(module.bias!.grad!)).toEqual([0]);
  module[Symbol.dispose]();
  expect(() => reduceGradients(ctx!, module)).toThrow(DisposedError);
});

test("reduceGradients sums along sp and averages along dp, with missing or disposed gradients as zero", async () => {
  const ranks = await referenceWorld(4, { mesh: { dp: 2, sp: 2 } });
  const modules = ranks.map((each) => new Linear(each, 1, 1));
  for (const [rank, { weight }] of modules.entries()) weight.grad = fromArray(ranks[rank]!, [10 ** rank], [1, 1]);
  modules[3]!.weight.grad = null;
  modules[0]!.bias!.grad = fromArray(ranks[0]!, [7], [1]);
  modules[0]!.bias!.grad.dispose();
  for (const [rank, module] of modules.entries()) reduceGradients(ranks[rank]!, module);
  for (const { weight, bias } of modules) {
    expect(await readValues(weight.grad!)).toEqual([(1 + 10 + 100) / 2]);
    expect(await readValues(bias!.grad!)).toEqual([0]);
  }
});

describe("a parameter in a field that is not registered", () => {
  test("is rejected, also within an array, a map or an object", () => {
    const create = (): Tensor => createParameter(ctx, [2], { initial: { kind: "constant", value: 1 } });
    class Scaled extends Module {
      weight = create();
      forward(x: Tensor): Tensor {
        return x.mul(this.weight);
      }
    }
    const message =
      /^Scaled: expected every tensor that requires a gradient to be a registered parameter, received the field "weight" \(Tensor\); write weight = this\.addParameter\("weight", …\)/;
    expect(() => new Scaled().forward(input([1, 2]))).toThrow(message);
    expect(() => new Scaled().parameters()).toThrow(message);
    class Listed extends Module {
      weights: unknown;
    }
    for (const weights of [[create()], new Map([["a", create()]]), { a: create() }]) {
      const module = new Listed();
      module.weights = weights;
      expect(() => module.parameters()).toThrow(/the field "weights" \(Tensor\[\]\)/);
    }
  });

  test("is allowed if a child registers it, or if it requires no gradient", () => {
    class Tied extends Module {
      inner = this.addChild("inner", new Linear(ctx, 2, 2));
      weight = this.inner.weight;
      offset = ones(ctx, [2]);
    }
    expect(new Tied().parameters().length).toBe(2);
  });
});
