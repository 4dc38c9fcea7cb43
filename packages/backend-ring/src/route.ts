import type { Need } from "./need.ts";

// At step t rank r works on the keys of source r − t. So the ranks that work on the chunk of s do so one after the other,
// s + 1 first: a chunk that travels to the right reaches each of them in time. Ranks that do not need it are left out:
// it goes in runs of neighbours that do, and the first of each run gets it from its source, which always has it.

/** The remainder that is never negative: ranks in a circle. */
export function around(rank: number, size: number): number {
  return ((rank % size) + size) % size;
}

export function ranksOf(size: number): number[] {
  return Array.from({ length: size }, (_, rank) => rank);
}

/** Who gives `rank` the keys it works on at `step`: its left neighbour if that had them, else their source; or nobody. */
export function supplier(need: Need, rank: number, step: number): number | undefined {
  const source = around(rank - step, need.size);
  const left = around(rank - 1, need.size);
  if (step === 0 || !need.fetches(rank, source)) return undefined;
  return left === source || need.fetches(left, source) ? left : source;
}

/** Who takes the gradient sums that `rank` has after `step`: its right neighbour if that adds to them next, else their home. */
export function taker(need: Need, rank: number, step: number): number | undefined {
  const home = around(rank - step, need.size);
  const right = around(rank + 1, need.size);
  if (step === 0 || !need.fetches(rank, home)) return undefined;
  return right === home || need.fetches(right, home) ? right : home;
}
