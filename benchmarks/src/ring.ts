import { type AttentionProblem, countFlops, formatName } from "./attention-problem.ts";
import { type BenchmarkCase, median, type ResultRow } from "./case.ts";
import { runProcesses } from "./processes.ts";

const RANKS = 2;
const HEADS = 4;

/** What a process reports of one turn. */
export interface RingTiming {
  readonly begin: number;
  readonly end: number;
  /** Only where the whole machine is used: GFLOP/s of the probe right before. */
  readonly peakGflops?: number;
}

/** The arguments of the processes. */
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
 * Two ranks of one thread each, as real processes, against one process of two threads: the ring's price. They take
 * turns within one run, so that both see the same machine.
 */
export const ringCases: readonly BenchmarkCase[] = problems.map((shape) => {
  const problem = { ...shape, numHeads: HEADS };
  const name = `ring.${RANKS}x1.${formatName(problem)}`;
  return {
    names: [name],
    async run({ repetitions }) {
      const job: RingJob = { problem, ranks: RANKS, turns: repetitions };
      // One process more than ranks: the last is the one device.
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

/** Seconds of each turn that all ranks take together, from the first that begins to the last that ends. */
export function computeTurnSeconds(ranks: readonly (readonly RingTiming[])[]): readonly number[] {
  return ranks[0]!.map((_, turn) => {
    const rankTimings = ranks.map((rank) => rank[turn]!);
    return Math.max(...rankTimings.map(({ end }) => end)) - Math.min(...rankTimings.map(({ begin }) => begin));
  });
}
