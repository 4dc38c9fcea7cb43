import { lowerBound, type Rank } from "./model.ts";

/** Returns the maximum and the mean of the memory allocated by ranks, at equally spaced times. */
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
      // The maximum until the next point, so that no peak is lost between two points.
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

/** Returns the peak allocated bytes of a rank. */
export function peakBytes({ memory }: Rank): number {
  return memory?.bytes.reduce((max, each) => Math.max(max, each), 0) ?? 0;
}
