import { type AttentionProblem, countFlops, formatName } from "../src/attention-problem.ts";
import { median } from "../src/case.ts";
import { runProcesses } from "../src/processes.ts";
import type { BenchmarkContext, Case, Result } from "./bench.ts";
import type { Sizes } from "./problem.ts";

/**
 * Modes of a turn. ring: ring attention on all ranks. apart: all ranks, each with its share of the heads and without
 * communication. alone: one process.
 */
export const runModes = ["ring", "apart", "alone"] as const;
export type RunMode = (typeof runModes)[number];

/**
 * Report of a process for one turn, in seconds of the host's clock. A process reports only turns in which it takes
 * part.
 */
export interface RingTiming {
  readonly runMode: RunMode;
  readonly begin: number;
  readonly end: number;
}

/** Arguments of the processes. */
export interface RingJob {
  readonly problem: AttentionProblem;
  readonly ranks: number;
  readonly turns: number;
  readonly device: "cuda" | "cpu";
}

/** Maximum head size. Heads are smaller if four ranks would otherwise not have one head each. */
const MAX_HEAD_DIM = 128;

/**
 * Compares one sequence of all tokens on ranks that share one GPU with one process that has the GPU to itself. The work
 * of the GPU is the same, so the ratio is the cost of sharding. "apart" shows how much of that is the cost of sharing
 * the GPU without a ring.
 */
export function createRingCases({ hidden, tokens }: Sizes): readonly Case[] {
  const d = Math.min(MAX_HEAD_DIM, hidden / 4);
  return ([2, 4] as const).flatMap((ranks) =>
    (["full", "causal"] as const).flatMap((mask) =>
      (["forward", "backward"] as const).map((direction) => {
        const problem = { direction, dtype: "bf16", mask, d, n: tokens, numHeads: hidden / d } as const;
        return createRingCase(ranks, problem);
      }),
    ),
  );
}

function createRingCase(ranks: number, problem: AttentionProblem): Case {
  const name = `ring.${ranks}.${formatName(problem)}`;
  return {
    name,
    part: "ring",
    async run(bench: BenchmarkContext): Promise<Result> {
      await bench.close();
      const job: RingJob = { problem, ranks, turns: Math.min(3, bench.effort.rounds), device: bench.device };
      const timings = await runProcesses<RingTiming>("./gpu-ring-rank.js", ranks, job);
      const secondsByMode = Object.fromEntries(
        runModes.map((runMode) => [runMode, median(turnSeconds(timings, runMode))]),
      );
      const {
        ring: ringSeconds,
        apart: independentSeconds,
        alone: singleSeconds,
      } = secondsByMode as Record<RunMode, number>;
      return {
        case: name,
        problem,
        ranks,
        flops: countFlops(problem),
        seconds: secondsByMode,
        vsOne: singleSeconds / ringSeconds,
        vsApart: independentSeconds / ringSeconds,
      };
    },
  };
}

/** Returns the seconds of each turn, from the begin of the first process to the end of the last. */
function turnSeconds(timings: readonly (readonly RingTiming[])[], runMode: RunMode): number[] {
  const turnsByRank = timings
    .map((rankTurns) => rankTurns.filter((timing) => timing.runMode === runMode))
    .filter(({ length }) => length > 0);
  return turnsByRank[0]!.map((_, turn) => {
    const rankTimings = turnsByRank.map((turns) => turns[turn]!);
    return Math.max(...rankTimings.map(({ end }) => end)) - Math.min(...rankTimings.map(({ begin }) => begin));
  });
}
