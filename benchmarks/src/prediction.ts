import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import type { AttentionBackend } from "@mosaic/core";
import { type Profile, record, simulate } from "@mosaic/planner";
import { type BenchmarkCase, median, type ResultRow } from "./case.ts";
import { runProcesses } from "./processes.ts";

export const DTYPE = "float32";
export const HEADS = 4;
export const HEAD_DIM = 64;

export const backends: Readonly<Record<"ring" | "mesh2d", () => AttentionBackend>> = {
  ring: () => ring(),
  mesh2d: () => mesh2d(),
};

/** One step: attention forward and backward, batch 1, no mask. */
export interface StepProblem {
  readonly backend: keyof typeof backends;
  /** Length of the whole sequence. */
  readonly n: number;
}

/** Arguments of the ranks. */
export interface PredictionJob {
  readonly problems: readonly StepProblem[];
  readonly rounds: number;
  /** Number of steps of each problem in a round. */
  readonly steps: number;
}

/** Report of a rank for one round: the calibrated profile, then when the steps of each problem began and ended. */
export interface Round {
  readonly profile: Profile;
  readonly intervals: { begin: number; end: number }[];
}

const lengths = [1024, 2048, 4096, 8192];

/**
 * Compares the planner's prediction with measured time. Ranks of one thread each, as separate processes, calibrate and
 * run steps in turns, so both are measured in the same conditions. No measurement of the steps is used in the
 * prediction.
 */
export const predictionCases: readonly BenchmarkCase[] = [2, 4].flatMap((ranks) =>
  lengths.map((n) => {
    const problems: readonly StepProblem[] = [
      { backend: "ring", n },
      { backend: "mesh2d", n },
    ];
    return {
      names: problems.map((problem) => formatName(ranks, problem)),
      async run({ repetitions }) {
        const job: PredictionJob = { problems, rounds: repetitions, steps: Math.max(3, 16_384 / n) };
        const reportedRounds = await runProcesses<Round>("./prediction-rank.js", ranks, job);
        return problems.map((problem, i) => createRow(ranks, problem, groupByRound(reportedRounds, i, job.steps)));
      },
    };
  }),
);

function formatName(ranks: number, { backend, n }: StepProblem): string {
  return `prediction.${ranks}x1.${backend}.n${n}`;
}

/** A profile, and the seconds of a step measured directly after calibration. */
interface RoundTiming {
  readonly profile: Profile;
  readonly seconds: number;
}

/** Returns each round's profile and step time, from the first rank's begin to the last rank's end. */
function groupByRound(reportedRounds: readonly (readonly Round[])[], problem: number, steps: number): RoundTiming[] {
  return reportedRounds[0]!.map(({ profile }, round) => {
    const intervals = reportedRounds.map((rounds) => rounds[round]!.intervals[problem]!);
    const seconds = Math.max(...intervals.map(({ end }) => end)) - Math.min(...intervals.map(({ begin }) => begin));
    return { profile, seconds: seconds / steps };
  });
}

/** Reports medians over rounds. The conditions of a round affect both its prediction and its measurement. */
function createRow(ranks: number, problem: StepProblem, turns: readonly RoundTiming[]): ResultRow {
  const attentionRecord = record({
    backend: backends[problem.backend](),
    mesh: { sp: ranks },
    tokens: problem.n,
    numHeads: HEADS,
    headDim: HEAD_DIM,
    dtype: DTYPE,
  });
  const predictions = turns.map(({ profile }) => simulate(attentionRecord, profile).seconds);
  const measurements = turns.map(({ seconds }) => seconds);
  const [predictedSeconds, measuredSeconds] = [median(predictions), median(measurements)];
  const predictedToMeasuredRatio = median(predictions.map((seconds, i) => seconds / measurements[i]!));
  const formatMilliseconds = (seconds: number): string => `${(1e3 * seconds).toFixed(1).padStart(8)} ms`;
  return {
    case: formatName(ranks, problem),
    numbers: { predicted: predictedSeconds, measured: measuredSeconds, ratio: predictedToMeasuredRatio },
    text: `${formatMilliseconds(predictedSeconds)} predicted ${formatMilliseconds(measuredSeconds)} measured   ratio ${predictedToMeasuredRatio.toFixed(3)}`,
  };
}
