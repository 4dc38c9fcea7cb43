import { checkArgument, expectValue, option } from "@mosaic/core";
import { meshSize } from "../symmetry/translations.ts";
import type { TrafficTotals } from "../count.ts";
import { type AttentionRecord, type RecordedRank, type RecordOptions, recordOptions, recordRanks } from "../record.ts";
import type { RankRecord } from "../symbolic/rank-record.ts";
import { isBatch, isCollective, type TapeReader } from "../symbolic/tape.ts";
import { KernelTimes } from "./kernel-time.ts";
import { maxSentTraffic } from "./predict.ts";
import { type LinkClass, linkClass, linkClasses, parseProfile, type Profile } from "./profile.ts";

/** A prediction from a few ranks: the maxima of their times, traffic and memory. */
export interface Estimate {
  readonly seconds: number;
  readonly forwardSeconds: number;
  readonly computeSeconds: number;
  readonly exposedCommunicationSeconds: number;
  readonly sent: Readonly<Record<LinkClass, TrafficTotals>>;
  readonly peakBytes: number;
  /** Number of events on a rank's tape, which determines the cost of simulating it. */
  readonly events: number;
}

/**
 * Returns a rough prediction, hundreds of times cheaper than `predict` on hundreds of ranks. It records some ranks
 * (by default the first, the middle and the last) and times each as if its peers kept pace with it and all ranks did
 * the same. Bytes and memory of these ranks are exact.
 *
 * @example
 * ```ts
 * import { local } from "@mosaic/core";
 * import { profiles, estimate } from "@mosaic/planner";
 * const call = { backend: local(), mesh: { dp: 1024 }, tokens: 1000, numHeads: 8, headDim: 64 };
 * estimate(call, profiles["h100-ib400"]).sent["inter-node"].bytes; // => 0
 * ```
 */
export function estimate(options: RecordOptions, profile: Profile, ranks?: readonly number[]): Estimate {
  const parsedProfile = parseProfile(profile);
  const { mesh } = recordOptions.parse(options, "estimate");
  if (ranks !== undefined) {
    checkArgument("estimate: ranks", ranks, rankListOption);
    expectValue("estimate: ranks", ranks.length > 0, "at least one rank", ranks);
  }
  const size = meshSize(mesh);
  const record = recordRanks("estimate", options, ranks ?? [...new Set([0, size >> 1, size - 1])]);
  const kernelTimes = new KernelTimes(parsedProfile, record.interned);
  const context = { profile: parsedProfile, times: kernelTimes, record, rates: sharedRates(parsedProfile, size) };
  const allRankTimes = record.ranks.map((recordedRank) => estimateRankTimes(recordedRank, context));
  const maxOverRanks = (select: (timesOfRank: RankTimes) => number): number => Math.max(...allRankTimes.map(select));
  return {
    seconds: maxOverRanks(({ seconds }) => seconds),
    forwardSeconds: maxOverRanks(({ forwardSeconds }) => forwardSeconds),
    computeSeconds: maxOverRanks(({ computeSeconds }) => computeSeconds),
    exposedCommunicationSeconds: maxOverRanks(({ exposedSeconds }) => exposedSeconds),
    sent: maxSentTraffic(record, parsedProfile),
    peakBytes: Math.max(...record.ranks.map(({ peakBytes }) => peakBytes)),
    events: maxOverRanks(({ events }) => events),
  };
}

const rankListOption = option.array(option.integer({ min: 0 }));

interface RankTimes {
  seconds: number;
  forwardSeconds: number;
  computeSeconds: number;
  exposedSeconds: number;
  events: number;
}

interface EstimateContext {
  readonly profile: Profile;
  readonly times: KernelTimes;
  readonly record: AttentionRecord;
  readonly rates: KernelRates;
}

