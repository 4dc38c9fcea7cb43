import { lowerBound, type Rank } from "./model.ts";

/** The most and the mean of what ranks had allocated, at equal distances of time. */
export function memoryOverTime(
  ranks: readonly Rank[],
  seconds: number,
  points: number,
): Readonly<Record<"time" | "most" | "mean", number[]>> {
  const time = Array.from({ length: points }, (_, i) => (seconds * i) / (points - 1));
  const maxima = new Array<number>(points).fill(0);
  const mean = new Array<number>(points).fill(0);
  const tracedRanks = ranks.filter(({ memory }) => memory && memory.time.length > 0);
  for (const { memory } of tracedRanks) {
    const { time: changeTimes, bytes } = memory!;
    for (const [i, changeTime] of time.entries()) {
      // The most within a point's stretch, so that no peak falls between two.
      const from = Math.max(0, lowerBound(changeTimes, changeTime) - 1);
      const to = Math.max(from + 1, lowerBound(changeTimes, i + 1 < points ? time[i + 1]! : Number.POSITIVE_INFINITY));
      const heldBytes =
        changeTimes[from]! <= changeTime || to > from + 1
          ? bytes.subarray(from, to).reduce((max, each) => Math.max(max, each), 0)
          : 0;
      maxima[i] = Math.max(maxima[i]!, heldBytes);
      mean[i]! += heldBytes / tracedRanks.length;
    }
  }
  return { time, most: maxima, mean };
}

/** The most that a rank had allocated. */
export function peakBytes({ memory }: Rank): number {
  return memory?.bytes.reduce((max, each) => Math.max(max, each), 0) ?? 0;
}
