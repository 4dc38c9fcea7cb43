import { median, now } from "../src/case.ts";
import { BaselineUnsupportedError } from "../src/peers.ts";
import {
  type BenchmarkContext,
  type Case,
  type Implementation,
  type Effort,
  type Errors,
  type Result,
  countRuns,
} from "./bench.ts";
import { operationCases } from "./operations.ts";
import {
  countBytes,
  countFlops,
  formatName,
  type Problem,
  createProblem,
  type ProblemVariant,
  type Sizes,
} from "./problem.ts";
import { tolerances } from "./check-results.ts";
import { createRingCases } from "./ring.ts";

/** Length that is not a multiple of any block size. */
const GATE_LENGTH = 200;
const GATE_HEADS = 2;

type GateProblem = Pick<Problem, "dtype" | "mask" | "d">;
const gateName = ({ dtype, mask, d }: GateProblem): string => `gate.${dtype}.${mask}.d${d}`;

/** Compares the results of every contender on random operands with float64. Only contenders that pass are timed. */
export function createGateCase(gateProblem: GateProblem): Case {
  const name = gateName(gateProblem);
  const problem: Problem = { ...gateProblem, direction: "backward", n: GATE_LENGTH, numHeads: GATE_HEADS, batch: 1 };
  return {
    name,
    part: "gate",
    async run(bench): Promise<Result> {
      const errors: Record<string, Errors> = {};
      const unsupportedReasons: Record<string, string> = {};
      for (const contender of await bench.implementations()) {
        try {
          errors[contender.name] = await contender.check(problem);
        } catch (error) {
          if (!(error instanceof BaselineUnsupportedError)) throw error;
          unsupportedReasons[contender.name] = error.message;
        }
      }
      const incorrectContenders = Object.keys(errors).filter(
        (contenderName) => !isCorrect(errors[contenderName]!, gateProblem),
      );
      return { case: name, errors, refused: unsupportedReasons, wrong: incorrectContenders };
    },
  };
}

/** Whether all errors are below the tolerance. NaN is not below it. */
export function isCorrect(errors: Errors, { dtype }: Pick<Problem, "dtype">): boolean {
  return Object.values(errors).every((error) => error < tolerances[dtype]);
}

/** Returns the contenders that passed the gate of a problem. Runs the gate if it has no stored result. */
export async function selectCorrectContenders(
  bench: BenchmarkContext,
  gateProblem: GateProblem,
  storedResults: ReadonlyMap<string, Result>,
): Promise<ReadonlySet<string>> {
  const result = storedResults.get(gateName(gateProblem)) ?? (await createGateCase(gateProblem).run(bench));
  const incorrectContenders = result["wrong"] as readonly string[];
  return new Set(
    Object.keys(result["errors"] as object).filter((contenderName) => !incorrectContenders.includes(contenderName)),
  );
}

/**
 * The longest sequence of the FlashAttention papers comes first, followed by lengths far from it, so that a run that is
 * cut short covers the whole range.
 */
export const lengths: readonly number[] = [16_384, 4096, 65_536, 1024, 8192, 32_768, 2048];
/** float16 uses the same kernels with another instruction, so a few lengths suffice. */
const lengthsForFloat16: readonly number[] = [16_384, 4096];

/** Returns all problems, in the order in which they are measured. */
function createAllVariants(
  allLengths: readonly number[],
  allowedFloat16Lengths: readonly number[],
): readonly ProblemVariant[] {
  const createVariants = (
    dtype: ProblemVariant["dtype"],
    selectedLengths: readonly number[],
  ): readonly ProblemVariant[] =>
    selectedLengths.flatMap((n) =>
      ([128, 64] as const).flatMap((d) =>
        (["full", "causal"] as const).flatMap((mask) =>
          (["forward", "backward"] as const).map((direction) => ({ direction, dtype, mask, d, n })),
        ),
      ),
    );
  const float16Lengths = allLengths.filter((n) => allowedFloat16Lengths.includes(n));
  return [...createVariants("bf16", allLengths), ...createVariants("fp16", float16Lengths)];
}