/** Times the streams of one rank as `simulate` does, but without peers. */
function estimateRankTimes({ tape }: RecordedRank, context: EstimateContext): RankTimes {
  const { profile, times, rates } = context;
  const { strings } = context.record.interned;
  const totals = { seconds: 0, forwardSeconds: 0, computeSeconds: 0, exposedSeconds: 0, events: 0 };
  const endTimeByWorkId = new Map<number, number>();
  const freeTimeByChannel = new Map<number, number>();
  let [enqueuedTime, lastTransferEnd] = [profile.stepOverhead ?? 0, 0];
  const event = tape.read();
  while (event.next()) {
    totals.events++;
    if (event.op === "empty" || event.op === "free") continue;
    if (event.op === "mark") {
      if (strings[event.arg(0)] === "backward") totals.forwardSeconds = totals.seconds;
      continue;
    }
    enqueuedTime += profile.enqueue;
    totals.seconds = Math.max(totals.seconds, enqueuedTime);
    if (event.op === "wait") {
      const { wait = 0 } = profile.cores ?? {};
      const waitSeconds = Math.max(0, endTimeByWorkId.get(event.arg(0))! - totals.seconds) + wait;
      totals.exposedSeconds += waitSeconds;
      totals.seconds += waitSeconds;
    } else if (isCollective(event.op)) {
      const channel = profile.channels === "group" ? event.arg(1) : -1;
      const end = Math.max(freeTimeByChannel.get(channel) ?? 0, totals.seconds) + transferSeconds(event, tape, context);
      freeTimeByChannel.set(channel, end);
      endTimeByWorkId.set(event.arg(0), end);
      lastTransferEnd = Math.max(lastTransferEnd, end);
    } else {
      const kernelSeconds = times.seconds(event, tape);
      const overlappedSeconds = Math.min(
        kernelSeconds / rates.overlappedRate,
        Math.max(0, lastTransferEnd - totals.seconds),
      );
      const elapsedSeconds =
        overlappedSeconds + (kernelSeconds - overlappedSeconds * rates.overlappedRate) / rates.exclusiveRate;
      totals.computeSeconds += elapsedSeconds;
      totals.seconds += elapsedSeconds;
    }
  }
  return totals;
}

/** Rates of kernels alone, of kernels during a transfer, and of transfers, if every rank of the node does the same. */
interface KernelRates {
  readonly exclusiveRate: number;
  readonly overlappedRate: number;
  readonly transferRate: number;
}

function sharedRates({ cores, communicationTax, ranksPerNode }: Profile, size: number): KernelRates {
  const ranksPerHost = Math.min(size, ranksPerNode);
  const coreShare = (busyThreads: number): number => (cores ? Math.min(1, cores.perNode / busyThreads) : 1);
  const { efficiency = 1 } = cores ?? {};
  return {
    exclusiveRate: efficiency * coreShare(ranksPerHost),
    overlappedRate: (1 - communicationTax) * efficiency * coreShare(2 * ranksPerHost),
    transferRate: coreShare(2 * ranksPerHost),
  };
}

function transferSeconds(event: TapeReader, tape: RankRecord, { profile, rates, record }: EstimateContext): number {
  const bytes = countLinkBytes(event, tape, { profile, record });
  let seconds = 0;
  for (const kind of linkClasses) {
    const { sent, received, messages } = bytes[kind];
    if (messages === 0) continue;
    const { latency, bandwidth, duplex, sharedBy } = profile.links[kind];
    const speed = (bandwidth * rates.transferRate) / Math.min(sharedBy, profile.ranksPerNode);
    seconds = Math.max(seconds, latency + (duplex ? Math.max(sent, received) : sent + received) / speed);
  }
  return seconds;
}

type LinkBytes = Record<LinkClass, { sent: number; received: number; messages: number }>;

/**
 * Counts the bytes that an event moves over each class of links. A collective counts as a whole, over the farthest link
 * of its group.
 */
function countLinkBytes(
  event: TapeReader,
  { rank, viewBytes }: RankRecord,
  { profile, record }: Pick<EstimateContext, "profile" | "record">,
): LinkBytes {
  const createLinkTotals = () => ({ sent: 0, received: 0, messages: 0 });
  const bytes: LinkBytes = {
    self: createLinkTotals(),
    "intra-node": createLinkTotals(),
    "inter-node": createLinkTotals(),
  };
  const viewSize = (view: number): number => (view < 0 ? 0 : viewBytes[view]!);
  if (isBatch(event.op)) {
    for (let i = 3; i < event.count; i += 3) {
      const linkTotals = bytes[linkClass(profile, rank, event.arg(i))];
      linkTotals.messages++;
      if (event.arg(i + 1) === 1) linkTotals.sent += viewSize(event.arg(i + 2));
      else linkTotals.received += viewSize(event.arg(i + 2));
    }
    return bytes;
  }
  const { ranks } = record.groups[event.arg(1)]!;
  const hasInterNodeLink = ranks.some((other) => linkClass(profile, rank, other) === "inter-node");
  const groupTotals = bytes[hasInterNodeLink ? "inter-node" : "intra-node"];
  groupTotals.messages = 1;
  groupTotals.sent = viewSize(event.arg(5));
  groupTotals.received = viewSize(event.arg(4));
  return bytes;
}
