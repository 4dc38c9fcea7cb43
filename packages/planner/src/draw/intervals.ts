import type { TimelineEvent } from "../time/timeline.ts";

/** A time interval, in seconds. */
export interface Interval {
  readonly start: number;
  readonly end: number;
}

/** Returns the intervals in which a rank had nothing to compute while its transfers were in progress. */
export function waitIntervals(events: readonly TimelineEvent[]): readonly Interval[] {
  const computeIntervals = mergeIntervals(events.filter(({ lane }) => lane === "compute"));
  const waits: Interval[] = [];
  let firstComputeIndex = 0;
  for (const transfer of mergeIntervals(events.filter(({ lane }) => lane === "communication"))) {
    let { start } = transfer;
    while (firstComputeIndex < computeIntervals.length && computeIntervals[firstComputeIndex]!.end <= start)
      firstComputeIndex++;
    for (let i = firstComputeIndex; i < computeIntervals.length && computeIntervals[i]!.start < transfer.end; i++) {
      if (computeIntervals[i]!.start > start) waits.push({ start, end: computeIntervals[i]!.start });
      start = computeIntervals[i]!.end;
    }
    if (start < transfer.end) waits.push({ start, end: transfer.end });
  }
  return waits;
}

/** Returns the seconds that one rank spent computing, and waiting for transfers. */
export function sumComputeAndWaitSeconds(events: readonly TimelineEvent[]): {
  readonly computing: number;
  readonly waiting: number;
} {
  return {
    computing: totalSeconds(mergeIntervals(events.filter(({ lane }) => lane === "compute"))),
    waiting: totalSeconds(waitIntervals(events)),
  };
}

function totalSeconds(intervals: readonly Interval[]): number {
  return intervals.reduce((sum, { start, end }) => sum + end - start, 0);
}

/** Returns the union of intervals as disjoint intervals, in order. */
function mergeIntervals(intervals: readonly Interval[]): readonly Interval[] {
  const merged: { start: number; end: number }[] = [];
  for (const { start, end } of intervals.toSorted((a, b) => a.start - b.start)) {
    const last = merged.at(-1);
    if (last !== undefined && start <= last.end) last.end = Math.max(last.end, end);
    else if (end > start) merged.push({ start, end });
  }
  return merged;
}
