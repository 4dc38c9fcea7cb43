import type { Coordinate } from "@mosaic/core";
import { sumComputeAndWaitSeconds } from "../src/draw/intervals.ts";
import { synchronizationEventNames } from "../src/time/synchronization.ts";
import type { TimelineEvent } from "../src/time/timeline.ts";
import type { EventColumns, EventKind, RankData, RankTraceData, RunData } from "../src/view/data.ts";

/** Events of one rank, in order of their starts. Times are in seconds since the run began. */
export interface Events {
  readonly count: number;
  /** Index into the kinds of the page. */
  readonly kind: Uint16Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly sent: Float64Array;
  readonly received: Float64Array;
  /** For a run of merged events, the share of its time that they take. */
  readonly share: Float32Array;
  /** Number of events that each one represents. */
  readonly merged: Uint32Array;
  /** Duration of the longest event. Events that include a time begin at most this long before it. */
  readonly longestSeconds: number;
}

export interface Rank {
  readonly rank: number;
  readonly at: Coordinate;
  readonly events: Events;
  readonly memory?: { readonly time: Float64Array; readonly bytes: Float64Array };
  readonly computing: number;
  readonly waiting: number;
  readonly note?: string;
}

/** One timeline. */
export interface Run {
  readonly name: string;
  readonly seconds: number;
  readonly clockError: number;
  /** Number of events before runs of them were merged. */
  readonly events: number;
  readonly ranks: readonly Rank[];
}

/** The kinds of events of all timelines of a page. Equal kinds have one number. */
export class Kinds {
  readonly allKinds: EventKind[] = [];
  readonly #kindNumbers = new Map<string, number>();

  getKindNumber(kind: EventKind): number {
    const key = `${kind.lane}\n${kind.name}\n${kind.label ?? ""}`;
    let kindNumber = this.#kindNumbers.get(key);
    if (kindNumber === undefined) this.#kindNumbers.set(key, (kindNumber = this.allKinds.push(kind) - 1));
    return kindNumber;
  }
}

/** Decodes a timeline that the planner wrote. Its times begin at 0. */
export function decodeRun(data: RunData, kinds: Kinds): Run {
  const { name, seconds, clockError = 0, events } = data;
  return { name, seconds, clockError, events, ranks: data.ranks.map((rank) => decodeRank(rank, kinds, 0)) };
}

/** Decodes traces of ranks with different clocks into one timeline, which begins with the first event of any rank. */
export function decodeTraces(traces: readonly RankTraceData[], kinds: Kinds): Run {
  const sortedTraces = traces.toSorted((a, b) => a.rank - b.rank).map(removeSynchronization);
  const firstTimes = sortedTraces.flatMap(({ events, clock }) =>
    events.start.length > 0 ? [events.start[0]! + clock.offset] : [],
  );
  const startTime = firstTimes.length > 0 ? Math.min(...firstTimes) : 0;
  const ranks = sortedTraces.map((trace) => decodeRank(trace, kinds, trace.clock.offset - startTime));
  const [maxError = 0, secondMaxError = 0] = [
    ...new Map(traces.map(({ host, clock }) => [host, clock.error])).values(),
  ].toSorted((a, b) => b - a);
  return {
    name: "measured",
    seconds: Math.max(0, ...ranks.map(({ events }) => events.end.reduce((last, end) => Math.max(last, end), 0))),
    clockError: maxError > 0 ? (maxError + secondMaxError) / 1e9 : 0,
    events: ranks.reduce((sum, { events }) => sum + events.merged.reduce((own, count) => own + count, 0), 0),
    ranks,
  };
}

function removeSynchronization(trace: RankTraceData): RankTraceData {
  const { kinds, kind, start, duration, bytes } = trace.events;
  if (!kinds.some(({ name }) => synchronizationEventNames.has(name))) return trace;
  let [time, numTransfers, previousTime] = [0, 0, 0];
  const keptColumns = { kind: [] as number[], start: [] as number[], duration: [] as number[], bytes: [] as number[] };
  for (const [i, kindNumber] of kind.entries()) {
    time += start[i]!;
    const { name, lane } = kinds[kindNumber]!;
    const transferIndex = lane === "communication" ? numTransfers++ : -1;
    if (synchronizationEventNames.has(name)) continue;
    keptColumns.kind.push(kindNumber);
    keptColumns.start.push(time - previousTime);
    keptColumns.duration.push(duration[i]!);
    if (transferIndex >= 0) keptColumns.bytes.push(bytes[2 * transferIndex]!, bytes[2 * transferIndex + 1]!);
    previousTime = time;
  }
  return { ...trace, events: { kinds, ...keptColumns } };
}

function decodeRank(data: RankData & { readonly note?: string }, kinds: Kinds, offset: number): Rank {
  const { rank, at, memory, note } = data;
  const events = decodeEvents(data.events, kinds, offset);
  return {
    rank,
    at,
    events,
    ...(memory && { memory: { time: cumulativeSum(memory.time, offset), bytes: Float64Array.from(memory.bytes) } }),
    ...(data.spent ?? sumComputeAndWaitSeconds(listEvents(events, kinds))),
    ...(note !== undefined && { note }),
  };
}

function decodeEvents(columns: EventColumns, kinds: Kinds, offset: number): Events {
  const count = columns.kind.length;
  const kindNumbers = columns.kinds.map((kind) => kinds.getKindNumber(kind));
  const start = cumulativeSum(columns.start, offset);
  const events = {
    count,
    kind: Uint16Array.from(columns.kind, (rankKind) => kindNumbers[rankKind]!),
    start,
    end: start.map((time, i) => time + columns.duration[i]! / 1e9),
    sent: new Float64Array(count),
    received: new Float64Array(count),
    share: Float32Array.from(columns.merged?.share ?? new Array<number>(count).fill(1000), (share) => share / 1000),
    merged: Uint32Array.from(columns.merged?.count ?? new Array<number>(count).fill(1)),
    longestSeconds: columns.duration.reduce((longest, each) => Math.max(longest, each), 0) / 1e9,
  };
  let bytesIndex = 0;
  for (const [i, rankKind] of columns.kind.entries()) {
    if (columns.kinds[rankKind]!.lane === "compute") continue;
    events.sent[i] = columns.bytes[bytesIndex++]!;
    events.received[i] = columns.bytes[bytesIndex++]!;
  }
  return events;
}

/** Converts differences in nanoseconds to seconds since `-offset`. */
function cumulativeSum(differences: readonly number[], offset: number): Float64Array {
  let time = offset;
  return Float64Array.from(differences, (difference) => (time += difference) / 1e9);
}

/** Returns the events as objects. */
export function listEvents({ count, kind, start, end, sent, received }: Events, kinds: Kinds): TimelineEvent[] {
  return Array.from({ length: count }, (_, i) => ({
    ...kinds.allKinds[kind[i]!]!,
    start: start[i]!,
    end: end[i]!,
    bytesSent: sent[i]!,
    bytesReceived: received[i]!,
  }));
}

/** Returns the first index whose value is not below `value`. */
export function lowerBound(values: Float64Array, value: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
