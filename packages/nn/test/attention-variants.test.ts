import { readFileSync } from "node:fs";
import {
  attention,
  type Context,
  fromArray,
  masks,
  MultiAxisAttention,
  reduceGradients,
  shard,
  unshard,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { maxDifference } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

type NumberList = readonly number[];
/** Output of attention-variants.py: layers of Hugging Face transformers, in float32. */
const { sizes, gptOss, gemma2 } = JSON.parse(
  readFileSync(new URL("reference/attention-variants.json", import.meta.url), "utf8"),
) as {
  readonly sizes: Readonly<Record<"batch" | "length" | "embedDim" | "numHeads" | "numKvHeads" | "headDim", number>>;
  readonly gptOss: readonly (Readonly<
    Record<
      "x" | "qkvWeight" | "qkvBias" | "outWeight" | "outBias" | "sinks" | "dOut" | "out" | "dx" | "dSinks",
      NumberList
    >
  > & { readonly window: number })[];
  readonly gemma2: Readonly<Record<"q" | "k" | "v" | "dOut" | "out" | "dq" | "dk" | "dv", NumberList>> & {
    readonly softcap: number;
  };
};
const { batch, length, embedDim, numHeads, numKvHeads, headDim } = sizes;
/** Tolerance for the rounding, on both sides, of sums of numbers of magnitude 1. */
const float32Error = 5e-6;

type GptOssLayer = (typeof gptOss)[number];

/**
 * Runs the layer on this rank's rows of x, forward and backward. Returns the whole out and dx, and the gradient of the
 * sinks that all ranks have.
 */
async function runLayer(ctx: Context, expected: GptOssLayer, backend: string) {
  const mask = masks.slidingWindow(expected.window);
  const options = { embedDim, numHeads, numKvHeads, headDim, attentionAxis: 1, mask, sinks: true, backend };
  using layer = new MultiAxisAttention(ctx, { ...options, sequenceLength: length });
  const state = {
    "qkv_proj.weight": fromArray(ctx, expected.qkvWeight, layer.qkvProjection.weight.shape),
    "qkv_proj.bias": fromArray(ctx, expected.qkvBias, layer.qkvProjection.bias!.shape),
    "out_proj.weight": fromArray(ctx, expected.outWeight, layer.outProjection.weight.shape),
    "out_proj.bias": fromArray(ctx, expected.outBias, layer.outProjection.bias!.shape),
    sinks: fromArray(ctx, expected.sinks, [numHeads]),
  };
  layer.loadStateDict(new Map(Object.entries(state)));
  const createLocalInput = (values: NumberList) =>
    shard(ctx, fromArray(ctx, values, [batch, length, embedDim]), 1).detach();
  const x = createLocalInput(expected.x);
  x.requiresGrad = true;
  const out = layer.forward(x);
  out.backward(createLocalInput(expected.dOut));
  reduceGradients(ctx, layer);
  const fullTensors = [unshard(ctx, out, 1, { length }), unshard(ctx, x.grad!, 1, { length }), layer.sinks!.grad!];
  const [outputValues, dx, dSinks] = await Promise.all(fullTensors.map((each) => each.read()));
  return { out: outputValues!, dx: dx!, dSinks: dSinks! };
}

test.each(gptOss)("a layer of gpt-oss with sinks and a window of $window matches transformers", async (expected) => {
  const ranks = [
    await onOneRank((ctx) => runLayer(ctx, expected, "local")),
    ...(await onMesh({ sp: 3 }, (ctx) => runLayer(ctx, expected, "ring"))),
  ];
  expect(Math.max(...expected.dSinks.map(Math.abs))).toBeGreaterThan(0.1);
  for (const actual of ranks) {
    for (const name of ["out", "dx", "dSinks"] as const) {
      expect(maxDifference(actual[name], expected[name]), name).toBeLessThan(float32Error);
    }
  }
});

test("attention with the softcap of Gemma 2 matches transformers", () =>
  onOneRank(async (ctx) => {
    const tensor = (values: NumberList, heads: number) => fromArray(ctx, values, [batch, heads, length, headDim]);
    const [q, k, v] = [tensor(gemma2.q, numHeads), tensor(gemma2.k, numKvHeads), tensor(gemma2.v, numKvHeads)];
    for (const x of [q, k, v]) x.requiresGrad = true;
    const out = attention(ctx, q, k, v, { mask: masks.causal(), softcap: gemma2.softcap });
    out.backward(tensor(gemma2.dOut, numHeads));
    const actualTensors = { out, dq: q.grad!, dk: k.grad!, dv: v.grad! };
    for (const name of ["out", "dq", "dk", "dv"] as const) {
      expect(maxDifference(await actualTensors[name].read(), gemma2[name]), name).toBeLessThan(float32Error);
    }
  }));
