import { fileURLToPath } from "node:url";
import * as mosaic from "@mosaic/attention";
import { type BenchmarkCase, median, now, waitUntilIdle } from "./case.ts";
import { type DecodeModelProblem, DecodeRun } from "./decode-model.ts";
import { BaselineProcess } from "./peers.ts";
import { runProcesses } from "./processes.ts";
import { runAlternating } from "./small-calls.ts";

const model = { embedDim: 256, hiddenDim: 688, numLayers: 4, numHeads: 4, dtype: "float32" } as const;

const problems: readonly DecodeModelProblem[] = [
  { ...model, numKvHeads: 4, batch: 1, length: 1024 },
  { ...model, numKvHeads: 4, batch: 8, length: 512 },
  { ...model, numKvHeads: 4, batch: 1, length: 8192 },
  { ...model, numKvHeads: 2, batch: 1, length: 8192 },
  { ...model, numKvHeads: 4, batch: 1, length: 32_768 },
  { ...model, numKvHeads: 2, batch: 8, length: 512, dtype: "bfloat16" },
];

/** Number of steps per turn. */
const STEPS_PER_TURN = 50;
/** Warm-up steps of a process, during which V8 compiles on the cores that the kernels need. */
const WARMUP_STEPS = 400;

function formatName({ embedDim, numLayers, numHeads, numKvHeads, batch, length, dtype }: DecodeModelProblem): string {
  const heads = `h${numHeads}on${numKvHeads}`;
  return `${dtype === "float32" ? "f32" : "bf16"}.d${embedDim}.l${numLayers}.${heads}.b${batch}.n${length}`;
}

/** Decodes a token of each sequence, compared with the same model in PyTorch, eager, with a static cache. */
export const baselineDecodeStepCases: readonly BenchmarkCase[] = problems.map((problem) => {
  const name = `peer-decode-step.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      using baseline = new BaselineProcess(
        [python!, fileURLToPath(new URL("../peers/decode.py", import.meta.url))],
        600,
      );
      await baseline.request({ op: "prepare", problem });
      await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
      using run = new DecodeRun(ctx, problem);
      const step = async (): Promise<void> => {
        run.step();
        await run.synchronize();
      };
      const { ownSeconds, baselineSeconds } = await runAlternating(repetitions, baseline, step, STEPS_PER_TURN);
      const baselineSpeedRatio = median(baselineSeconds.map((seconds, turn) => seconds / ownSeconds[turn]!));
      const [milliseconds, baselineMilliseconds] = [ownSeconds, baselineSeconds].map(
        (seconds) => Math.min(...seconds) * 1e3,
      ) as [number, number];
      return [
        {
          case: name,
          numbers: {
            vsPeer: baselineSpeedRatio,
            bestVsPeer: baselineMilliseconds / milliseconds,
            milliseconds,
            peerMilliseconds: baselineMilliseconds,
          },
          text: `${baselineSpeedRatio.toFixed(2).padStart(6)} × the speed of PyTorch (median), best runs: ${milliseconds.toFixed(2)} and ${baselineMilliseconds.toFixed(2)} ms per step`,
        },
      ];
    },
  };
});

/** Arguments of the ranks. */
export interface DecodeJob {
  readonly problem: DecodeModelProblem;
  readonly steps: number;
}

const ranksProblem: DecodeModelProblem = { ...model, numKvHeads: 4, batch: 1, length: 32_768 };

/** Two ranks of one thread each, which share the cache, compared with one process of two threads. */
export const decodeRanksCases: readonly BenchmarkCase[] = [
  {
    names: [`decode-ranks.${formatName(ranksProblem)}`],
    async run({ repetitions }) {
      const job: DecodeJob = { problem: ranksProblem, steps: 4 * STEPS_PER_TURN };
      const [rankSeconds, threadSeconds]: [number[], number[]] = [[], []];
      for (let i = 0; i < repetitions; i++) {
        const reportedRows = await runProcesses<{ seconds: number }>("decode-rank.js", 2, job);
        rankSeconds.push(Math.max(...reportedRows.map(([row]) => row!.seconds)));
        await waitUntilIdle();
        await using ctx = await mosaic.init({ device: mosaic.cpu({ threads: 2 }), rank: 0, worldSize: 1 });
        threadSeconds.push(await timeSteps(ctx, job));
      }
      const threadSpeedRatio = median(threadSeconds.map((seconds, i) => seconds / rankSeconds[i]!));
      const [milliseconds, threadMilliseconds] = [Math.min(...rankSeconds) * 1e3, Math.min(...threadSeconds) * 1e3];
      const bestThreadSpeedRatio = threadMilliseconds / milliseconds;
      return [
        {
          case: `decode-ranks.${formatName(ranksProblem)}`,
          numbers: {
            vsThreads: threadSpeedRatio,
            bestVsThreads: bestThreadSpeedRatio,
            milliseconds,
            threadMilliseconds,
          },
          text: `${threadSpeedRatio.toFixed(2).padStart(6)} × the speed of one process (median), ${bestThreadSpeedRatio.toFixed(2)} × (best runs): ${milliseconds.toFixed(2)} and ${threadMilliseconds.toFixed(2)} ms per step`,
        },
      ];
    },
  },
];

/** Returns the seconds of the fastest of `steps` steps, after a warm-up. */
export async function timeSteps(ctx: mosaic.Context, { problem, steps }: DecodeJob): Promise<number> {
  using run = new DecodeRun(ctx, problem);
  let minSeconds = Number.POSITIVE_INFINITY;
  for (let i = -WARMUP_STEPS; i < steps; i++) {
    const startTime = now();
    run.step();
    await run.synchronize();
    if (i >= 0) minSeconds = Math.min(minSeconds, now() - startTime);
  }
  return minSeconds;
}
