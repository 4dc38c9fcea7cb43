import { CrossAxisAttention, fromArray, type HostTensor, Module, MultiAxisAttention, type Tensor } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { fromTorch } from "../src/index.ts";
import { mapRows, linear } from "./reference/gradients.ts";
import { generateNumbers, maxDifference } from "./reference/numbers.ts";
import { onOneRank } from "./reference/world.ts";

const [embed, heads, rows, keys] = [6, 2, 4, 5];
const headDim = embed / heads;

const host = (seed: number, ...shape: number[]): HostTensor => ({
  dtype: "float32",
  shape,
  values: Float32Array.from(
    generateNumbers(
      shape.reduce((a, b) => a * b, 1),
      seed,
    ),
  ),
});

/** The state dict of PyTorch's nn.MultiheadAttention(6, 2). */
const torchState: ReadonlyMap<string, HostTensor> = new Map([
  ["in_proj_weight", host(1, 3 * embed, embed)],
  ["in_proj_bias", host(2, 3 * embed)],
  ["out_proj.weight", host(3, embed, embed)],
  ["out_proj.bias", host(4, embed)],
]);

const listValues = ({ values }: HostTensor) => Array.from(values);

/** Computes nn.MultiheadAttention in float64, from projected queries, keys and values [rows · embed]. */
function referenceMultihead(
  q: readonly number[],
  k: readonly number[],
  v: readonly number[],
  state: ReadonlyMap<string, HostTensor>,
): number[] {
  const count = k.length / embed;
  const out = mapRows(q, embed, (row) =>
    Array.from({ length: heads }, (_, h) => {
      const scores = Array.from({ length: count }, (_, j) => {
        let score = 0;
        for (let d = 0; d < headDim; d++) score += row[h * headDim + d]! * k[j * embed + h * headDim + d]!;
        return Math.exp(score / Math.sqrt(headDim));
      });
      const total = scores.reduce((a, b) => a + b, 0);
      return Array.from({ length: headDim }, (_, d) =>
        scores.reduce((sum, score, j) => sum + (score / total) * v[j * embed + h * headDim + d]!, 0),
      );
    }).flat(),
  );
  return linear(out, listValues(state.get("out_proj.weight")!), listValues(state.get("out_proj.bias")!));
}

/** Applies projection `partIndex` (0 queries, 1 keys, 2 values) of in_proj. */
function project(x: readonly number[], partIndex: number): number[] {
  const weight = listValues(torchState.get("in_proj_weight")!).slice(
    partIndex * embed * embed,
    (partIndex + 1) * embed * embed,
  );
  return linear(
    x,
    weight,
    listValues(torchState.get("in_proj_bias")!).slice(partIndex * embed, (partIndex + 1) * embed),
  );
}

class Block extends Module {
  readonly attn: MultiAxisAttention;
  constructor(attn: MultiAxisAttention) {
    super();
    this.attn = this.addChild("attn", attn);
  }
}

describe("weights of nn.MultiheadAttention give the same results", () => {
  test("as self-attention, inside a model", () =>
    onOneRank(async (ctx) => {
      const options = { embedDim: embed, numHeads: heads, attentionAxis: 1 };
      using model = new Block(new MultiAxisAttention(ctx, options));
      const state = new Map([...torchState].map(([name, tensor]) => [`attn.${name}`, tensor]));
      expect(model.loadStateDict(fromTorch(state, model))).toEqual({ missing: [], unexpected: [] });
      const x = generateNumbers(rows * embed, 9);
      using input = fromArray(ctx, x, [1, rows, embed]);
      using out = model.attn.forward(input);
      const expected = referenceMultihead(project(x, 0), project(x, 1), project(x, 2), torchState);
      expect(maxDifference(await out.read(), expected)).toBeLessThan(2e-6);
    }));

  const runCross = (x: Tensor, y: Tensor, attn: CrossAxisAttention) => attn.forward(x, y).read();

  test("as cross-attention", () =>
    onOneRank(async (ctx) => {
      using attn = new CrossAxisAttention(ctx, { embedDim: embed, numHeads: heads, qAxis: 1, kvAxis: 1 });
      attn.loadStateDict(fromTorch(torchState, attn));
      const [x, y] = [generateNumbers(rows * embed, 9), generateNumbers(keys * embed, 10)];
      const out = await runCross(fromArray(ctx, x, [1, rows, embed]), fromArray(ctx, y, [1, keys, embed]), attn);
      const expected = referenceMultihead(project(x, 0), project(y, 1), project(y, 2), torchState);
      expect(maxDifference(out, expected)).toBeLessThan(2e-6);
    }));

  test("as cross-attention whose keys have another size", () =>
    onOneRank(async (ctx) => {
      const size = 4;
      const [q, k, v] = [host(5, embed, embed), host(6, embed, size), host(7, embed, size)];
      const separateState = new Map([
        ...torchState,
        ["q_proj_weight", q],
        ["k_proj_weight", k],
        ["v_proj_weight", v],
      ] as const);
      separateState.delete("in_proj_weight");
      using attn = new CrossAxisAttention(ctx, {
        embedDim: embed,
        numHeads: heads,
        qAxis: 1,
        kvAxis: 1,
        kvEmbedDim: size,
      });
      attn.loadStateDict(fromTorch(separateState, attn));
      const [x, y] = [generateNumbers(rows * embed, 9), generateNumbers(keys * size, 10)];
      const out = await runCross(fromArray(ctx, x, [1, rows, embed]), fromArray(ctx, y, [1, keys, size]), attn);
      const bias = listValues(torchState.get("in_proj_bias")!);
      const projectWith = (input: readonly number[], weight: HostTensor, partIndex: number) =>
        linear(input, listValues(weight), bias.slice(partIndex * embed, (partIndex + 1) * embed));
      expect(
        maxDifference(
          out,
          referenceMultihead(projectWith(x, q, 0), projectWith(y, k, 1), projectWith(y, v, 2), torchState),
        ),
      ).toBeLessThan(2e-6);
      separateState.delete("v_proj_weight");
      expect(() => fromTorch(separateState, attn)).toThrow(
        /value projection of shape \[6,4\], the shape of the key projection, received none/,
      );
      separateState.set("v_proj_weight", host(7, embed, size + 1));
      expect(() => fromTorch(separateState, attn)).toThrow(/value projection of shape \[6,4\], .*, received \[6,5\]/);
    }));
});

