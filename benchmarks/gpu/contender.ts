import type { Problem } from "./problem.ts";

/** ‖x − ref‖ / ‖ref‖ of each result, against float64. */
export type Errors = Readonly<Record<"out" | "dq" | "dk" | "dv", number>>;

/** Runs of one problem, one after the other. */
export interface Sample {
  readonly seconds: readonly number[];
  /** Seconds of each kernel in one run, on the mean, if they can be told. */
  readonly kernels?: Readonly<Record<string, number>>;
}

/** Somebody's attention. What it cannot do it refuses with a PeerRefusal. */
export interface Contender {
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
