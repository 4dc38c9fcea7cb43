import type { Watcher } from "./watched.ts";

/** How many pieces of work there are. */
export interface Pieces {
  readonly forward: number;
  readonly backward: number;
}

/** Backward has five products where forward has two. */
const BACKWARD_COST = 2.5;

/** Turns pieces that are done into the share of all that is. */
export function meter(all: Pieces, progress: (share: number) => void): Watcher {
  const total = all.forward + all.backward * BACKWARD_COST;
  let done = 0;
  return ({ backward }) => {
    done += backward ? BACKWARD_COST : 1;
    progress(Math.min(1, done / total));
  };
}
