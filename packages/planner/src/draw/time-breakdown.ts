import { checkTimeline, type Timeline } from "../time/timeline.ts";
import { sumComputeAndWaitSeconds } from "./intervals.ts";

/** Shares of all ranks' time until the last one ended, by how the time was spent. They sum to 1. */
export interface TimeBreakdown {
  readonly computing: number;
  /** Exposed communication: the rank computes nothing while its transfers are in flight. */
  readonly waiting: number;
  /** Neither: not begun, waiting for a peer that is not ready, or ended before the others. */
  readonly idle: number;
}

/**
 * Returns the shares of the ranks' time spent computing, waiting for transfers, and idle.
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
  const totalSeconds = seconds * ranks.length;
  if (totalSeconds <= 0) return { computing: 0, waiting: 0, idle: 1 };
  let computeSeconds = 0;
  let waitSeconds = 0;
  for (const { events } of ranks) {
    const rankSeconds = sumComputeAndWaitSeconds(events);
    computeSeconds += rankSeconds.computing;
    waitSeconds += rankSeconds.waiting;
  }
  return {
    computing: computeSeconds / totalSeconds,
    waiting: waitSeconds / totalSeconds,
    idle: Math.max(0, totalSeconds - computeSeconds - waitSeconds) / totalSeconds,
  };
}
