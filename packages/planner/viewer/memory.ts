import { lowerBound, type Rank } from "./model.ts";

/** The most and the mean of what ranks had allocated, at equal distances of time. */
export function memoryOverTime(
  ranks: readonly Rank[],
  seconds: number,
  points: number,
): Readonly<Record<"time" | "most" | "mean", number[]>> {
  const time = Array.from({ length: points }, (_, i) => (seconds * i) / (points - 1));
  const most = new Array<number>(points).fill(0);
  const mean = new Array<number>(points).fill(0);
  const known = ranks.filter(({ memory }) => memory && memory.time.length > 0);
  for (const { memory } of known) {
    const { time: changes, bytes } = memory!;
    for (const [i, moment] of time.entries()) {
      // The most within a point's stretch, so that no peak falls between two.
      const from = Math.max(0, lowerBound(changes, moment) - 1);
      const to = Math.max(from + 1, lowerBound(changes, i + 1 < points ? time[i + 1]! : Number.POSITIVE_INFINITY));
      const held =
        changes[from]! <= moment || to > from + 1
          ? bytes.subarray(from, to).reduce((max, each) => Math.max(max, each), 0)
          : 0;
      most[i] = Math.max(most[i]!, held);
      mean[i]! += held / known.length;
    }
  }
  return { time, most, mean };
}

/** The most that a rank had allocated. */
export function peakBytes({ memory }: Rank): number {
  return memory?.bytes.reduce((most, each) => Math.max(most, each), 0) ?? 0;
}