test("state dicts have the names of the original Mosaic, which fromTorch keeps", () =>
  onOneRank((ctx) => {
    const options = { embedDim: embed, numHeads: heads };
    using selfAttention = new MultiAxisAttention(ctx, { ...options, attentionAxis: 1 });
    using cross = new CrossAxisAttention(ctx, { ...options, qAxis: 1, kvAxis: 1 });
    expect([...selfAttention.stateDict().keys()]).toEqual([
      "qkv_proj.weight",
      "qkv_proj.bias",
      "out_proj.weight",
      "out_proj.bias",
    ]);
    expect([...cross.stateDict().keys()].filter((name) => name.endsWith("weight"))).toEqual([
      "q_proj.weight",
      "kv_proj.weight",
      "out_proj.weight",
    ]);
    const mosaicState = new Map([["qkv_proj.weight", host(1, 3 * embed, embed)]]);
    expect([...fromTorch(mosaicState, selfAttention).keys()]).toEqual(["qkv_proj.weight"]);
  }));

test("a model's own parameters with PyTorch's names keep their names", () =>
  onOneRank((ctx) => {
    const names = ["in", "q", "k", "v"].map((projection) => `${projection}_proj_weight`);
    class Projections extends Module {
      readonly weights = names.map((name) => this.addParameter(name, fromArray(ctx, [0], [1])));
    }
    using model = new Projections();
    const state = new Map(names.map((name, i) => [name, host(i, 1)]));
    expect([...fromTorch(state, model)]).toEqual([...state]);
    expect(model.loadStateDict(fromTorch(state, model))).toEqual({ missing: [], unexpected: [] });
  }));

test("weights that the model does not have are rejected by name", () =>
  onOneRank((ctx) => {
    using attn = new MultiAxisAttention(ctx, { embedDim: embed, numHeads: heads, attentionAxis: 1, bias: false });
    expect(() => attn.loadStateDict(fromTorch(torchState, attn))).toThrow(
      /unexpected "in_proj_bias", "out_proj\.bias"/,
    );
    const extraState = new Map([...torchState, ["bias_k", host(1, 1, 1, embed)]] as const);
    using fullAttention = new MultiAxisAttention(ctx, { embedDim: embed, numHeads: heads, attentionAxis: 1 });
    expect(() => fullAttention.loadStateDict(fromTorch(extraState, fullAttention))).toThrow(/unexpected "bias_k"/);
    const smallState = new Map([["in_proj_weight", host(1, 3, embed)]]);
    using cross = new CrossAxisAttention(ctx, { embedDim: embed, numHeads: heads, qAxis: 1, kvAxis: 1 });
    expect(() => fromTorch(smallState, cross)).toThrow(/at least 6 rows, received 3/);
    const smallerByOne = new Map([["in_proj_weight", host(1, embed - 1, embed)]]);
    expect(() => fromTorch(smallerByOne, cross)).toThrow(/at least 6 rows, received 5/);
  }));

test("an omitted module is named in the error", () => {
  // @ts-expect-error -- the second argument is required
  expect(() => fromTorch(torchState)).toThrow(
    "fromTorch: expected a Module as second argument, received undefined; " +
      "call fromTorch(tensors, model) with the module that will load the tensors",
  );
});
