import type { TimelineEvent } from "../time/timeline.ts";

/** A stretch of time, in seconds. */
export interface Interval {
  readonly start: number;
  readonly end: number;
}

/** When a rank had nothing to compute while its transfers were under way. */
export function waitIntervals(events: readonly TimelineEvent[]): readonly Interval[] {
  const computing = mergeIntervals(events.filter(({ lane }) => lane === "compute"));
  const waited: Interval[] = [];
  let from = 0;
  for (const transfer of mergeIntervals(events.filter(({ lane }) => lane === "communication"))) {
    let { start } = transfer;
    while (from < computing.length && computing[from]!.end <= start) from++;
    for (let i = from; i < computing.length && computing[i]!.start < transfer.end; i++) {
      if (computing[i]!.start > start) waited.push({ start, end: computing[i]!.start });
      start = Math.max(start, computing[i]!.end);
    }
    if (start < transfer.end) waited.push({ start, end: transfer.end });
  }
  return waited;
}

/** Seconds that one rank spent computing, and waiting for transfers. */
export function busySeconds(events: readonly TimelineEvent[]): {
  readonly computing: number;
  readonly waiting: number;
} {
  return {
    computing: totalLength(mergeIntervals(events.filter(({ lane }) => lane === "compute"))),
    waiting: totalLength(waitIntervals(events)),
  };
}

function totalLength(intervals: readonly Interval[]): number {
  return intervals.reduce((sum, { start, end }) => sum + end - start, 0);
}

/** The same moments as intervals in order, disjoint. */
export function mergeIntervals(intervals: readonly Interval[]): readonly Interval[] {
  const merged: { start: number; end: number }[] = [];
  for (const { start, end } of intervals.toSorted((a, b) => a.start - b.start)) {
    const last = merged.at(-1);
    if (last !== undefined && start <= last.end) last.end = Math.max(last.end, end);
    else if (end > start) merged.push({ start, end });
  }
  return merged;
}
