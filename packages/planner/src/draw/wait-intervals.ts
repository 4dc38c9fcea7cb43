import { checkTimeline, type TimelineEvent, type Timeline } from "../time/timeline.ts";

/** A stretch of time, in seconds. */
export interface Interval {
  readonly start: number;
  readonly end: number;
}

/** How a run's time was spent: shares of all ranks' time until the last one ended. They sum to 1. */
export interface TimeBreakdown {
  readonly computing: number;
  /** Nothing to compute while one's own transfers were under way: communication that compute does not hide. */
  readonly waiting: number;
  /** Nothing at all: not begun, waiting for a peer that is not ready, or ended before the others. */
  readonly idle: number;
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

/**
 * What share of the ranks' time was spent computing, waiting for transfers, and idle.
 *
 * @example
 * ```ts
 * import { timeBreakdown } from "@mosaic/planner";
 * const events = [
 *   { lane: "compute", name: "attend", start: 0, end: 3 },
 *   { lane: "communication", name: "sendRecv", start: 1, end: 4 },
 * ] as const;
 * timeBreakdown({ seconds: 5, ranks: [{ rank: 0, at: {}, events }] }); // => { computing: 0.6, waiting: 0.2, idle: 0.2 }
 * ```
 */
export function timeBreakdown(timeline: Timeline): TimeBreakdown {
  checkTimeline("timeBreakdown", timeline);
  const { seconds, ranks } = timeline;
  const whole = seconds * ranks.length;
  if (whole <= 0) return { computing: 0, waiting: 0, idle: 1 };
  let computing = 0;
  let waiting = 0;
  for (const { events } of ranks) {
    computing += totalLength(mergeIntervals(events.filter(({ lane }) => lane === "compute")));
    waiting += totalLength(waitIntervals(events));
  }
  return {
    computing: computing / whole,
    waiting: waiting / whole,
    idle: Math.max(0, whole - computing - waiting) / whole,
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
