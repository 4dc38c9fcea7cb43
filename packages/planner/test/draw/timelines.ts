import type { TimelineEvent, Timeline } from "../../src/index.ts";

/** Returns the timeline of a ring: a step computes for 3 ms, concurrently with a transfer of 4 ms. */
export function ringTimeline(ranks: number, steps: number): Timeline {
  const rankTimelines = Array.from({ length: ranks }, (_, rank) => {
    const events = Array.from({ length: steps }, (__, step): TimelineEvent[] => {
      const start = step * 0.004;
      const compute = {
        lane: "compute",
        name: step % 2 ? "attendBackward" : "attend",
        start,
        end: start + 0.003,
      } as const;
      const bytes = { bytesSent: 1e6, bytesReceived: 1e6 };
      return [
        compute,
        { lane: "communication", name: "sendRecv", label: "ring(sp)", start, end: start + 0.004, ...bytes },
      ];
    });
    return { rank, at: { sp: rank }, events: events.flat() };
  });
  return { seconds: steps * 0.004, ranks: rankTimelines };
}
