import {
  type Context,
  CrossAxisAttention,
  fromArray,
  Linear,
  type Module,
  MultiAxisAttention,
  type PlacementName,
  reduceGradients,
  shard,
  unshard,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { LayerNorm, RMSNorm, RotaryEmbedding } from "../src/index.ts";
import { mapRows, checkLayer, linear } from "./reference/gradients.ts";
import { maxDifference, generateNumbers } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

type ParameterValues = Readonly<Record<string, readonly number[]>>;

const [embedDim, heads, kvHeads, dim, epsilon] = [6, 2, 1, 3, 1e-3];

function rmsNorm(row: readonly number[], weight: readonly number[], offset: number): number[] {
  const rstd = 1 / Math.sqrt(row.reduce((sum, value) => sum + value ** 2, 0) / row.length + epsilon);
  return row.map((value, i) => value * rstd * (weight[i]! + offset));
}

const dot = (a: readonly number[], b: readonly number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);

/** Causal attention with normalized heads of one sequence x [S,E], in float64. */
function referenceAttention(x: readonly number[], p: ParameterValues, offset: number): number[] {
  const width = (heads + 2 * kvHeads) * dim;
  const qkv = linear(x, p["qkv_proj.weight"]!, p["qkv_proj.bias"]!);
  const rows = x.length / embedDim;
  const head = (row: number, i: number) => qkv.slice(row * width + i * dim, row * width + (i + 1) * dim);
  const q = (row: number, h: number) => rmsNorm(head(row, h), p["q_norm.weight"]!, offset);
  const k = (row: number, h: number) => rmsNorm(head(row, heads + h), p["k_norm.weight"]!, offset);
  const out = Array.from({ length: rows }, (_, row) =>
    Array.from({ length: heads }, (_, h) => {
      const scores = Array.from({ length: row + 1 }, (_, key) => dot(q(row, h), k(key, 0)) / Math.sqrt(dim));
      const total = scores.reduce((sum, score) => sum + Math.exp(score), 0);
      const sum = new Array<number>(dim).fill(0);
      for (const [key, score] of scores.entries()) {
        const v = head(key, heads + kvHeads);
        for (let i = 0; i < dim; i++) sum[i]! += (Math.exp(score) / total) * v[i]!;
      }
      return sum;
    }).flat(),
  ).flat();
  return linear(out, p["out_proj.weight"]!, p["out_proj.bias"]!);
}

const createNorms = (ctx: Context, weightOffset: 0 | 1 = 0) => ({
  qNorm: new RMSNorm(ctx, dim, { epsilon, weightOffset }),
  kNorm: new RMSNorm(ctx, dim, { epsilon, weightOffset }),
});
const options = { embedDim, numHeads: heads, numKvHeads: kvHeads, headDim: dim, causal: true } as const;

describe("attention with QK-norm", () => {
  test.each([0, 1] as const)("matches float64 in forward and every gradient, weightOffset %d", (weightOffset) =>
    onOneRank(async (ctx) => {
      using module = new MultiAxisAttention(ctx, { ...options, attentionAxis: 1, ...createNorms(ctx, weightOffset) });
      expect(module.namedParameters().map(([name]) => name)).toEqual([
        ...["qkv_proj.weight", "qkv_proj.bias", "out_proj.weight", "out_proj.bias"],
        ...["q_norm.weight", "k_norm.weight"],
      ]);
      const reference = (x: readonly number[], p: ParameterValues) => referenceAttention(x, p, weightOffset);
      await checkLayer(ctx, { module, forward: (x) => module.forward(x), shape: [1, 4, embedDim], reference });
    }),
  );

  /** Returns the gathered output and gradients of a self-attention followed by a cross-attention. */
  async function runAttention(ctx: Context, placement: PlacementName): Promise<number[][]> {
    const length = 11;
    const positions = new RotaryEmbedding(4);
    const commonOptions = { embedDim: 8, numHeads: 2, causal: true, backend: "ring", placement, positions } as const;
    const createHeadNorms = () => ({ qNorm: new RMSNorm(ctx, 4), kNorm: new LayerNorm(ctx, 4) });
    using selfAttention = new MultiAxisAttention(ctx, {
      ...commonOptions,
      ...createHeadNorms(),
      attentionAxis: 1,
      sequenceLength: length,
    });
    using crossAttention = new CrossAxisAttention(ctx, {
      ...{ ...commonOptions, ...createHeadNorms(), qAxis: 1, kvAxis: 1 },
      ...{ sequenceLength: length, kvSequenceLength: length },
    });
    using fullInput = fromArray(ctx, generateNumbers(2 * length * 8, 3), [2, length, 8]);
    const x = shard(ctx, fullInput, 1, { placement }).detach();
    x.requiresGrad = true;
    using selfOutput = selfAttention.forward(x);
    using out = crossAttention.forward(selfOutput, x);
    using seed = shard(ctx, fullInput, 1, { placement });
    out.backward(seed);
    const modules: readonly Module[] = [selfAttention, crossAttention];
    for (const module of modules) reduceGradients(ctx, module);
    const fullTensors = [out, x.grad!].map((each) => unshard(ctx, each, 1, { placement, length }));
    const gradients = modules.flatMap((module) => module.parameters()).map(({ grad }) => grad!);
    const actual = await Promise.all([...fullTensors, ...gradients].map(async (each) => Array.from(await each.read())));
    positions.dispose();
    return actual;
  }

  test.each(["contiguous", "zigzag", "striped"] as const)("is the same on every mesh, %s", async (placement) => {
    const [expected] = await onMesh({ sp: 1 }, (ctx) => runAttention(ctx, placement));
    for (const sp of [2, 4]) {
      for (const actual of await onMesh({ sp }, (ctx) => runAttention(ctx, placement))) {
        for (const [i, values] of actual.entries()) expect(maxDifference(values, expected![i]!)).toBeLessThan(1e-5);
      }
    }
  });

  test("computes a bfloat16 norm in float32 and rounds only the result", () =>
    onOneRank(async (ctx) => {
      using norm = new RMSNorm(ctx, 64, { weightOffset: 1, dtype: "bfloat16" });
      const weight = generateNumbers(64, 1).map((value) => value * 2 ** -10);
      ctx.device.write(norm.weight, weight);
      const storedWeight = Array.from(await norm.weight.read());
      using x = fromArray(ctx, generateNumbers(8 * 64, 2), [8, 64], { dtype: "bfloat16" });
      const values = Array.from(await x.read());
      using out = norm.forward(x);
      const expected = mapRows(values, 64, (row) => {
        const rstd = 1 / Math.sqrt(dot(row, row) / 64 + 1e-6);
        return row.map((value, i) => value * rstd * (1 + storedWeight[i]!));
      });
      const actual = await out.read();
      // Half a unit in the last place of bfloat16. Rounding 1 + w to bfloat16 would lose w, an error of the same size
      // again.
      for (const [i, value] of expected.entries()) {
        expect(Math.abs(actual[i]! - value)).toBeLessThanOrEqual(Math.abs(value) * 2 ** -8 * 1.001);
      }
    }));

  test("rejects norms that are not modules or do not keep the shape", () =>
    onOneRank((ctx) => {
      const createWithNorm = (qNorm: unknown) =>
        new MultiAxisAttention(ctx, { ...options, attentionAxis: 1, qNorm: qNorm as RMSNorm });
      expect(() => createWithNorm(true)).toThrow(/qNorm: expected a Module/);
      using x = fromArray(ctx, generateNumbers(12, 1), [1, 2, 6]);
      using wrongDimAttention = createWithNorm(new Linear(ctx, 3, 4));
      expect(() => wrongDimAttention.forward(x)).toThrow(/QK-norm: expected \[1,2,2,3\].*received \[1,2,2,4\]/);
      using otherNormAttention = createWithNorm(new RMSNorm(ctx, 4));
      expect(() => otherNormAttention.forward(x)).toThrow(/weight and bias of shape \[3\]/);
    }));
});
