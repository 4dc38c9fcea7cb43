import { type AttentionProblem, countFlops, formatName } from "./attention-problem.ts";
import { type BenchmarkCase, median, type ResultRow } from "./case.ts";
import { runProcesses } from "./processes.ts";

const RANKS = 2;
const HEADS = 4;

/** Report of a process for one turn. */
export interface RingTiming {
  readonly begin: number;
  readonly end: number;
  /** Peak in GFLOP/s measured directly before. Only from the process that uses the whole machine. */
  readonly peakGflops?: number;
}

/** Arguments of the processes. */
export interface RingJob {
  readonly problem: AttentionProblem;
  readonly ranks: number;
  readonly turns: number;
}

const problems: readonly Omit<AttentionProblem, "numHeads">[] = [
  { direction: "forward", dtype: "f32", mask: "full", d: 64, n: 16_384 },
  { direction: "backward", dtype: "f32", mask: "full", d: 64, n: 16_384 },
  { direction: "forward", dtype: "f32", mask: "causal", d: 64, n: 16_384 },
  { direction: "backward", dtype: "f32", mask: "causal", d: 64, n: 16_384 },
  { direction: "forward", dtype: "bf16", mask: "full", d: 64, n: 16_384 },
];

/**
 * Compares two ranks of one thread each, as separate processes, with one process of two threads, which shows the cost
 * of the ring. They run in turns, so that both are measured in the same conditions.
 */
export const ringCases: readonly BenchmarkCase[] = problems.map((shape) => {
  const problem = { ...shape, numHeads: HEADS };
  const name = `ring.${RANKS}x1.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions }) {
      const job: RingJob = { problem, ranks: RANKS, turns: repetitions };
      // There is one process more than ranks. The last one is the single device.
      const reportedTimings = await runProcesses<RingTiming>("./ring-rank.js", RANKS + 1, job);
      return [createRow(name, countFlops(problem), reportedTimings)];
    },
  };
});

function createRow(name: string, flops: number, reportedTimings: readonly (readonly RingTiming[])[]): ResultRow {
  const singleSeconds = reportedTimings.at(-1)!.map(({ begin, end }) => end - begin);
  const ringSeconds = computeTurnSeconds(reportedTimings.slice(0, -1));
  const localSpeedRatio = median(singleSeconds.map((seconds, turn) => seconds / ringSeconds[turn]!));
  const bestLocalSpeedRatio = Math.min(...singleSeconds) / Math.min(...ringSeconds);
  const seconds = Math.min(...ringSeconds);
  const localSeconds = Math.min(...singleSeconds);
  const peakShare =
    flops / seconds / 1e9 / Math.max(...reportedTimings.at(-1)!.map(({ peakGflops: peak }) => peak ?? 0));
  return {
    case: name,
    numbers: { vsLocal: localSpeedRatio, bestVsLocal: bestLocalSpeedRatio, seconds, localSeconds, share: peakShare },
    text: `${localSpeedRatio.toFixed(3).padStart(7)} × the speed of one process; fastest runs: ${bestLocalSpeedRatio.toFixed(3)} ×, ring ${seconds.toFixed(2)} s, one process ${localSeconds.toFixed(2)} s; ${(peakShare * 100).toFixed(1)} % of the FMA peak`,
  };
}

/** Returns the seconds of each turn, from the begin of the first rank to the end of the last. */
export function computeTurnSeconds(ranks: readonly (readonly RingTiming[])[]): readonly number[] {
  return ranks[0]!.map((_, turn) => {
    const rankTimings = ranks.map((rank) => rank[turn]!);
    return Math.max(...rankTimings.map(({ end }) => end)) - Math.min(...rankTimings.map(({ begin }) => begin));
  });
}
