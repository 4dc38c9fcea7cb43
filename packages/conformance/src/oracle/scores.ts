import { type AttentionProblem, eachRow } from "./attention.ts";

/** The least distance between the two largest scores of a row, over all rows; Infinity if none sees two keys. */
export function smallestGap(problem: AttentionProblem): number {
  let least = Number.POSITIVE_INFINITY;
  eachRow(problem, ({ scores, seen }) => {
    const [first, second] = scores.slice(0, seen.length).toSorted((a, b) => b - a);
    if (second !== undefined) least = Math.min(least, first! - second);
  });
  return least;
}
