import type { Context } from "@mosaic/core";
import { leastSquares } from "./fit.ts";
import { countOperations } from "./host.ts";
import { countExchangeBytesSent, LocalSteps, recordStep, type StepShape } from "./local-steps.ts";
import {
  computeSpanSeconds,
  type MeasuredRanks,
  median,
  synchronizeAll,
  TileOperands,
  type TileShape,
  timeTile,
} from "./measure.ts";
import type { Profile } from "./profile.ts";
import { simulate } from "./simulate.ts";

/** Steps of a run. A run is long enough to include its share of occasional host work, such as garbage collection. */
const STEPS_PER_RUN = 8;

/** Steps that differ in the time of their kernels, and in the number of their operations. */
const stepSizes: readonly Pick<StepShape, "tokens" | "attentionCalls">[] = [
  { tokens: 512, attentionCalls: 1 },
  { tokens: 512, attentionCalls: 3 },
  { tokens: 1024, attentionCalls: 1 },
];

/**
 * Returns the profile with the time that steps take beyond their parts: kernels that host threads interrupt, ranks that
 * wait for one whose host is late, compilation and garbage collection. All ranks run steps and exchange keys at each
 * attention. The time beyond that of the profile is divided into a share of the kernels (`cores.efficiency`), a part of
 * each step (`stepOverhead`), and of each operation (`enqueue`).
 */
export async function fitStepOverheads(
  measuredRanks: MeasuredRanks,
  profile: Profile,
  commonShape: Pick<StepShape, "dtype" | "numHeads" | "headDim">,
): Promise<Profile> {
  const shapes = stepSizes.map((size): StepShape => ({ ...commonShape, ...size }));
  const stepCosts = shapes.map((shape) => estimateStepCosts(shape, profile));
  const ranksPerCore = Math.max(1, measuredRanks.contexts[0]!.size / profile.cores!.perNode);
  const timings = await timeSteps(measuredRanks, shapes);
  const { efficiency = 1 } = profile.cores!;
  const excessSeconds = stepCosts.map(({ otherSeconds, hostSeconds, waitSeconds }, i) =>
    median(
      timings[i]!.map(
        ({ stepSeconds: step, attendSeconds: attend }) =>
          step - ranksPerCore * ((attend + otherSeconds) / efficiency + hostSeconds) - waitSeconds,
      ),
    ),
  );
  const { factors } = leastSquares(
    stepCosts.map(({ otherSeconds, operations }, i) => {
      const attendSeconds = median(timings[i]!.map((timing) => timing.attendSeconds));
      return [attendSeconds + otherSeconds, GAPS_PER_STEP, operations].map((factor) => ranksPerCore * factor);
    }),
    excessSeconds.map((seconds) => Math.max(0, seconds)),
    timings.map((each) => median(each.map(({ stepSeconds: step }) => step))),
  );
  const [excessRatio, secondsPerStep, secondsPerOperation] = factors as [number, number, number];
  return {
    ...profile,
    enqueue: profile.enqueue + secondsPerOperation,
    stepOverhead: (profile.stepOverhead ?? 0) + secondsPerStep,
    cores: { ...profile.cores!, efficiency: 1 / (1 / efficiency + excessRatio) },
  };
}

/** Gaps between the steps of a run, per step. There is one gap fewer than there are steps. */
const GAPS_PER_STEP = (STEPS_PER_RUN - 1) / STEPS_PER_RUN;

/** Costs of a step other than its attention kernels, in seconds on a rank that has a core to itself. */
interface StepCosts {
  readonly operations: number;
  /** Other kernels and messages. */
  readonly otherSeconds: number;
  readonly hostSeconds: number;
  /** Seconds in which no core works. */
  readonly waitSeconds: number;
}

function estimateStepCosts(shape: StepShape, profile: Profile): StepCosts {
  const stepRecord = recordStep(shape);
  const { enqueue, stepOverhead = 0, cores } = profile;
  const { latency, bandwidth } = profile.links["intra-node"];
  const { attentionCalls } = shape;
  const [simulatedRank] = simulate(stepRecord, { ...profile, cores: undefined }).ranks;
  const kernels = simulatedRank!.events.filter(({ name }) => !name.startsWith("attend"));
  const messageSeconds = (2 * countExchangeBytesSent(shape)) / bandwidth;
  const numExchangeOperations = 2;
  const operations = attentionCalls * (countOperations(stepRecord.ranks[0]!) + numExchangeOperations);
  return {
    operations,
    otherSeconds: attentionCalls * (kernels.reduce((sum, { start, end }) => sum + end - start, 0) + messageSeconds),
    hostSeconds: operations * enqueue + GAPS_PER_STEP * stepOverhead,
    waitSeconds: attentionCalls * (latency + (cores!.wait ?? 0)),
  };
}

/**
 * Seconds of a step on all ranks at once, and of its attention kernels right before, on ranks that have a core to
 * themselves.
 */
interface StepTiming {
  readonly attendSeconds: number;
  readonly stepSeconds: number;
}

async function timeSteps(measuredRanks: MeasuredRanks, shapes: readonly StepShape[]): Promise<readonly StepTiming[][]> {
  const { contexts, repetitions } = measuredRanks;
  const tiles = shapes.map(attentionTiles);
  const operands = contexts.map((ctx) => new TileOperands(ctx, tiles.flat()));
  const steps = contexts.map((ctx) => shapes.map((shape) => new LocalSteps(ctx, shape)));
  const timings = shapes.map((): StepTiming[] => []);
  try {
    // The first round is warm-up.
    for (let round = 0; round <= repetitions; round++) {
      for (const [i, { attentionCalls }] of shapes.entries()) {
        let attendSeconds = 0;
        for (const tile of tiles[i]!) attendSeconds += attentionCalls * (await timeTile(measuredRanks, operands, tile));
        const stepSeconds = (await timeRun(contexts, (ctx) => steps[contexts.indexOf(ctx)]![i]!)) / STEPS_PER_RUN;
        if (round > 0) timings[i]!.push({ attendSeconds, stepSeconds });
      }
    }
    return timings;
  } finally {
    for (const disposable of [...steps.flat(), ...operands]) disposable[Symbol.dispose]();
  }
}

/** Returns the kernels of an attention, forward and backward. */
function attentionTiles({ tokens, numHeads, headDim, dtype }: StepShape): readonly TileShape[] {
  return (["attend", "attendBackward"] as const).map((kind) => ({
    ...{ kind, dtype, numHeads, headDim },
    ...{ rows: tokens, keys: tokens },
  }));
}

async function timeRun(contexts: readonly Context[], getSteps: (ctx: Context) => LocalSteps): Promise<number> {
  for (const { world } of contexts) world.barrier().wait();
  await synchronizeAll(contexts);
  const spans = await Promise.all(contexts.map((ctx) => getSteps(ctx).runTogether(STEPS_PER_RUN)));
  return await computeSpanSeconds(contexts, new Map(contexts.map((ctx, i) => [ctx, spans[i]!])));
}
