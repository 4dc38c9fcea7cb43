import type { RankMetrics, RankPosition } from "../agent/frames.ts";
import { expandRankRanges } from "../agent/rank-ranges.ts";
import type { ObservedWorld } from "./observer.ts";

/** Activities of a rank, indexed by their number in a position. */
const ACTIVITIES = ["idle", "computing", "running", "exited", "failed", "unknown"] as const;

/**
 * Sample of one rank. Values that are not available yet are null: rates need two samples, a step time needs two marks.
 */
export interface RankSample {
  readonly rank: number;
  readonly host: string;
  readonly pid: number;
  readonly activity: (typeof ACTIVITIES)[number];
  /** The collective that the rank executes (`running`), or that waits for the rank's computation (`computing`). */
  readonly operation: string;
  readonly description: string;
  /** The last collective that completed. */
  readonly lastOperation: string;
  readonly steps: number | null;
  readonly stepMs: number | null;
  readonly sinceStepMs: number | null;
  /** Fraction of the interval for which the rank's device waited for collectives. */
  readonly waitingShare: number | null;
  readonly sentBytesPerSecond: number | null;
  readonly receivedBytesPerSecond: number | null;
  readonly residentBytes: number | null;
  /**
   * Device memory reserved by the allocator at the end of the last step, and the peak of allocated memory, in bytes.
   */
  readonly deviceBytes: number | null;
  readonly devicePeakBytes: number | null;
}

/** Sample of all ranks of a world. */
export interface WorldSample {
  readonly world: string;
  readonly attempt: number;
  readonly size: number;
  /** The rank that the other ranks wait for; see `findSlowestRank`. */
  readonly slowestRank: number | null;
  readonly ranks: readonly RankSample[];
}

/** Sampled positions by rank. */
export type RawSample = ReadonlyMap<number, RankPosition>;

export function indexByRank(positions: readonly RankPosition[]): RawSample {
  return new Map(
    positions.flatMap((position) => [...expandRankRanges(position.ranks)].map((rank) => [rank, position] as const)),
  );
}

/**
 * Computes the values of a sample by comparison with the previous one. `previous` is undefined for the first sample.
 */
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
  // Time between the last marks of both samples. Divided by the steps between them, it is the mean step time.
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

/** Minimum difference of waiting shares between the slowest rank and the mean of the others. */
const MIN_SHARE_DIFFERENCE = 0.1;

/**
 * Returns the slowest rank (the straggler). Collectives slow all ranks down to its pace, so step times are equal,
 * but the other ranks wait for it and it waits least. Returns null if the waiting shares differ by less than a tenth.
 */
export function findSlowestRank(ranks: readonly WaitingRank[]): number | null {
  const [leastWaitingRank] = ranks
    .flatMap(({ rank, waitingShare }) => (waitingShare === null ? [] : [{ rank, waitingShare }]))
    .toSorted((a, b) => a.waitingShare - b.waitingShare);
  const othersMeanShare = leastWaitingRank && othersWaitingShare(ranks, leastWaitingRank.rank);
  if (leastWaitingRank === undefined || othersMeanShare === undefined) return null;
  return othersMeanShare - leastWaitingRank.waitingShare >= MIN_SHARE_DIFFERENCE ? leastWaitingRank.rank : null;
}

/** Returns the mean waiting share of the other ranks with a known share; undefined if there is none. */
export function othersWaitingShare(ranks: readonly WaitingRank[], excludedRank: number): number | undefined {
  const waitingShares = ranks.flatMap(({ rank, waitingShare }) =>
    rank === excludedRank || waitingShare === null ? [] : [waitingShare],
  );
  return waitingShares.length === 0
    ? undefined
    : waitingShares.reduce((sum, share) => sum + share, 0) / waitingShares.length;
}

type WaitingRank = Pick<RankSample, "rank" | "waitingShare">;
