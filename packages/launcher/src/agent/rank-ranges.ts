import type { RankRanges } from "./wire.ts";

/** Converts ranks to ranges in ascending order. */
export function toRankRanges(ranks: Iterable<number>): RankRanges {
  const ranges: [number, number][] = [];
  for (const rank of [...ranks].toSorted((a, b) => a - b)) {
    const lastRange = ranges.at(-1);
    if (lastRange !== undefined && lastRange[0] + lastRange[1] === rank) lastRange[1]++;
    else ranges.push([rank, 1]);
  }
  return ranges;
}

/** Yields each rank of the ranges, in their order. */
export function* expandRankRanges(ranges: RankRanges): Generator<number> {
  for (const [first, count] of ranges) for (let rank = first; rank < first + count; rank++) yield rank;
}

/** Returns the number of ranks in the ranges. */
export const countRanks = (ranges: RankRanges): number => ranges.reduce((sum, [, count]) => sum + count, 0);

/** Returns the ranks of all lists, each once, in ascending order. */
export function unionRankRanges(lists: readonly RankRanges[]): RankRanges {
  const union: [number, number][] = [];
  for (const [first, count] of lists.flat().toSorted(([a], [b]) => a - b)) {
    const lastRange = union.at(-1);
    if (lastRange === undefined || lastRange[0] + lastRange[1] < first) union.push([first, count]);
    else lastRange[1] = Math.max(lastRange[1], first + count - lastRange[0]);
  }
  return union;
}

/** Returns the ranks in both lists. Both are in ascending order. */
export function intersectRankRanges(a: RankRanges, b: RankRanges): RankRanges {
  const intersection: [number, number][] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    const [x, y] = [a[i] as RankRanges[number], b[j] as RankRanges[number]];
    const [first, end] = [Math.max(x[0], y[0]), Math.min(x[0] + x[1], y[0] + y[1])];
    if (first < end) intersection.push([first, end - first]);
    if (x[0] + x[1] === end) i++;
    else j++;
  }
  return intersection;
}

/** Returns the ranks of `a` that are not in `b`. Both are in ascending order. */
export function subtractRankRanges(a: RankRanges, b: RankRanges): RankRanges {
  const difference: [number, number][] = [];
  let j = 0;
  for (const [first, count] of a) {
    let remainingFirst = first;
    while (j < b.length && (b[j] as RankRanges[number])[0] + (b[j] as RankRanges[number])[1] <= remainingFirst) j++;
    for (let k = j; k < b.length && (b[k] as RankRanges[number])[0] < first + count; k++) {
      const [removedFirst, removedCount] = b[k] as RankRanges[number];
      if (remainingFirst < removedFirst) difference.push([remainingFirst, removedFirst - remainingFirst]);
      remainingFirst = Math.max(remainingFirst, removedFirst + removedCount);
    }
    if (remainingFirst < first + count) difference.push([remainingFirst, first + count - remainingFirst]);
  }
  return difference;
}

/** Returns whether a rank is in the ranges, which are in ascending order. */
export function includesRank(ranges: RankRanges, rank: number): boolean {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const [first, count] = ranges[middle] as RankRanges[number];
    if (rank < first) high = middle;
    else if (rank >= first + count) low = middle + 1;
    else return true;
  }
  return false;
}

/** Formats ranks for messages, such as `rank 2` or `ranks 2, 5-9`, with at most 16 ranges. */
export function formatRankRanges(ranks: Iterable<number>): string {
  const ranges = toRankRanges(ranks);
  const rangeTexts = ranges
    .slice(0, 16)
    .map(([first, count]) => (count === 1 ? `${first}` : `${first}-${first + count - 1}`));
  const omittedCount = countRanks(ranges.slice(16));
  const isSingleRank = ranges.length === 1 && ranges[0]?.[1] === 1;
  return `${isSingleRank ? "rank" : "ranks"} ${rangeTexts.join(", ")}${omittedCount > 0 ? ` and ${omittedCount} more` : ""}`;
}
