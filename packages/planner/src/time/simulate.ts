import { defineOptions, option, OptionError, type OptionsOf } from "@mosaic/core";
import { preservesNodes } from "../symmetry/translations.ts";
import { type AttentionRecord, checkRecord, type RecordedRank } from "../record.ts";
import { isCollective, type TapeReader } from "../symbolic/tape.ts";
import { countOperations, HostThread, type HostCosts, isEnqueuedOp } from "./host.ts";
import { KernelTimes } from "./kernel-time.ts";
import { MachineSimulator } from "./machine.ts";
import { parseProfile, type Profile } from "./profile.ts";
import {
  PostedCollective,
  type MessageFlow,
  type RunningCollective,
  createSimulationError,
  SimulatedStreams,
} from "./streams.ts";
import type { MemorySample, TimelineEvent, RankTimeline, Timeline } from "./timeline.ts";

/** One rank of a simulation, with its times in seconds. */
export interface SimulatedRank extends RankTimeline {
  /** In order of their starts. Empty unless `keep` selects the rank. */
  readonly events: readonly TimelineEvent[];
  /**
   * Samples at each allocation and release, in the order of the compute stream. Absent unless `keep` selects the rank.
   */
  readonly memory?: readonly MemorySample[];
  /** When its forward ended. `seconds` is when the rank ended. */
  readonly forwardSeconds: number;
  readonly seconds: number;
  /** Total time of its kernels, which run one after the other. */
  readonly computeSeconds: number;
  /** Time in which its compute waited for a collective: transfers that nothing hid, and ranks that were late. */
  readonly exposedCommunicationSeconds: number;
}

/** A predicted timeline, with its totals. */
export interface Simulation extends Timeline {
  readonly ranks: readonly SimulatedRank[];
  /** When the last rank ended its forward. `backwardSeconds` is the rest of `seconds`. */
  readonly forwardSeconds: number;
  readonly backwardSeconds: number;
  /** Maximum time of any rank's kernels, and maximum time that any rank waited for collectives. */
  readonly computeSeconds: number;
  readonly exposedCommunicationSeconds: number;
}

export const simulateOptions = defineOptions("simulate", {
  /**
   * Whether a rank's events are kept. Each takes memory, and a thousand ranks have millions. Default: those of all
   * ranks.
   */
  keep: option.custom("a function", option.isFunction<(rank: number) => boolean>, { optional: true }),
});
/** Options of `simulate`. */
export type SimulateOptions = OptionsOf<typeof simulateOptions>;

/**
 * Predicts what each rank does over time, by replaying a record on the machine that a profile describes. Every rank
 * has a host, which enqueues operations; a compute stream, which runs kernels in order; and a communication stream,
 * which runs collectives in order, each after compute has reached the point where it was posted. A message is
 * transferred when both sides have reached it.
 *
 * @example
 * ```ts
 * import { local } from "@mosaic/core";
 * import { profiles, record, simulate } from "@mosaic/planner";
 * const run = record({ backend: local(), mesh: { dp: 2 }, tokens: 8192, numHeads: 16, headDim: 128 });
 * const { seconds, exposedCommunicationSeconds, ranks } = simulate(run, profiles["h100-ib400"]);
 * exposedCommunicationSeconds; // => 0
 * seconds > 0.002 && seconds < 0.005; // => true
 * ranks[1]!.events.filter(({ name }) => name === "attend").length; // => 1
 * ```
 * @throws MosaicError if the record cannot run to its end, or an OptionError that names what is missing in the
 * profile.
 */
