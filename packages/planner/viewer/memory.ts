import { lowerBound, type Rank } from "./model.ts";

/** The most and the mean of what ranks had allocated, at equal distances of time. */
export function memoryOverTime(
  ranks: readonly Rank[],
  seconds: number,
  points: number,
): Readonly<Record<"time" | "most" | "mean", number[]>> {
  const time = Array.from({ length: points }, (_, i) => (seconds * i) / (points - 1));
  const maxBytes = new Array<number>(points).fill(0);
  const meanBytes = new Array<number>(points).fill(0);
  const ranksWithMemory = ranks.filter(({ memory }) => memory && memory.time.length > 0);
  for (const { memory } of ranksWithMemory) {
    const { time: changeTimes, bytes } = memory!;
    for (const [i, sampleTime] of time.entries()) {
      // The most within a point's stretch, so that no peak falls between two.
      const firstIndex = Math.max(0, lowerBound(changeTimes, sampleTime) - 1);
      const endIndex = Math.max(
        firstIndex + 1,
        lowerBound(changeTimes, i + 1 < points ? time[i + 1]! : Number.POSITIVE_INFINITY),
      );
      const heldBytes =
        changeTimes[firstIndex]! <= sampleTime || endIndex > firstIndex + 1
          ? bytes.subarray(firstIndex, endIndex).reduce((max, each) => Math.max(max, each), 0)
          : 0;
      maxBytes[i] = Math.max(maxBytes[i]!, heldBytes);
      meanBytes[i]! += heldBytes / ranksWithMemory.length;
    }
  }
  return { time, most: maxBytes, mean: meanBytes };
}

/** The most that a rank had allocated. */
export function peakBytes({ memory }: Rank): number {
  return memory?.bytes.reduce((max, each) => Math.max(max, each), 0) ?? 0;
}
