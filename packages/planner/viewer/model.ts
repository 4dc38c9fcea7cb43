import type { Coordinate } from "@mosaic/core";
import { busySeconds } from "../src/draw/intervals.ts";
import { synchronizationEvents } from "../src/time/synchronization.ts";
import type { TimelineEvent } from "../src/time/timeline.ts";
import type { EventColumns, EventKind, RankData, RankTraceData, RunData } from "../src/view/data.ts";

/** Events of one rank, in order of their starts. Times are seconds since the run began. */
export interface Events {
  readonly count: number;
  /** Index into the kinds of the page. */
  readonly kind: Uint16Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  readonly sent: Float64Array;
  readonly received: Float64Array;
  /** Of a run of merged events the share of its time that they take. */
  readonly share: Float32Array;
  /** How many events each stands for. */
  readonly merged: Uint32Array;
  /** Seconds that the longest takes: how far before a moment those begin that include it. */
  readonly longest: number;
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
  /** Before runs of them were merged. */
  readonly events: number;
  readonly ranks: readonly Rank[];
}

/** The kinds of events of all timelines of a page: equal ones have one number. */
export class Kinds {
  readonly all: EventKind[] = [];
  readonly #numbers = new Map<string, number>();

  number(kind: EventKind): number {
    const key = `${kind.lane}\n${kind.name}\n${kind.label ?? ""}`;
    let number = this.#numbers.get(key);
    if (number === undefined) this.#numbers.set(key, (number = this.all.push(kind) - 1));
    return number;
  }
}

/** A timeline that the planner wrote: times count from its beginning. */
export function decodeRun(data: RunData, kinds: Kinds): Run {
  const { name, seconds, clockError = 0, events } = data;
  return { name, seconds, clockError, events, ranks: data.ranks.map((rank) => decodeRank(rank, kinds, 0)) };
}

/** Traces of ranks on clocks of their own, as one timeline that begins with the first event of any. */
export function decodeTraces(traces: readonly RankTraceData[], kinds: Kinds): Run {
  const kept = traces.toSorted((a, b) => a.rank - b.rank).map(withoutSynchronization);
  const firsts = kept.flatMap(({ events, clock }) =>
    events.start.length > 0 ? [events.start[0]! + clock.offset] : [],
  );
  const zero = firsts.length > 0 ? Math.min(...firsts) : 0;
  const ranks = kept.map((trace) => decodeRank(trace, kinds, trace.clock.offset - zero));
  const [most = 0, second = 0] = [...new Map(traces.map(({ host, clock }) => [host, clock.error])).values()].toSorted(
    (a, b) => b - a,
  );
  return {
    name: "measured",
    seconds: Math.max(0, ...ranks.map(({ events }) => events.end.reduce((last, end) => Math.max(last, end), 0))),
    clockError: most > 0 ? (most + second) / 1e9 : 0,
    events: ranks.reduce((sum, { events }) => sum + events.merged.reduce((own, count) => own + count, 0), 0),
    ranks,
  };
}

function withoutSynchronization(trace: RankTraceData): RankTraceData {
  const { kinds, kind, start, duration, bytes } = trace.events;
  if (!kinds.some(({ name }) => synchronizationEvents.has(name))) return trace;
  let [time, transfer, before] = [0, 0, 0];
  const kept = { kind: [] as number[], start: [] as number[], duration: [] as number[], bytes: [] as number[] };
  for (const [i, number] of kind.entries()) {
    time += start[i]!;
    const { name, lane } = kinds[number]!;
    const own = lane === "communication" ? transfer++ : -1;
    if (synchronizationEvents.has(name)) continue;
    kept.kind.push(number);
    kept.start.push(time - before);
    kept.duration.push(duration[i]!);
    if (own >= 0) kept.bytes.push(bytes[2 * own]!, bytes[2 * own + 1]!);
    before = time;
  }
  return { ...trace, events: { kinds, ...kept } };
}

function decodeRank(data: RankData & { readonly note?: string }, kinds: Kinds, offset: number): Rank {
  const { rank, at, memory, note } = data;
  const events = decodeEvents(data.events, kinds, offset);
  return {
    rank,
    at,
    events,
    ...(memory && { memory: { time: sumUp(memory.time, offset), bytes: Float64Array.from(memory.bytes) } }),
    ...(data.spent ?? busySeconds(listEvents(events, kinds))),
    ...(note !== undefined && { note }),
  };
}

function decodeEvents(columns: EventColumns, kinds: Kinds, offset: number): Events {
  const count = columns.kind.length;
  const numbers = columns.kinds.map((kind) => kinds.number(kind));
  const start = sumUp(columns.start, offset);
  const events = {
    count,
    kind: Uint16Array.from(columns.kind, (own) => numbers[own]!),
    start,
    end: start.map((time, i) => time + columns.duration[i]! / 1e9),
    sent: new Float64Array(count),
    received: new Float64Array(count),
    share: Float32Array.from(columns.merged?.share ?? new Array<number>(count).fill(1000), (share) => share / 1000),
    merged: Uint32Array.from(columns.merged?.count ?? new Array<number>(count).fill(1)),
    longest: columns.duration.reduce((longest, each) => Math.max(longest, each), 0) / 1e9,
  };
  let transfer = 0;
  for (const [i, own] of columns.kind.entries()) {
    if (columns.kinds[own]!.lane === "compute") continue;
    events.sent[i] = columns.bytes[transfer++]!;
    events.received[i] = columns.bytes[transfer++]!;
  }
  return events;
}

/** Differences in nanoseconds as seconds since `-offset`. */
function sumUp(differences: readonly number[], offset: number): Float64Array {
  let time = offset;
  return Float64Array.from(differences, (difference) => (time += difference) / 1e9);
}

/** The same events as objects. */
export function listEvents({ count, kind, start, end, sent, received }: Events, kinds: Kinds): TimelineEvent[] {
  return Array.from({ length: count }, (_, i) => ({
    ...kinds.all[kind[i]!]!,
    start: start[i]!,
    end: end[i]!,
    bytesSent: sent[i]!,
    bytesReceived: received[i]!,
  }));
}

/** The first index whose value is not below `least`. */
export function lowerBound(values: Float64Array, least: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! < least) low = middle + 1;
    else high = middle;
  }
  return low;
}