export function simulate(record: AttentionRecord, profile: Profile, options?: SimulateOptions): Simulation {
  checkRecord("simulate", record);
  const { keep = () => true } = simulateOptions.parse(options);
  const parsedProfile = parseProfile(profile);
  checkNodes(record, parsedProfile);
  const machine = new MachineSimulator(parsedProfile, record.ranks.length);
  const kernelTimes = new KernelTimes(parsedProfile, record.interned);
  const streams = new SimulatedStreams(record, parsedProfile, machine, (batch) =>
    computeStreams[batch.index]!.onCollectiveDone(batch),
  );
  const computeStreams = record.ranks.map((recordedRank, index) => {
    const keepEvents = keep(recordedRank.tape.rank);
    return new ComputeStream(record, recordedRank, {
      index,
      machine,
      kernelTimes,
      streams,
      hostCosts: parsedProfile,
      waitSeconds: parsedProfile.cores?.wait ?? 0,
      keepEvents,
    });
  });
  for (const computeStream of computeStreams) computeStream.resume();
  for (let activity = machine.next(); activity; activity = machine.next()) {
    if (activity.kind === "compute") computeStreams[activity.rank]!.onKernelDone();
    else if (activity.kind === "host") computeStreams[activity.rank]!.onHostReady();
    else if (activity.owner instanceof ComputeStream) activity.owner.onWaitDone();
    else if ("members" in (activity.owner as MessageFlow | RunningCollective))
      streams.endTransfer(activity.owner as RunningCollective);
    else streams.onFlowDone(activity.owner as MessageFlow);
  }
  const waitingStream = computeStreams.find(({ hasEnded }) => !hasEnded);
  if (waitingStream) {
    const blockedCollectives = [...streams.activeCollectives()]
      .slice(0, 3)
      .map(({ rank, label, workId: work }) => `rank ${rank} waits in ${label} #${work}`);
    throw createSimulationError(
      blockedCollectives.join("; ") || `rank ${waitingStream.rank} waits for a collective that it has not posted`,
    );
  }
  return summarize(computeStreams.map((computeStream) => computeStream.result()));
}

/** Checks that ranks of one class are also equivalent on the machine. */
function checkNodes({ classes }: AttentionRecord, { name, ranksPerNode }: Profile): void {
  if (preservesNodes(classes, ranksPerNode)) return;
  throw new OptionError({
    where: "simulate",
    expected: `equivalence classes of ranks with the same local rank, for ${ranksPerNode} ranks per node as in profile ${name}`,
    received: `equivalence classes that mix local ranks: ${classes.classes} classes of ${classes.order} ranks`,
    remedy: `call recordRepresentatives(options, { ranksPerNode: ${ranksPerNode} })`,
  });
}

function summarize(ranks: readonly SimulatedRank[]): Simulation {
  const maxOverRanks = (select: (rank: SimulatedRank) => number): number =>
    ranks.reduce((max, rank) => Math.max(max, select(rank)), 0);
  const seconds = maxOverRanks((rank) => rank.seconds);
  const forwardSeconds = maxOverRanks((rank) => rank.forwardSeconds);
  return {
    seconds,
    ranks,
    forwardSeconds,
    backwardSeconds: seconds - forwardSeconds,
    computeSeconds: maxOverRanks(({ computeSeconds }) => computeSeconds),
    exposedCommunicationSeconds: maxOverRanks(({ exposedCommunicationSeconds }) => exposedCommunicationSeconds),
  };
}

interface SimulationContext {
  /** Index of the rank in the record. */
  readonly index: number;
  readonly machine: MachineSimulator;
  readonly kernelTimes: KernelTimes;
  readonly streams: SimulatedStreams;
  readonly hostCosts: HostCosts;
  /** Additional seconds of a wait for a collective. */
  readonly waitSeconds: number;
  readonly keepEvents: boolean;
}

/** The compute stream of one rank, which runs the operations of its tape. */
class ComputeStream {
  readonly rank: number;
  readonly #record: AttentionRecord;
  readonly #recordedRank: RecordedRank;
  readonly #context: SimulationContext;
  readonly #reader: TapeReader;
  readonly #finishedWorkIds = new Set<number>();
  readonly #events: TimelineEvent[] = [];
  readonly #memory: MemorySample[] = [];
  #allocatedBytes = 0;
  /** The collective that it waits for, and since when. */
  #awaitedWorkId: number | undefined;
  #waitStart = 0;
  readonly #host: HostThread;
  /** Number of operations reached, and whether the last one is still to be run. */
  #numOperations = 0;
  #isEventPending = false;
  #forwardEnd = 0;
  #endTime = 0;
  #computeSeconds = 0;
  #exposedSeconds = 0;
  #hasEnded = false;