/** Times all contenders in turns on one problem, except those that did not pass the gate. */
function createAttentionCase(variant: ProblemVariant, storedResults: ReadonlyMap<string, Result>): Case {
  const name = `attention.${formatName(variant)}`;
  return {
    name,
    part: "attention",
    async run(bench: BenchmarkContext): Promise<Result> {
      const problem = createProblem(variant, bench.sizes);
      const correctContenders = await selectCorrectContenders(bench, variant, storedResults);
      const contenders = (await bench.implementations()).filter((implementation) =>
        correctContenders.has(implementation.name),
      );
      const { times, refused } = removeDuplicates(await timeContenders(contenders, problem, bench.effort));
      return { case: name, problem, flops: countFlops(problem), bytes: countBytes(problem), times, refused };
    },
  };
}

/**
 * Drops the times of `hopper` if it has no kernels of its own, so that the portable kernels are not listed under two
 * names.
 */
function removeDuplicates({ times, refused }: Comparison): Comparison {
  const { hopper: hopperTime, ...otherTimes } = times;
  const joinKernelNames = (time: TimingSummary | undefined): string => Object.keys(time?.kernels ?? {}).join();
  if (joinKernelNames(hopperTime) !== joinKernelNames(otherTimes["portable"])) return { times, refused };
  return { times: otherTimes, refused: hopperTime ? { ...refused, hopper: "selected the portable kernels" } : refused };
}

/** Returns all cases, in the order in which they run. A case reads `storedResults` when it runs. */
export function createCases(
  lengths: readonly number[],
  sizes: Sizes,
  storedResults: ReadonlyMap<string, Result>,
): readonly Case[] {
  const variants = createAllVariants(lengths, lengthsForFloat16);
  const variantByGate = new Map(variants.map((variant) => [`${variant.dtype} ${variant.mask} ${variant.d}`, variant]));
  return [
    ...[...variantByGate.values()].map(createGateCase),
    ...operationCases,
    ...variants.map((variant) => createAttentionCase(variant, storedResults)),
    ...createRingCases(sizes),
  ];
}

/** Seconds per run of one contender. */
interface TimingSummary {
  readonly median: number;
  readonly low: number;
  readonly high: number;
  readonly runs: number;
  /** Seconds of each kernel, by name. */
  readonly kernels?: Readonly<Record<string, number>>;
}

/** Times by contender. `refused` has the contenders that do not support the problem, with the reason. */
export interface Comparison {
  readonly times: Readonly<Record<string, TimingSummary>>;
  readonly refused: Readonly<Record<string, string>>;
}

interface TimedContender {
  readonly implementation: Implementation;
  readonly runs: number;
  readonly seconds: number[];
  readonly kernels: Readonly<Record<string, number>>[];
}

/**
 * Times all contenders in turns on one problem, so that clock, temperature and other users of the GPU affect all of
 * them alike.
 */
export async function timeContenders(
  implementations: readonly Implementation[],
  problem: Problem,
  effort: Effort,
): Promise<Comparison> {
  const timedContenders: TimedContender[] = [];
  const refusalReasons: Record<string, string> = {};
  try {
    for (const implementation of implementations) {
      try {
        const seconds = await implementation.prepare(problem);
        timedContenders.push({ implementation, runs: countRuns(seconds, effort), seconds: [], kernels: [] });
      } catch (error) {
        if (!(error instanceof BaselineUnsupportedError)) throw error;
        refusalReasons[implementation.name] = error.message;
      }
    }
    const startSeconds = now();
    for (let round = 0; round < effort.rounds; round++) {
      if (round >= 3 && now() - startSeconds > effort.limitSeconds) break;
      for (const timedContender of timedContenders) await runSample(timedContender);
    }
  } finally {
    for (const contender of implementations) await contender.release();
  }
  return {
    times: Object.fromEntries(
      timedContenders.map((timedContender) => [timedContender.implementation.name, summarizeTimes(timedContender)]),
    ),
    refused: refusalReasons,
  };
}

async function runSample(timedContender: TimedContender): Promise<void> {
  const { seconds, secondsByKernel } = await timedContender.implementation.sample(timedContender.runs);
  timedContender.seconds.push(...seconds);
  if (secondsByKernel !== undefined) timedContender.kernels.push(secondsByKernel);
}

function summarizeTimes({ seconds, kernels }: TimedContender): TimingSummary {
  const kernelNames = Object.keys(kernels[0] ?? {});
  return {
    median: median(seconds),
    low: Math.min(...seconds),
    high: Math.max(...seconds),
    runs: seconds.length,
    ...(kernelNames.length > 0 && {
      kernels: Object.fromEntries(
        kernelNames.map((name) => [name, median(kernels.map((sampleKernels) => sampleKernels[name]!))]),
      ),
    }),
  };
}
