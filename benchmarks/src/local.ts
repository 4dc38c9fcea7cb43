import * as mosaic from "@mosaic/attention";
import { type AttentionProblem, AttentionRun, flopsOf, nameOf } from "./attention-problem.ts";
import { type Case, now } from "./case.ts";
import { peakRow, timesWithPeak } from "./peak.ts";

const HEADS = 8;

/** Attention on one device with every core, against the peak of its multiply-adds. */
export const localCases: readonly Case[] = [
  ...attention("forward", "f32"),
  ...attention("backward", "f32"),
  ...attention("forward", "bf16"),
  ...attention("backward", "bf16"),
];

function attention(direction: AttentionProblem["direction"], dtype: AttentionProblem["dtype"]): Case[] {
  const shapes = [
    { mask: "full", d: 64, n: 8192 },
    { mask: "full", d: 128, n: 8192 },
    { mask: "causal", d: 64, n: 8192 },
    { mask: "causal", d: 128, n: 8192 },
    { mask: "full", d: 64, n: 2048 },
  ] as const;
  return shapes.map((shape) => localCase({ direction, dtype, numHeads: HEADS, ...shape }));
}

function localCase(problem: AttentionProblem): Case {
  const name = `local.${nameOf(problem)}`;
  return {
    names: [name],
    async run({ repetitions }) {
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      using run = new AttentionRun(ctx, problem, mosaic.local());
      const times = await timesWithPeak(repetitions, async () => {
        const { begin, end } = await run.once();
        return end - begin;
      });
      return [peakRow(name, flopsOf(problem), times)];
    },
  };
}

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly dtype: AttentionProblem["dtype"];
}

const products: readonly Product[] = [
  { dtype: "f32", m: 2048, n: 2048, k: 2048 },
  { dtype: "f32", m: 8192, n: 512, k: 512 },
  { dtype: "f32", m: 8192, n: 384, k: 128 },
  { dtype: "bf16", m: 2048, n: 2048, k: 2048 },
];

/** Matrix products, as linear layers call them. */
export const gemmCases: readonly Case[] = products.map(({ dtype, m, n, k }) => {
  const name = `gemm.${dtype}.m${m}.n${n}.k${k}`;
  return {
    names: [name],
    async run({ repetitions }) {
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      const draw = (shape: mosaic.Shape): mosaic.Tensor =>
        mosaic.randn(ctx, shape, { dtype: dtype === "f32" ? "float32" : "bfloat16" });
      using a = draw([m, k]);
      using b = draw([k, n]);
      const times = await timesWithPeak(repetitions, async () => {
        const begin = now();
        using _ = mosaic.matmul(a, b);
        await ctx.device.stream.synchronize();
        return now() - begin;
      });
      return [peakRow(name, 2 * m * n * k, times)];
    },
  };
});