  constructor(record: AttentionRecord, recordedRank: RecordedRank, context: SimulationContext) {
    this.rank = recordedRank.tape.rank;
    this.#record = record;
    this.#recordedRank = recordedRank;
    this.#context = context;
    this.#reader = recordedRank.tape.read();
    this.#host = new HostThread(context.machine, context.index, countOperations(recordedRank), context.hostCosts);
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Continues until it waits for a kernel, a collective or the host, or until the end. */
  resume(): void {
    while (!this.#hasEnded && this.#awaitedWorkId === undefined) {
      if (!this.#isEventPending && !this.#readEvent()) return;
      if (!this.#isEventPending) continue;
      if (!this.#host.hasEnqueued(this.#numOperations)) return;
      this.#isEventPending = false;
      if (this.#runEvent()) return;
    }
  }

  /** Called when the host has enqueued the operation that compute waits for, or has ended. */
  onHostReady(): void {
    this.#host.onActivityDone();
    if (this.#isEventPending) this.resume();
  }

  /** Called when the running kernel is done. */
  onKernelDone(): void {
    const { now } = this.#context.machine;
    this.#computeSeconds += now - this.#waitStart;
    if (this.#context.keepEvents && now > this.#waitStart) {
      this.#events.push({ lane: "compute", name: this.#kernelName(), start: this.#waitStart, end: now });
    }
    this.resume();
  }

  onCollectiveDone(batch: PostedCollective): void {
    const { now } = this.#context.machine;
    if (this.#context.keepEvents) {
      const { op: name, start, label, bytesSent, bytesReceived } = batch;
      this.#events.push({ lane: "communication", name, start, end: now, label, bytesSent, bytesReceived });
    }
    if (this.#awaitedWorkId !== batch.workId) {
      this.#finishedWorkIds.add(batch.workId);
      return;
    }
    this.#endWait();
  }

  /** Called when the threads of the rank are scheduled again after a wait. */
  onWaitDone(): void {
    this.#awaitedWorkId = undefined;
    this.#exposedSeconds += this.#context.machine.now - this.#waitStart;
    this.resume();
  }

  result(): SimulatedRank {
    return {
      rank: this.rank,
      at: this.#recordedRank.at,
      events: this.#events.toSorted((a, b) => a.start - b.start),
      ...(this.#context.keepEvents && { memory: this.#memory }),
      forwardSeconds: this.#forwardEnd,
      seconds: this.#endTime,
      computeSeconds: this.#computeSeconds,
      exposedCommunicationSeconds: this.#exposedSeconds,
    };
  }

  /** Advances to the next event. Returns false at the end of the tape. */
  #readEvent(): boolean {
    const event = this.#reader;
    if (!event.next()) return false;
    if (event.op === "empty" || event.op === "free") this.#adjustAllocated(event.op === "empty" ? 1 : -1, event.arg(0));
    if (event.op !== "mark" && !isEnqueuedOp(event.op)) return true;
    if (event.op === "mark") {
      this.#beginPhase(this.#record.interned.strings[event.arg(0)]!);
      return true;
    }
    this.#numOperations++;
    this.#isEventPending = true;
    return true;
  }

  /** Updates the allocated bytes in stream order. Of several changes at one time, the maximum and the last are kept. */
  #adjustAllocated(sign: 1 | -1, storage: number): void {
    if (!this.#context.keepEvents) return;
    this.#allocatedBytes += sign * this.#recordedRank.tape.storageBytes[storage]!;
    const { now: time } = this.#context.machine;
    const [secondLastSample, lastSample] = [this.#memory.at(-2), this.#memory.at(-1)];
    if (secondLastSample?.time === time) {
      if (lastSample!.bytes > secondLastSample.bytes) this.#memory[this.#memory.length - 2] = lastSample!;
      this.#memory.pop();
    }
    this.#memory.push({ time, bytes: this.#allocatedBytes });
  }

  #beginPhase(phase: string): void {
    const { now } = this.#context.machine;
    if (phase === "backward") this.#forwardEnd = now;
    if (phase !== "end") return;
    this.#endTime = now;
    this.#hasEnded = true;
  }

  /** Runs the current event. Returns true if it takes time. */
  #runEvent(): boolean {
    const { index, machine, streams, kernelTimes: times } = this.#context;
    const event = this.#reader;
    if (isCollective(event.op)) {
      streams.post(index, event);
      return false;
    }
    const isDone = event.op === "wait" && this.#finishedWorkIds.delete(event.arg(0));
    if (isDone && this.#context.waitSeconds === 0) return false;
    this.#waitStart = machine.now;
    if (event.op === "wait") this.#awaitedWorkId = event.arg(0);
    else machine.startKernel(index, times.seconds(event, this.#recordedRank.tape));
    if (isDone) this.#endWait();
    return true;
  }

  /** Ends the wait for a collective, after the additional wait. */
  #endWait(): void {
    const { machine, index, waitSeconds: wait } = this.#context;
    if (wait > 0) machine.startTimer(index, machine.now + wait, this);
    else this.onWaitDone();
  }

  #kernelName(): string {
    const { op } = this.#reader;
    if (op === "compute") return this.#record.interned.strings[this.#reader.arg(0)]!;
    // The name that devices use in their traces.
    return op === "add" ? "binary" : op;
  }
}
