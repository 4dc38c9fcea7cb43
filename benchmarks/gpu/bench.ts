import type { Contender } from "./contender.ts";
import type { Effort } from "./effort.ts";
import type { Peer } from "../src/peer.ts";
import type { Sizes } from "./problem.ts";

/** The parts, in the order in which they run, and the seconds that each may take of eight minutes. */
export const budgets = { gate: 45, ceiling: 20, attention: 300, ring: 110 } as const;
export type PartName = keyof typeof budgets;
/** Seconds after which a case is taken for one that never ends; the first one also starts PyTorch. */
export const CASE_LIMIT = 75;

/** One result, as it is kept: a JSON line. */
export interface Result {
  readonly case: string;
  readonly [key: string]: unknown;
}

/** What cases run with; made when the first one needs it. */
export interface Bench {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  /** Ours first, one for each family of kernels; then PyTorch's. */
  contenders(): Promise<readonly Contender[]>;
  /** Undefined where the benchmark runs without it. */
  peer(): Peer | undefined;
  /** Gives all memory of the card back: other processes shall have it. */
  close(): Promise<void>;
}

/** Something to measure. */
export interface Case {
  readonly name: string;
  readonly part: PartName;
  run(bench: Bench): Promise<Result>;
}
