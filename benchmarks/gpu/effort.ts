/** How long to measure. */
export interface Effort {
  /** Turns that all contenders take. */
  readonly rounds: number;
  /** Seconds of runs in one turn, about, and how many runs at most. */
  readonly turn: number;
  readonly runs: number;
  /** Seconds after which a case takes no further round; it takes three at least, or all of `rounds` if they are fewer. */
  readonly limit: number;
}

export const thorough: Effort = { rounds: 7, turn: 0.03, runs: 10, limit: 3 };
export const quick: Effort = { rounds: 3, turn: 0.01, runs: 4, limit: 1 };
/** For tests: the whole path, once. */
export const once: Effort = { rounds: 1, turn: 0, runs: 1, limit: 0 };

/** Runs in a turn of something that takes `seconds`. */
export function runsOf(seconds: number, { turn, runs }: Effort): number {
  return Math.min(runs, Math.max(1, Math.ceil(turn / seconds)));
}
