import type { RankMetrics, RankPosition } from "../agent/frames.ts";
import { expandRankRanges } from "../agent/rank-ranges.ts";
import type { ObservedWorld } from "./observer.ts";

/** Activities of a rank, by their numbers in a position. */
const ACTIVITIES = ["idle", "computing", "running", "exited", "failed", "unknown"] as const;

/** One rank at one time. What has no value yet is null: rates need two samples, a step time needs two marks. */
export interface RankSample {
  readonly rank: number;
  readonly host: string;
  readonly pid: number;
  readonly activity: (typeof ACTIVITIES)[number];
  /** The collective that it is in (`running`), or that waits for its compute (`computing`). */
  readonly operation: string;
  readonly description: string;
  /** The last one that completed. */
  readonly lastOperation: string;
  readonly steps: number | null;
  readonly stepMs: number | null;
  readonly sinceStepMs: number | null;
  /** The share of the interval for which its device waited for collectives. */
  readonly waitingShare: number | null;
  readonly sentBytesPerSecond: number | null;
  readonly receivedBytesPerSecond: number | null;
  readonly residentBytes: number | null;
  /** Device memory that the allocator held at the end of the last step, and the most that was allocated. */
  readonly deviceBytes: number | null;
  readonly devicePeakBytes: number | null;
}

/** The ranks of a world at one time. */
export interface WorldSample {
  readonly world: string;
  readonly attempt: number;
  readonly size: number;
  /** The rank that the others wait for: see `findSlowestRank`. */
  readonly slowestRank: number | null;
  readonly ranks: readonly RankSample[];
}

/** Positions by rank, as they were sampled. */
export type RawSample = ReadonlyMap<number, RankPosition>;

export function indexByRank(positions: readonly RankPosition[]): RawSample {
  return new Map(
    positions.flatMap((position) => [...expandRankRanges(position.ranks)].map((rank) => [rank, position] as const)),
  );
}

/** What two samples of a world show; the first has none before it. */
export function compareSamples(world: ObservedWorld, previous: RawSample | undefined, current: RawSample): WorldSample {
  const ranks = world.members.map(({ host, pid }, rank): RankSample => {
    const position = current.get(rank);
    const metrics = position?.metrics[0];
    return {
      ...{ rank, host: world.hosts[host] ?? "", pid },
      activity: ACTIVITIES[position?.activity ?? 5] ?? "unknown",
      operation: position?.operation ?? "",
      description: position?.description ?? "",
      lastOperation: position?.last ?? "",
      ...computeStepsAndRates(previous?.get(rank)?.metrics[0], metrics),
      residentBytes: metrics ? Number(metrics.resident) : null,
      deviceBytes: metrics && metrics.steps > 0n ? Number(metrics.reserved) : null,
      devicePeakBytes: metrics && metrics.steps > 0n ? Number(metrics.peak) : null,
    };
  });
  const { name, attempt, size } = world;
  return { world: name, attempt, size, slowestRank: findSlowestRank(ranks), ranks };
}

type StepsAndRates = Pick<
  RankSample,
  "steps" | "stepMs" | "sinceStepMs" | "waitingShare" | "sentBytesPerSecond" | "receivedBytesPerSecond"
>;

const toMilliseconds = (ns: bigint): number => Number(ns) / 1e6;

function computeStepsAndRates(previous: RankMetrics | undefined, current: RankMetrics | undefined): StepsAndRates {
  const unknownRates = { waitingShare: null, sentBytesPerSecond: null, receivedBytesPerSecond: null };
  if (current === undefined) return { steps: null, stepMs: null, sinceStepMs: null, ...unknownRates };
  const steps = {
    steps: Number(current.steps),
    stepMs: current.step > 0n ? toMilliseconds(current.step) : null,
    sinceStepMs: current.steps > 0n ? toMilliseconds(current.sinceStep) : null,
  };
  const elapsedNs = previous === undefined ? 0 : Number(current.time - previous.time);
  if (previous === undefined || elapsedNs <= 0) return { ...steps, ...unknownRates };
  const ratePerSecond = (count: (metrics: RankMetrics) => bigint): number =>
    Math.max(0, Number(count(current) - count(previous))) / (elapsedNs / 1e9);
  const markedSteps = current.steps - previous.steps;
  // The mean of the interval's steps: from its last mark back to the last before it.
  const markIntervalNs = current.time - current.sinceStep - (previous.time - previous.sinceStep);
  return {
    ...steps,
    ...(markedSteps > 0n && previous.steps > 0n
      ? { stepMs: toMilliseconds(markIntervalNs) / Number(markedSteps) }
      : {}),
    waitingShare: Math.min(1, ratePerSecond(({ waiting }) => waiting) / 1e9),
    sentBytesPerSecond: ratePerSecond(({ bytesSent }) => bytesSent),
    receivedBytesPerSecond: ratePerSecond(({ bytesReceived }) => bytesReceived),
  };
}

/** By how much of the interval the others must wait longer for a rank to be named. */
const MIN_SHARE_DIFFERENCE = 0.1;

/**
 * The rank that holds the others up. Collectives bring all ranks to the pace of the slowest, so step times are equal; but
 * all others wait for it, and it waits least. Null where waiting shares differ by less than a tenth: no rank is slow.
 */
export function findSlowestRank(ranks: readonly WaitingRank[]): number | null {
  const [leastWaitingRank] = ranks
    .flatMap(({ rank, waitingShare }) => (waitingShare === null ? [] : [{ rank, waitingShare }]))
    .toSorted((a, b) => a.waitingShare - b.waitingShare);
  const othersMeanShare = leastWaitingRank && othersWaitingShare(ranks, leastWaitingRank.rank);
  if (leastWaitingRank === undefined || othersMeanShare === undefined) return null;
  return othersMeanShare - leastWaitingRank.waitingShare >= MIN_SHARE_DIFFERENCE ? leastWaitingRank.rank : null;
}

/** The mean waiting share of the other ranks that have one; undefined where none does. */
export function othersWaitingShare(ranks: readonly WaitingRank[], excludedRank: number): number | undefined {
  const waitingShares = ranks.flatMap(({ rank, waitingShare }) =>
    rank === excludedRank || waitingShare === null ? [] : [waitingShare],
  );
  return waitingShares.length === 0
    ? undefined
    : waitingShares.reduce((sum, share) => sum + share, 0) / waitingShares.length;
}

type WaitingRank = Pick<RankSample, "rank" | "waitingShare">;
