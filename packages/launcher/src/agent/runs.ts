import type { Runs } from "./wire.ts";

/** The ranks in ascending order, as runs. */
export function runsOf(ranks: Iterable<number>): Runs {
  const runs: [number, number][] = [];
  for (const rank of [...ranks].toSorted((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last !== undefined && last[0] + last[1] === rank) last[1]++;
    else runs.push([rank, 1]);
  }
  return runs;
}

/** Each rank of the runs, in their order. */
export function* ranksOf(runs: Iterable<readonly [first: number, count: number]>): Generator<number> {
  for (const [first, count] of runs) for (let rank = first; rank < first + count; rank++) yield rank;
}

/** How many ranks the runs have. */
export const countOf = (runs: Runs): number => runs.reduce((sum, [, count]) => sum + count, 0);

/** `rank 2`, `ranks 2, 5-9`: at most 16 runs. */
export function describeRanks(ranks: Iterable<number>): string {
  const runs = runsOf(ranks);
  const parts = runs.slice(0, 16).map(([first, count]) => (count === 1 ? `${first}` : `${first}-${first + count - 1}`));
  const rest = countOf(runs.slice(16));
  const one = runs.length === 1 && runs[0]?.[1] === 1;
  return `${one ? "rank" : "ranks"} ${parts.join(", ")}${rest > 0 ? ` and ${rest} more` : ""}`;
}
