import { type AttentionProblem, countFlops, formatName } from "./attention-problem.ts";
import type { BenchmarkCase } from "./case.ts";
import { createBaselineRow } from "./peers.ts";
import { runProcesses } from "./processes.ts";
import { type RingJob, computeTurnSeconds, type RingTiming } from "./ring.ts";

const RANKS = 2;
const HEADS = 4;

/** Arguments of the processes. */
export interface BaselineRingJob extends RingJob {
  readonly python: string;
}

const problems: readonly Omit<AttentionProblem, "numHeads">[] = [
  { direction: "forward", dtype: "f32", mask: "full", d: 64, n: 8192 },
  { direction: "backward", dtype: "f32", mask: "full", d: 64, n: 8192 },
  { direction: "forward", dtype: "f32", mask: "causal", d: 64, n: 8192 },
  { direction: "backward", dtype: "f32", mask: "causal", d: 64, n: 8192 },
  { direction: "forward", dtype: "bf16", mask: "full", d: 64, n: 8192 },
  { direction: "forward", dtype: "f32", mask: "full", d: 64, n: 2048 },
  { direction: "backward", dtype: "f32", mask: "full", d: 64, n: 2048 },
];

/**
 * Compares two ranks of one thread each, as separate processes, with a ring in plain PyTorch: its kernels, and gloo
 * between the processes (`peers/ring.py`). They run in turns.
 */
export const baselineRingCases: readonly BenchmarkCase[] = problems.map((shape) => {
  const problem = { ...shape, numHeads: HEADS };
  const name = `peer-ring.${RANKS}x1.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions, python }) {
      const job: BaselineRingJob = { problem, ranks: RANKS, turns: repetitions, python: python! };
      // There is one process more than ranks. The last one drives PyTorch's ring.
      const reportedTimings = await runProcesses<RingTiming>("./peers-ring-rank.js", RANKS + 1, job);
      const baselineSeconds = reportedTimings.at(-1)!.map(({ begin, end }) => end - begin);
      const ownSeconds = computeTurnSeconds(reportedTimings.slice(0, -1));
      return [createBaselineRow(name, countFlops(problem), { ownSeconds, baselineSeconds })];
    },
  };
});
