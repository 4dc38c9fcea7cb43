import type { Runs } from "./wire.ts";

/** The ranks in ascending order, as runs. */
export function toRuns(ranks: Iterable<number>): Runs {
  const runs: [number, number][] = [];
  for (const rank of [...ranks].toSorted((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last !== undefined && last[0] + last[1] === rank) last[1]++;
    else runs.push([rank, 1]);
  }
  return runs;
}

/** Each rank of the runs, in their order. */
export function* ranksOf(runs: Runs): Generator<number> {
  for (const [first, count] of runs) for (let rank = first; rank < first + count; rank++) yield rank;
}

/** How many ranks the runs have. */
export const countRanks = (runs: Runs): number => runs.reduce((sum, [, count]) => sum + count, 0);

/** The ranks of all of the lists, each once, in ascending order. */
export function unionRuns(lists: readonly Runs[]): Runs {
  const union: [number, number][] = [];
  for (const [first, count] of lists.flat().toSorted(([a], [b]) => a - b)) {
    const last = union.at(-1);
    if (last === undefined || last[0] + last[1] < first) union.push([first, count]);
    else last[1] = Math.max(last[1], first + count - last[0]);
  }
  return union;
}

/** The ranks that both have. Both are in ascending order. */
export function intersectRuns(a: Runs, b: Runs): Runs {
  const both: [number, number][] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    const [x, y] = [a[i] as Runs[number], b[j] as Runs[number]];
    const [first, end] = [Math.max(x[0], y[0]), Math.min(x[0] + x[1], y[0] + y[1])];
    if (first < end) both.push([first, end - first]);
    if (x[0] + x[1] === end) i++;
    else j++;
  }
  return both;
}

/** The ranks of `a` that `b` does not have. Both are in ascending order. */
export function subtractRuns(a: Runs, b: Runs): Runs {
  const rest: [number, number][] = [];
  let j = 0;
  for (const [first, count] of a) {
    let from = first;
    while (j < b.length && (b[j] as Runs[number])[0] + (b[j] as Runs[number])[1] <= from) j++;
    for (let k = j; k < b.length && (b[k] as Runs[number])[0] < first + count; k++) {
      const [taken, many] = b[k] as Runs[number];
      if (from < taken) rest.push([from, taken - from]);
      from = Math.max(from, taken + many);
    }
    if (from < first + count) rest.push([from, first + count - from]);
  }
  return rest;
}

/** Whether a rank is among runs in ascending order. */
export function includesRank(runs: Runs, rank: number): boolean {
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const [first, count] = runs[middle] as Runs[number];
    if (rank < first) high = middle;
    else if (rank >= first + count) low = middle + 1;
    else return true;
  }
  return false;
}

/** `rank 2`, `ranks 2, 5-9`: at most 16 runs. */
export function describeRanks(ranks: Iterable<number>): string {
  const runs = toRuns(ranks);
  const parts = runs.slice(0, 16).map(([first, count]) => (count === 1 ? `${first}` : `${first}-${first + count - 1}`));
  const rest = countRanks(runs.slice(16));
  const one = runs.length === 1 && runs[0]?.[1] === 1;
  return `${one ? "rank" : "ranks"} ${parts.join(", ")}${rest > 0 ? ` and ${rest} more` : ""}`;
}
