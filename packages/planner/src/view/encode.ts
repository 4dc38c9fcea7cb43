import { sumComputeAndWaitSeconds } from "../draw/intervals.ts";
import type { MemorySample, RankTimeline, Timeline, TimelineEvent } from "../time/timeline.ts";
import type { EventColumns, EventKind, MemoryColumns, RunData } from "./data.ts";

/**
 * Encodes a timeline for a page. With more than `maxEvents` events, runs are merged, without losing the time that a
 * rank was busy.
 */
export function encodeRun(name: string, timeline: Timeline, maxEvents: number): RunData {
  const { seconds, ranks, clockError } = timeline;
  const numEvents = ranks.reduce((sum, { events }) => sum + events.length, 0);
  const maxRankEvents = Math.max(2, Math.floor(maxEvents / Math.max(1, ranks.length)));
  return {
    name,
    seconds,
    events: numEvents,
    ...(clockError !== undefined && { clockError }),
    ranks: ranks.map((rank) => ({
      rank: rank.rank,
      at: rank.at,
      spent: sumComputeAndWaitSeconds(rank.events),
      events: encodeRank(rank, numEvents > maxEvents ? maxRankEvents : Number.POSITIVE_INFINITY, seconds),
      ...(rank.memory && rank.memory.length > 0 && { memory: encodeMemory(rank.memory, maxEvents / ranks.length) }),
    })),
  };
}

/** Part of a lane: an event, or many that are too short to be distinguished. */
interface EventRun {
  kind: number;
  start: number;
  end: number;
  numEvents: number;
  /** Total time of the events in it. Concurrent events are each counted. */
  eventSeconds: number;
  bytesSent: number;
  bytesReceived: number;
}

/** Encodes the events of a rank. With more than `maxEvents` events, runs are merged, to at most `seconds` each. */
export function encodeRank({ events }: Pick<RankTimeline, "events">, maxEvents: number, seconds: number): EventColumns {
  const kinds = new KindTable();
  const runs = events.map((event): EventRun => {
    const { start, end, bytesSent = 0, bytesReceived = 0 } = event;
    const kind = kinds.getIndex(event);
    return {
      kind,
      start,
      end,
      numEvents: 1,
      eventSeconds: end - start,
      bytesSent,
      bytesReceived,
    };
  });
  if (runs.length <= maxEvents) return toColumns(runs, kinds.kinds, false);
  const lanes = (["compute", "communication"] as const).map((lane) => {
    return runs.filter(({ kind }) => kinds.kinds[kind]!.lane === lane).sort((a, b) => a.start - b.start);
  });
  let mergedRuns: readonly EventRun[] = runs;
  for (
    let quantumSeconds = seconds / 65_536;
    mergedRuns.length > maxEvents && quantumSeconds <= seconds;
    quantumSeconds *= 1.5
  ) {
    mergedRuns = lanes.flatMap((lane) => mergeShortRuns(lane, quantumSeconds));
  }
  return toColumns(mergedRuns, kinds.kinds, true);
}

/**
 * Merges consecutive events that are shorter than the quantum and at most the quantum apart. A run has the kind that
 * takes the most time.
 */
function mergeShortRuns(runs: readonly EventRun[], quantumSeconds: number): readonly EventRun[] {
  const mergedRuns: EventRun[] = [];
  let secondsByKind = new Map<number, number>();
  for (const run of runs) {
    const last = mergedRuns.at(-1);
    const areShort =
      run.end - run.start < quantumSeconds && last !== undefined && last.end - last.start < quantumSeconds;
    if (!areShort || run.start - last.end > quantumSeconds) {
      mergedRuns.push({ ...run });
      secondsByKind = new Map([[run.kind, run.eventSeconds]]);
      continue;
    }
    last.end = Math.max(last.end, run.end);
    last.numEvents += run.numEvents;
    last.eventSeconds += run.eventSeconds;
    last.bytesSent += run.bytesSent;
    last.bytesReceived += run.bytesReceived;
    secondsByKind.set(run.kind, (secondsByKind.get(run.kind) ?? 0) + run.eventSeconds);
    if (secondsByKind.get(run.kind)! > (secondsByKind.get(last.kind) ?? 0)) last.kind = run.kind;
  }
  return mergedRuns;
}

/** Kinds of events, each once. */
class KindTable {
  readonly kinds: EventKind[] = [];
  readonly #indices = new Map<string, number>();

  getIndex({ lane, name, label }: Pick<TimelineEvent, "lane" | "name" | "label">): number {
    const key = `${lane}\n${name}\n${label ?? ""}`;
    const kindIndex = this.#indices.get(key);
    if (kindIndex !== undefined) return kindIndex;
    this.#indices.set(key, this.kinds.length);
    return this.kinds.push({ lane, name, ...(label !== undefined && { label }) }) - 1;
  }
}

function toColumns(runs: readonly EventRun[], kinds: readonly EventKind[], isMerged: boolean): EventColumns {
  const sortedRuns = runs.toSorted((a, b) => a.start - b.start);
  const starts = sortedRuns.map(({ start }) => nanoseconds(start));
  const communication = sortedRuns.filter(({ kind }) => kinds[kind]!.lane === "communication");
  return {
    kinds,
    kind: sortedRuns.map(({ kind }) => kind),
    start: deltaEncode(starts),
    duration: sortedRuns.map(({ end }, i) => nanoseconds(end) - starts[i]!),
    bytes: communication.flatMap(({ bytesSent: sent, bytesReceived: received }) => [sent, received]),
    ...(isMerged && {
      merged: {
        count: sortedRuns.map(({ numEvents: count }) => count),
        share: sortedRuns.map(({ start, end, eventSeconds }) => computePermille(eventSeconds, end - start)),
      },
    }),
  };
}

/** Returns a share in thousandths, at least 1, so that nothing vanishes. */
function computePermille(partSeconds: number, totalSeconds: number): number {
  return totalSeconds > 0 ? Math.min(1000, Math.max(1, Math.round((1000 * partSeconds) / totalSeconds))) : 1000;
}

/** Encodes memory samples. Of too many, the maximum within each of `maxSamples` equal intervals is kept. */
export function encodeMemory(samples: readonly MemorySample[], maxSamples: number): MemoryColumns {
  const keptSamples =
    samples.length <= Math.max(64, maxSamples) ? samples : selectPeaks(samples, Math.max(64, Math.floor(maxSamples)));
  return {
    time: deltaEncode(keptSamples.map(({ time }) => nanoseconds(time))),
    bytes: keptSamples.map(({ bytes }) => bytes),
  };
}

function selectPeaks(samples: readonly MemorySample[], numBuckets: number): readonly MemorySample[] {
  const [firstTime, lastTime] = [samples[0]!.time, samples.at(-1)!.time];
  const bucketSeconds = (lastTime - firstTime) / numBuckets || 1;
  const peaks: MemorySample[] = [];
  let bucket = -1;
  for (const sample of samples) {
    const sampleBucket = Math.min(numBuckets - 1, Math.floor((sample.time - firstTime) / bucketSeconds));
    if (sampleBucket !== bucket) peaks.push(sample);
    else if (sample.bytes > peaks.at(-1)!.bytes) peaks[peaks.length - 1] = { ...sample, time: peaks.at(-1)!.time };
    bucket = sampleBucket;
  }
  return [...peaks, samples.at(-1)!];
}

const nanoseconds = (seconds: number): number => Math.round(seconds * 1e9);

const deltaEncode = (values: readonly number[]): readonly number[] =>
  values.map((value, i) => (i === 0 ? value : value - values[i - 1]!));
