import type { BaselineProcess } from "../src/peers.ts";
import type { Problem, Sizes } from "./problem.ts";

/** How long to measure. */
export interface Effort {
  /** Turns that all contenders take. */
  readonly rounds: number;
  /** Seconds of runs in one turn, about, and how many runs at most. */
  readonly secondsPerRound: number;
  readonly maxRuns: number;
  /** Seconds after which a case takes no further round; it takes three at least, or all of `rounds` if they are fewer. */
  readonly limitSeconds: number;
}

export const fullEffort: Effort = { rounds: 7, secondsPerRound: 0.03, maxRuns: 10, limitSeconds: 3 };
export const quickEffort: Effort = { rounds: 3, secondsPerRound: 0.01, maxRuns: 4, limitSeconds: 1 };
/** For tests: the whole path, once. */
export const singleRunEffort: Effort = { rounds: 1, secondsPerRound: 0, maxRuns: 1, limitSeconds: 0 };

/** Runs in a turn of something that takes `seconds`. */
export function countRuns(seconds: number, { secondsPerRound, maxRuns }: Effort): number {
  return Math.min(maxRuns, Math.max(1, Math.ceil(secondsPerRound / seconds)));
}

/** The parts, in the order in which they run, and the seconds that each may take of eight minutes. */
export const secondsPerPart = { gate: 45, operation: 20, attention: 300, ring: 110 } as const;
export type PartName = keyof typeof secondsPerPart;
/** Seconds after which a case is taken for one that never ends; the first one also starts PyTorch. */
export const CASE_TIMEOUT_SECONDS = 75;

/** One result, as it is kept: a JSON line. */
export interface Result {
  readonly case: string;
  readonly [key: string]: unknown;
}

/** What cases run with; made when the first one needs it. */
export interface BenchmarkContext {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  /** Ours first, one for each family of kernels; then PyTorch's. */
  implementations(): Promise<readonly Implementation[]>;
  /** Undefined where the benchmark runs without it. */
  baseline(): BaselineProcess | undefined;
  /** Gives all memory of the card back: other processes shall have it. */
  close(): Promise<void>;
}

/** Something to measure. */
export interface Case {
  readonly name: string;
  readonly part: PartName;
  run(bench: BenchmarkContext): Promise<Result>;
}

/** ‖x − ref‖ / ‖ref‖ of each result, against float64. */
export type Errors = Readonly<Record<"out" | "dq" | "dk" | "dv", number>>;

/** Runs of one problem, one after the other. */
export interface Sample {
  readonly seconds: readonly number[];
  /** Seconds of each kernel in one run, on the mean, if they are known. */
  readonly secondsByKernel?: Readonly<Record<string, number>>;
}

/** An implementation of attention. What it does not support it refuses with a PeerUnsupportedError. */
export interface Implementation {
  readonly name: string;
  /** Errors on a small problem, drawn by itself. */
  check(problem: Problem): Promise<Errors>;
  /** Draws operands, warms up, and returns seconds of a run. */
  prepare(problem: Problem): Promise<number>;
  /** `count` runs, after one that does not count. */
  sample(count: number): Promise<Sample>;
  /** Gives the operands' memory back. */
  release(): Promise<void>;
}
