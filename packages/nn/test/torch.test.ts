import { CrossAxisAttention, fromArray, type HostTensor, Module, MultiAxisAttention, type Tensor } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { fromTorch } from "../src/index.ts";
import { byRow, linear } from "./reference/gradients.ts";
import { numbers, maxDifference } from "./reference/numbers.ts";
import { alone } from "./reference/world.ts";

const [embed, heads, rows, keys] = [6, 2, 4, 5];
const each = embed / heads;

const host = (seed: number, ...shape: number[]): HostTensor => ({
  dtype: "float32",
  shape,
  values: Float32Array.from(
    numbers(
      shape.reduce((a, b) => a * b, 1),
      seed,
    ),
  ),
});

/** The state dict of PyTorch's nn.MultiheadAttention(6, 2). */
const torch: ReadonlyMap<string, HostTensor> = new Map([
  ["in_proj_weight", host(1, 3 * embed, embed)],
  ["in_proj_bias", host(2, 3 * embed)],
  ["out_proj.weight", host(3, embed, embed)],
  ["out_proj.bias", host(4, embed)],
]);

const listed = ({ values }: HostTensor) => Array.from(values);

/** What nn.MultiheadAttention computes, in float64, from rows x [S,E] and sources of keys y [K,F] and values. */
function multihead(
  q: readonly number[],
  k: readonly number[],
  v: readonly number[],
  state: ReadonlyMap<string, HostTensor>,
): number[] {
  const count = k.length / embed;
  const out = byRow(q, embed, (row) =>
    Array.from({ length: heads }, (_, h) => {
      const scores = Array.from({ length: count }, (_, j) => {
        let score = 0;
        for (let d = 0; d < each; d++) score += row[h * each + d]! * k[j * embed + h * each + d]!;
        return Math.exp(score / Math.sqrt(each));
      });
      const total = scores.reduce((a, b) => a + b, 0);
      return Array.from({ length: each }, (_, d) =>
        scores.reduce((sum, score, j) => sum + (score / total) * v[j * embed + h * each + d]!, 0),
      );
    }).flat(),
  );
  return linear(out, listed(state.get("out_proj.weight")!), listed(state.get("out_proj.bias")!));
}

/** Projection `part` (0 queries, 1 keys, 2 values) by in_proj. */
function projected(x: readonly number[], part: number): number[] {
  const weight = listed(torch.get("in_proj_weight")!).slice(part * embed * embed, (part + 1) * embed * embed);
  return linear(x, weight, listed(torch.get("in_proj_bias")!).slice(part * embed, (part + 1) * embed));
}

class Block extends Module {
  readonly attn: MultiAxisAttention;
  constructor(attn: MultiAxisAttention) {
    super();
    this.attn = this.addChild("attn", attn);
  }
}

describe("weights of nn.MultiheadAttention compute what they computed", () => {
  test("as self-attention, inside a model", () =>
    alone(async (ctx) => {
      const options = { embedDim: embed, numHeads: heads, attentionAxis: 1 };
      using model = new Block(new MultiAxisAttention(ctx, options));
      const state = new Map([...torch].map(([name, tensor]) => [`attn.${name}`, tensor]));
      expect(model.loadStateDict(fromTorch(state, model))).toEqual({ missing: [], unexpected: [] });
      const x = numbers(rows * embed, 9);
      using input = fromArray(ctx, x, [1, rows, embed]);
      using out = model.attn.forward(input);
      const expected = multihead(projected(x, 0), projected(x, 1), projected(x, 2), torch);
      expect(maxDifference(await out.read(), expected)).toBeLessThan(2e-6);
    }));

  const cross = (x: Tensor, y: Tensor, attn: CrossAxisAttention) => attn.forward(x, y).read();

  test("as cross-attention", () =>
    alone(async (ctx) => {
      using attn = new CrossAxisAttention(ctx, { embedDim: embed, numHeads: heads, qAxis: 1, kvAxis: 1 });
      attn.loadStateDict(fromTorch(torch, attn));
      const [x, y] = [numbers(rows * embed, 9), numbers(keys * embed, 10)];
      const out = await cross(fromArray(ctx, x, [1, rows, embed]), fromArray(ctx, y, [1, keys, embed]), attn);
      const expected = multihead(projected(x, 0), projected(y, 1), projected(y, 2), torch);
      expect(maxDifference(out, expected)).toBeLessThan(2e-6);
    }));

  test("as cross-attention whose keys have another size", () =>
    alone(async (ctx) => {
      const size = 4;
      const [q, k, v] = [host(5, embed, embed), host(6, embed, size), host(7, embed, size)];
      const apart = new Map([...torch, ["q_proj_weight", q], ["k_proj_weight", k], ["v_proj_weight", v]] as const);
      apart.delete("in_proj_weight");
      using attn = new CrossAxisAttention(ctx, {
        embedDim: embed,
        numHeads: heads,
        qAxis: 1,
        kvAxis: 1,
        kvEmbedDim: size,
      });
      attn.loadStateDict(fromTorch(apart, attn));
      const [x, y] = [numbers(rows * embed, 9), numbers(keys * size, 10)];
      const out = await cross(fromArray(ctx, x, [1, rows, embed]), fromArray(ctx, y, [1, keys, size]), attn);
      const bias = listed(torch.get("in_proj_bias")!);
      const by = (from: readonly number[], weight: HostTensor, part: number) =>
        linear(from, listed(weight), bias.slice(part * embed, (part + 1) * embed));
      expect(maxDifference(out, multihead(by(x, q, 0), by(y, k, 1), by(y, v, 2), torch))).toBeLessThan(2e-6);
      apart.delete("v_proj_weight");
      expect(() => fromTorch(apart, attn)).toThrow(
        /value projection of shape \[6,4\], the shape of the key projection, received none/,
      );
    }));
});

test("the original Mosaic's names are Mosaic's own", () =>
  alone((ctx) => {
    const options = { embedDim: embed, numHeads: heads };
    using self = new MultiAxisAttention(ctx, { ...options, attentionAxis: 1 });
    using cross = new CrossAxisAttention(ctx, { ...options, qAxis: 1, kvAxis: 1 });
    expect([...self.stateDict().keys()]).toEqual([
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
    const original = new Map([["qkv_proj.weight", host(1, 3 * embed, embed)]]);
    expect([...fromTorch(original, self).keys()]).toEqual(["qkv_proj.weight"]);
  }));

test("what the model has no place for is rejected by name", () =>
  alone((ctx) => {
    using attn = new MultiAxisAttention(ctx, { embedDim: embed, numHeads: heads, attentionAxis: 1, bias: false });
    expect(() => attn.loadStateDict(fromTorch(torch, attn))).toThrow(/unexpected "in_proj_bias", "out_proj\.bias"/);
    const extra = new Map([...torch, ["bias_k", host(1, 1, 1, embed)]] as const);
    using full = new MultiAxisAttention(ctx, { embedDim: embed, numHeads: heads, attentionAxis: 1 });
    expect(() => full.loadStateDict(fromTorch(extra, full))).toThrow(/unexpected "bias_k"/);
    const small = new Map([["in_proj_weight", host(1, 3, embed)]]);
    using cross = new CrossAxisAttention(ctx, { embedDim: embed, numHeads: heads, qAxis: 1, kvAxis: 1 });
    expect(() => fromTorch(small, cross)).toThrow(/more than 6 rows, received 3/);
  }));
