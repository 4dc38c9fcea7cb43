import type { Coordinate } from "@mosaic/core";
import { checkTimeline, type TimelineEvent, type Timeline } from "../time/timeline.ts";

/** One event of the Trace Event Format. Times are microseconds. */
interface TraceEntry {
  readonly ph: "X" | "M";
  readonly name: string;
  readonly pid: number;
  readonly tid: number;
  readonly ts?: number;
  readonly dur?: number;
  readonly cat?: string;
  readonly args?: Readonly<Record<string, unknown>>;
}

/**
 * Returns a timeline as JSON in Chrome's Trace Event Format, for ui.perfetto.dev or chrome://tracing. Every rank is a
 * process, named after its place in the mesh, with a track for compute and one for each concurrent transfer. If ranks
 * of several hosts were aligned, `otherData` has the clock error.
 *
 * Source: "Trace Event Format", Google, 2016.
 *
 * @example
 * ```ts
 * import { perfettoTrace } from "@mosaic/planner";
 * const events = [{ lane: "compute", name: "attend", start: 0.001, end: 0.003 }] as const;
 * const { traceEvents } = JSON.parse(perfettoTrace({ seconds: 0.003, ranks: [{ rank: 0, at: {}, events }] }));
 * traceEvents.at(-1).dur; // => 2000
 * ```
 */
export function perfettoTrace(timeline: Timeline): string {
  checkTimeline("perfettoTrace", timeline);
  const entries = timeline.ranks.flatMap(({ rank, at, events }) => [
    ...metadataEvents(rank, at),
    ...trackEvents(rank, "compute", events),
    ...trackEvents(rank, "communication", events),
  ]);
  // One event per line: half the size of indented JSON, and still readable.
  const lines = entries.map((entry) => JSON.stringify(entry));
  const { clockError } = timeline;
  const data = clockError === undefined ? "" : `"otherData":{"clockErrorMicroseconds":${microseconds(clockError)}},`;
  return `{"displayTimeUnit":"ms",${data}"traceEvents":[\n${lines.join(",\n")}\n]}\n`;
}

function metadataEvents(rank: number, coordinate: Coordinate): readonly TraceEntry[] {
  const coordinates = Object.entries(coordinate).map(([axis, index]) => `${axis} ${index}`);
  const name = coordinates.length === 0 ? `rank ${rank}` : `rank ${rank} (${coordinates.join(", ")})`;
  return [
    { ph: "M", name: "process_name", pid: rank, tid: 0, args: { name } },
    { ph: "M", name: "process_sort_index", pid: rank, tid: 0, args: { sort_index: rank } },
  ];
}

/** Assigns events to tracks. The slices of a track must nest, so overlapping events are on separate tracks. */
function trackEvents(
  pid: number,
  lane: TimelineEvent["lane"],
  events: readonly TimelineEvent[],
): readonly TraceEntry[] {
  const trackEnds: number[] = [];
  const firstTrack = lane === "compute" ? 0 : 100;
  const slices: TraceEntry[] = [];
  for (const event of events.filter((each) => each.lane === lane).toSorted((a, b) => a.start - b.start)) {
    const freeTrack = trackEnds.findIndex((end) => end <= event.start);
    const track = freeTrack < 0 ? trackEnds.length : freeTrack;
    trackEnds[track] = event.end;
    slices.push(sliceEvent(event, pid, firstTrack + track));
  }
  const nameEvents = trackEnds.map((_, track): TraceEntry => {
    const name = track === 0 ? lane : `${lane} ${track + 1}`;
    return { ph: "M", name: "thread_name", pid, tid: firstTrack + track, args: { name } };
  });
  return [...nameEvents, ...slices];
}

function sliceEvent(
  { lane, name, label, start, end, bytesSent, bytesReceived }: TimelineEvent,
  pid: number,
  tid: number,
): TraceEntry {
  const args = lane === "communication" ? { args: { collective: name, bytesSent, bytesReceived } } : {};
  const ts = microseconds(start);
  return { ph: "X", name: label ?? name, cat: lane, pid, tid, ts, dur: Math.max(0, microseconds(end) - ts), ...args };
}

/** Converts to microseconds, rounded to a nanosecond. */
function microseconds(seconds: number): number {
  return Math.round(seconds * 1e9) / 1000;
}
