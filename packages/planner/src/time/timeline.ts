import { type Coordinate, expectValue, type TraceEvent } from "@mosaic/core";
import type { ClockOffset } from "./clock-offset.ts";
import { synchronizationEventNames } from "./synchronization.ts";

/** Trace of one rank, from `await ctx.stopTrace()`, and the rank's place in the mesh. */
export interface RankTrace {
  readonly rank: number;
  readonly at: Coordinate;
  readonly events: readonly TraceEvent[];
  /** Samples of the memory that its device had allocated, on the clock of the events. */
  readonly memory?: readonly MemorySample[];
  /** Clock offset of the rank, as measured by `clockOffset`. Default: 0, as on one host. */
  readonly clock?: ClockOffset;
}

/**
 * Returns a measured timeline in the form of a predicted one. Time 0 is the start of the first event of any rank.
 * Clocks of different hosts are aligned by the `clock` of each rank, within `clockError`.
 *
 * @example
 * ```ts
 * import { timelineOf } from "@mosaic/planner";
 * const event = { lane: "compute", name: "attend", start: 5e9, end: 5.25e9 } as const;
 * timelineOf([{ rank: 0, at: { sp: 0 }, events: [event] }]).seconds; // => 0.25
 * ```
 */
export function timelineOf(traces: readonly RankTrace[]): Timeline {
  expectValue(
    "timelineOf",
    Array.isArray(traces) &&
      [...traces].every((trace) => Array.isArray(trace?.events) && [...trace.events].every(isTraceEvent)),
    "an array of traces",
    traces,
  );
  const alignedTraces = traces.map(
    ({ rank, at, events, memory, clock: { offset, error } = { offset: 0, error: 0 } }) => ({
      ...{ rank, at, offset, error },
      memory: memory?.map(({ time, bytes }) => ({ time: time + offset, bytes })),
      events:
        offset === 0 ? events : events.map((each) => ({ ...each, start: each.start + offset, end: each.end + offset })),
    }),
  );
  const allEvents = alignedTraces.flatMap(({ events }) => events);
  const startTime = allEvents.reduce((min, { start }) => Math.min(min, start), Number.POSITIVE_INFINITY);
  const toSeconds = (nanoseconds: number): number => (nanoseconds - startTime) / 1e9;
  const ranks = alignedTraces
    .toSorted((a, b) => a.rank - b.rank)
    .map(({ rank, at, events, memory }) => ({
      rank,
      at,
      ...(memory && { memory: memory.map(({ time, bytes }) => ({ time: toSeconds(time), bytes })) }),
      events: events
        .filter(({ name }) => !synchronizationEventNames.has(name))
        .map((event) => ({ ...event, start: toSeconds(event.start), end: toSeconds(event.end) }))
        .toSorted((a, b) => a.start - b.start),
    }));
  // Ranks of different hosts have independent errors; ranks of one host have the same.
  const offsetErrors = new Map(alignedTraces.map(({ offset, error }) => [offset, error])).values();
  const [maxError = 0, secondMaxError = 0] = [...offsetErrors].toSorted((a, b) => b - a);
  return {
    seconds: allEvents.reduce((max, { end }) => Math.max(max, toSeconds(end)), 0),
    ranks,
    ...(maxError > 0 && { clockError: (maxError + secondMaxError) / 1e9 }),
  };
}

/** One event of one rank: a kernel or a collective, predicted or measured. Times are seconds since the run began. */
export interface TimelineEvent {
  readonly lane: "compute" | "communication";
  /** The kernel's or collective's name, e.g. "attend" or "sendRecv". */
  readonly name: string;
  readonly start: number;
  readonly end: number;
  /** Communication only: the caller's label, e.g. "ring(sp)", and the payload in bytes. */
  readonly label?: string;
  readonly bytesSent?: number;
  readonly bytesReceived?: number;
}

/** The bytes that a rank had allocated, from a time on. Times are seconds in timelines and nanoseconds in traces. */
export interface MemorySample {
  readonly time: number;
  readonly bytes: number;
}

/** The events of one rank. */
export interface RankTimeline {
  readonly rank: number;
  readonly at: Coordinate;
  readonly events: readonly TimelineEvent[];
  /** In time order. Absent if not known. */
  readonly memory?: readonly MemorySample[];
}

/**
 * The events of all ranks. Predicted and measured timelines have the same form, so that they can be drawn side by side.
 */
export interface Timeline {
  /** Time when the last rank ended. */
  readonly seconds: number;
  readonly ranks: readonly RankTimeline[];
  /** Maximum shift, in seconds, between events of ranks on different hosts. Absent if all ranks have one clock. */
  readonly clockError?: number;
}

function isTraceEvent(event: unknown): boolean {
  return typeof (event as { start?: unknown } | null)?.start === "number";
}

/** Throws an OptionError unless a value has the ranks and events of a timeline. */
export function checkTimeline(where: string, timeline: unknown): void {
  const { seconds, ranks } = (timeline ?? {}) as Readonly<Record<string, unknown>>;
  const isRankTimeline = (rank: unknown): boolean => Array.isArray((rank as { events?: unknown } | null)?.events);
  const isTimeline = typeof seconds === "number" && Array.isArray(ranks) && ranks.every(isRankTimeline);
  expectValue(where, isTimeline, "a timeline { seconds, ranks }", timeline);
}
