import * as mosaic from "@mosaic/attention";
import { fmaPeak } from "@mosaic/attention/planner";
import { type AttentionProblem, AttentionRun, countFlops, formatName } from "./attention-problem.ts";
import { type BenchmarkCase, median, now, type ResultRow } from "./case.ts";

const HEADS = 8;

const dtypes = { f32: "float32", bf16: "bfloat16" } as const;

/** Attention on one device with every core, compared with the machine's peak for its products. */
export const localCases: readonly BenchmarkCase[] = [
  ...createAttentionCases("forward", "f32"),
  ...createAttentionCases("backward", "f32"),
  ...createAttentionCases("forward", "bf16"),
  ...createAttentionCases("backward", "bf16"),
];

function createAttentionCases(
  direction: AttentionProblem["direction"],
  dtype: AttentionProblem["dtype"],
): BenchmarkCase[] {
  const shapes = [
    { mask: "full", d: 64, n: 8192 },
    { mask: "full", d: 128, n: 8192 },
    { mask: "causal", d: 64, n: 8192 },
    { mask: "causal", d: 128, n: 8192 },
    { mask: "window", d: 64, n: 8192 },
    { mask: "documents", d: 64, n: 8192 },
    { mask: "full", d: 64, n: 2048 },
    { mask: "causal", d: 64, n: 1024 },
  ] as const;
  return shapes.map((shape) => createLocalCase({ direction, dtype, numHeads: HEADS, ...shape }));
}

function createLocalCase(problem: AttentionProblem): BenchmarkCase {
  const name = `local.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions }) {
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      using run = new AttentionRun(ctx, problem, mosaic.local());
      const times = await measureWithPeak(repetitions, problem.dtype, async () => {
        const { begin, end } = await run.runOnce();
        return end - begin;
      });
      return [createPeakRow(name, countFlops(problem), times)];
    },
  };
}

interface GemmProblem {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly dtype: AttentionProblem["dtype"];
}

const gemmProblems: readonly GemmProblem[] = [
  { dtype: "f32", m: 2048, n: 2048, k: 2048 },
  { dtype: "f32", m: 8192, n: 512, k: 512 },
  { dtype: "f32", m: 8192, n: 384, k: 128 },
  { dtype: "f32", m: 64, n: 4096, k: 4096 },
  { dtype: "bf16", m: 2048, n: 2048, k: 2048 },
  { dtype: "bf16", m: 8192, n: 384, k: 128 },
];

/**
 * Minimum number of operations per repetition, about 100 ms. The products are enqueued one after the other, as in a
 * model.
 */
const MIN_GEMM_FLOPS = 2e10;

/** Matrix products, as in linear layers. */
export const gemmCases: readonly BenchmarkCase[] = gemmProblems.map(({ dtype, m, n, k }) => {
  const name = `gemm.${dtype}.m${m}.n${n}.k${k}`;
  return {
    names: [name],
    async run({ repetitions }) {
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      const drawTensor = (shape: mosaic.Shape): mosaic.Tensor => mosaic.randn(ctx, shape, { dtype: dtypes[dtype] });
      using a = drawTensor([m, k]);
      using b = drawTensor([k, n]);
      const flops = 2 * m * n * k;
      const calls = Math.ceil(MIN_GEMM_FLOPS / flops);
      const times = await measureWithPeak(repetitions, dtype, async () => {
        const startTime = now();
        for (let i = 0; i < calls; i++) mosaic.matmul(a, b).dispose();
        await ctx.device.stream.synchronize();
        return (now() - startTime) / calls;
      });
      return [createPeakRow(name, flops, times)];
    },
  };
});

/** Seconds of one repetition, and the machine's peak in GFLOP/s, measured directly before it. */
interface TimeWithPeak {
  readonly seconds: number;
  readonly peakGflops: number;
}

/** Runs `timeOnce` repeatedly after a warm-up run. The machine's peak is measured before each repetition. */
async function measureWithPeak(
  repetitions: number,
  dtype: keyof typeof dtypes,
  timeOnce: () => Promise<number>,
): Promise<readonly TimeWithPeak[]> {
  await timeOnce();
  const times: TimeWithPeak[] = [];
  for (let i = 0; i < repetitions; i++) {
    times.push({ peakGflops: fmaPeak(undefined, dtypes[dtype]), seconds: await timeOnce() });
  }
  return times;
}

/**
 * Compares throughput with the peak of products on vector registers, which for bfloat16 is the peak of dot products
 * where the machine has them. `share` compares the best run with the best peak, because other load only slows either
 * down. `medianShare` is the median over runs, each compared with the peak measured before it.
 */
export function createPeakRow(name: string, flops: number, times: readonly TimeWithPeak[]): ResultRow {
  const gflops = flops / Math.min(...times.map(({ seconds }) => seconds)) / 1e9;
  const peakGflops = Math.max(...times.map((time) => time.peakGflops));
  const peakShare = gflops / peakGflops;
  const medianShare = median(times.map((time) => flops / time.seconds / 1e9 / time.peakGflops));
  return {
    case: name,
    numbers: { gflops, peak: peakGflops, share: peakShare, medianShare },
    text: `${gflops.toFixed(1).padStart(7)} GFLOP/s   ${(peakShare * 100).toFixed(1).padStart(5)} % of the peak (${peakGflops.toFixed(0)} GFLOP/s), median ${(medianShare * 100).toFixed(1)} %`,
  };
}
