import { dispatch, flex } from "@mosaic/backend-flex";
import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, type Mask, masks, type Placement, zigzag } from "@mosaic/core";
import { type Profile, record, simulate } from "@mosaic/planner";
import { dispatchCost, stageCost } from "@mosaic/strategies/plan";
import { type BenchmarkCase, median } from "./case.ts";
import { runProcesses } from "./processes.ts";

export const TOKENS = 16_384;
export const HEADS = 4;
export const HEAD_DIM = 64;
/** Parameters of the log-normal distribution of document lengths in tokens, which are those of MagiAttention. */
const LOG_MEAN = 7.2;
const LOG_STD = 1.6;
const BATCHES = 10;

/** A serializable mask: its kind, and the lengths of documents. */
export interface MaskSpec {
  readonly kind: "documents" | "window" | "blockCausal";
  readonly lengths: readonly number[];
}

/** A strategy for the same attention. */
export type FlexVariant = "ring" | "flex" | "flexDispatched";

/** Arguments of the ranks. */
export interface FlexJob {
  readonly spec: MaskSpec;
  readonly variants: readonly FlexVariant[];
  readonly rounds: number;
  /** Whether each rank is pinned to its own core and measures the profile for a prediction in each round. */
  readonly isPredicted: boolean;
}

/**
 * Report of a rank for one round: a profile, if measured, and for each variant when its steps, forward and backward,
 * began and ended.
 */
export interface FlexRound {
  readonly profile: Profile | null;
  readonly intervals: readonly { begin: number; end: number }[];
}

export function createMask({ kind, lengths }: MaskSpec): Mask {
  if (kind === "documents") return masks.documents(lengths, "causal");
  return kind === "window" ? masks.slidingWindow(1024) : masks.blockCausal(512);
}

export function createStrategy(
  variant: FlexVariant,
  mask: Mask,
  ranks: number,
): { readonly backend: AttentionBackend; readonly placement: Placement } {
  if (variant === "ring") return { backend: ring(), placement: zigzag() };
  const problem = { profile: "cpu-local", ranks, numHeads: HEADS, headDim: HEAD_DIM, dtype: "float32" } as const;
  const backend = flex({ cost: stageCost(problem) });
  if (variant === "flex") return { backend, placement: zigzag() };
  const cost = dispatchCost(problem);
  return { backend, placement: dispatch({ mask, length: TOKENS, ranks, chunkSize: 128, cost }) };
}

/**
 * Compares flex with the ring on the same mask, in turns in one run. The ranks are four on all cores, or two with a
 * core each. The latter run ten random batches of documents, for which the planner's prediction is also reported.
 * Ratios are the ring's time divided by flex's.
 */
export const flexCases: readonly BenchmarkCase[] = [
  createRingComparisonCase(4, { kind: "documents", lengths: drawLengths(1) }),
  createRingComparisonCase(4, { kind: "window", lengths: [] }),
  createRingComparisonCase(4, { kind: "blockCausal", lengths: [] }),
  ...Array.from({ length: BATCHES }, (_, batch) => createPackedBatchCase(2, batch)),
];

function createRingComparisonCase(ranks: number, spec: MaskSpec): BenchmarkCase {
  const name = `flex.${ranks}x1.${spec.kind}`;
  const variants = ["ring", "flex", "flexDispatched"] as const;
  return {
    names: [name],
    async run({ repetitions }) {
      const reportedRounds = await runFlexJob(ranks, { spec, variants, rounds: repetitions, isPredicted: false });
      const [samePlacementSpeedup, dispatchedSpeedup] = [1, 2].map((variant) =>
        computeMeasuredSpeedup(reportedRounds, variant),
      );
      return [
        {
          case: name,
          numbers: { vsRing: samePlacementSpeedup!, dispatchedVsRing: dispatchedSpeedup! },
          text: `${samePlacementSpeedup!.toFixed(3).padStart(7)} × ring with the placement of ring; ${dispatchedSpeedup!.toFixed(3)} × ring with the placement of flex`,
        },
      ];
    },
  };
}

function createPackedBatchCase(ranks: number, batch: number): BenchmarkCase {
  const spec: MaskSpec = { kind: "documents", lengths: drawLengths(batch) };
  const name = `flex.${ranks}x1.batch${batch}`;
  const variants = ["ring", "flexDispatched"] as const;
  return {
    names: [name],
    async run({ repetitions }) {
      const reportedRounds = await runFlexJob(ranks, { spec, variants, rounds: repetitions, isPredicted: true });
      const measuredSpeedup = computeMeasuredSpeedup(reportedRounds, 1);
      const predictedSpeedup = median(reportedRounds[0]!.map(({ profile }) => predictSpeedup(spec, ranks, profile!)));
      const [maxLength, numDocuments] = [Math.max(...spec.lengths), spec.lengths.length];
      return [
        {
          case: name,
          numbers: {
            measured: measuredSpeedup,
            predicted: predictedSpeedup,
            ratio: measuredSpeedup / predictedSpeedup,
            documents: numDocuments,
            longest: maxLength,
          },
          text: `${measuredSpeedup.toFixed(3).padStart(7)} × ring measured, ${predictedSpeedup.toFixed(3)} × predicted, ratio ${(measuredSpeedup / predictedSpeedup).toFixed(3)}; ${numDocuments} documents, the longest of ${maxLength} tokens`,
        },
      ];
    },
  };
}

type ReportedRounds = readonly (readonly FlexRound[])[];

function runFlexJob(ranks: number, job: FlexJob): Promise<ReportedRounds> {
  return runProcesses<FlexRound>("./flex-rank.js", ranks, job);
}

/**
 * Returns the time of the first variant divided by that of another, median over rounds. Times are from the first rank's
 * begin to the last rank's end.
 */
function computeMeasuredSpeedup(reportedRounds: ReportedRounds, variant: number): number {
  const stepSeconds = (round: number, variantIndex: number): number => {
    const intervals = reportedRounds.map((rounds) => rounds[round]!.intervals[variantIndex]!);
    return Math.max(...intervals.map(({ end }) => end)) - Math.min(...intervals.map(({ begin }) => begin));
  };
  return median(reportedRounds[0]!.map((_, round) => stepSeconds(round, 0) / stepSeconds(round, variant)));
}

function predictSpeedup(spec: MaskSpec, ranks: number, profile: Profile): number {
  const mask = createMask(spec);
  const sizes = { mesh: { sp: ranks }, tokens: TOKENS, numHeads: HEADS, headDim: HEAD_DIM, dtype: "float32" } as const;
  const [ringSeconds, flexSeconds] = (["ring", "flexDispatched"] as const).map(
    (variant) => simulate(record({ ...sizes, ...createStrategy(variant, mask, ranks), mask }), profile).seconds,
  );
  return ringSeconds! / flexSeconds!;
}

/** Draws documents with log-normal lengths until the sequence is full. The result depends only on the seed. */
function drawLengths(seed: number): number[] {
  let state = seed * 2_654_435_761 + 1;
  const uniform = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state + 0.5) / 2 ** 32;
  };
  const lengths: number[] = [];
  for (let remaining = TOKENS; remaining > 0; remaining -= lengths.at(-1)!) {
    const normal = Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    lengths.push(Math.min(remaining, Math.max(1, Math.round(Math.exp(LOG_MEAN + LOG_STD * normal)))));
  }
  return lengths;
}
