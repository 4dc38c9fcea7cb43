import type { BaselineProcess } from "../src/peers.ts";
import type { Problem, Sizes } from "./problem.ts";

/** How long to measure. */
export interface Effort {
  /** Number of rounds. Each contender has one turn per round. */
  readonly rounds: number;
  /** Approximate seconds of runs in one turn. `maxRuns` is the maximum number of runs. */
  readonly secondsPerRound: number;
  readonly maxRuns: number;
  /**
   * Seconds after which a case starts no further round. At least three rounds are run, or all of `rounds` if they are
   * fewer.
   */
  readonly limitSeconds: number;
}

export const fullEffort: Effort = { rounds: 7, secondsPerRound: 0.03, maxRuns: 10, limitSeconds: 3 };
export const quickEffort: Effort = { rounds: 3, secondsPerRound: 0.01, maxRuns: 4, limitSeconds: 1 };
/** For tests: one run of each contender. */
export const singleRunEffort: Effort = { rounds: 1, secondsPerRound: 0, maxRuns: 1, limitSeconds: 0 };

/** Returns the number of runs in one turn, if a run takes `seconds`. */
export function countRuns(seconds: number, { secondsPerRound, maxRuns }: Effort): number {
  return Math.min(maxRuns, Math.max(1, Math.ceil(secondsPerRound / seconds)));
}

/** The parts, in the order in which they run, and the time budget of each in seconds, about eight minutes in total. */
export const secondsPerPart = { gate: 45, operation: 20, attention: 300, ring: 110 } as const;
export type PartName = keyof typeof secondsPerPart;
/** Seconds after which a case is assumed to hang. The first case also starts PyTorch. */
export const CASE_TIMEOUT_SECONDS = 75;

/** One result, stored as a JSON line. */
export interface Result {
  readonly case: string;
  readonly [key: string]: unknown;
}

/** Environment of the cases. Devices and processes are started when a case first needs them. */
export interface BenchmarkContext {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  /** Mosaic's implementations, one for each family of kernels, followed by PyTorch's. */
  implementations(): Promise<readonly Implementation[]>;
  /** The PyTorch process, or undefined if the benchmark runs without it. */
  baseline(): BaselineProcess | undefined;
  /** Frees all memory of the GPU, so that other processes can use it. */
  close(): Promise<void>;
}

/** One case of the benchmark. */
export interface Case {
  readonly name: string;
  readonly part: PartName;
  run(bench: BenchmarkContext): Promise<Result>;
}

/** Relative error ‖x − ref‖ / ‖ref‖ of each result, against float64. */
export type Errors = Readonly<Record<"out" | "dq" | "dk" | "dv", number>>;

/** Times of consecutive runs of one problem. */
export interface Sample {
  readonly seconds: readonly number[];
  /** Mean seconds of each kernel in one run, if measured. */
  readonly secondsByKernel?: Readonly<Record<string, number>>;
}

/** An implementation of attention. It throws a BaselineUnsupportedError for a problem that it does not support. */
export interface Implementation {
  readonly name: string;
  /** Returns the errors on a small problem, with operands that it draws itself. */
  check(problem: Problem): Promise<Errors>;
  /** Draws operands, warms up, and returns the seconds of one run. */
  prepare(problem: Problem): Promise<number>;
  /** Times `count` runs, after one run that is not counted. */
  sample(count: number): Promise<Sample>;
  /** Frees the memory of the operands. */
  release(): Promise<void>;
}
