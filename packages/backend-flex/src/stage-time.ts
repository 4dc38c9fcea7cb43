import { defineOptions, option, type OptionsOf } from "@mosaic/core";

// Predicts the time of a pass. Each rank is modeled as a host that enqueues, a compute stream, a communication stream
// whose transfers start in order, and a port in each direction. `createStageSchedule` compares schedules by this
// prediction.

/** The number of buffers between which the stages of `stages.ts` alternate: those that are posted at a time. */
export const NUM_BUFFERS = 2;

const nonNegativeRange = { min: 0 } as const;
const positiveRange = { above: 0 } as const;

export const stageCostOptions = defineOptions("StageCost", {
  /** Seconds before the first byte of a transfer is moved. Default: 0.00002. */
  latency: option.number({ ...nonNegativeRange, default: 20e-6 }),
  /**
   * Bytes per second that a rank receives or sends. The default corresponds to a port of 400 Gbit/s. Default:
   * 50000000000.
   */
  bandwidth: option.number({ ...positiveRange, default: 50e9 }),
  /** Latency, in seconds, between ranks of the same host if there are several hosts. Default: 0.000012. */
  localLatency: option.number({ ...nonNegativeRange, default: 12e-6 }),
  /**
   * Bytes per second between ranks of the same host if there are several hosts. The default corresponds to NVLink.
   * Default: 376000000000.
   */
  localBandwidth: option.number({ ...positiveRange, default: 376e9 }),
  /** Fixed seconds per kernel. Default: 0.000001. */
  launch: option.number({ ...nonNegativeRange, default: 1e-6 }),
  /** Seconds that the host takes to enqueue an operation. Default: 0.00001. */
  enqueue: option.number({ ...nonNegativeRange, default: 10e-6 }),
  /**
   * Floating-point operations per second of the attention kernel on many keys. The default corresponds to
   * FlashAttention-3 on an H100. Default: 680000000000000.
   */
  flops: option.number({ ...positiveRange, default: 680e12 }),
  /** Floating-point operations per second of the backward kernel on many keys. Default: 600000000000000. */
  backwardFlops: option.number({ ...positiveRange, default: 600e12 }),
  /** Number of keys per call at which the attention kernel runs at half its speed. Default: 160. */
  halfSpeedKeys: option.number({ ...nonNegativeRange, default: 160 }),
  /** Number of keys per call at which the backward kernel runs at half its speed. Default: 330. */
  backwardHalfSpeedKeys: option.number({ ...nonNegativeRange, default: 330 }),
  /**
   * Factor by which both kernels are slower on received rows, of which the heads are adjacent in memory. Default: 1.
   */
  interleaved: option.number({ ...positiveRange, default: 1 }),
  /** Bytes per second, read plus written, of copies and sums. Default: 2570000000000. */
  memoryBandwidth: option.number({ ...positiveRange, default: 2.57e12 }),
});
/** The cost model by which `flex` chooses stages. It must be equal on all ranks. */
export type StageCost = OptionsOf<typeof stageCostOptions>;
export type ResolvedStageCost = ReturnType<typeof stageCostOptions.parse>;

/** The rows that one rank receives from one peer. */
export interface PeerRows {
  readonly owner: number;
  readonly rows: number;
  /** The number of ranges that contain the rows in the owner's shard. */
  readonly ranges: number;
  /** The number of visible pairs of the receiver's queries and these rows. */
  readonly pairs: number;
}

/** The load of one rank in one attention call. */
export interface RankLoad {
  /** Visible pairs of its queries with local rows and with remote rows. */
  readonly ownPairs: number;
  readonly remotePairs: number;
  readonly queries: number;
  /** The received rows by peer, in receiving order. */
  readonly peers: readonly PeerRows[];
  /** The number of received rows: the sum over `peers`. */
  readonly rows: number;
}

/** Bytes and arithmetic of one pass, forward or backward. */
export interface PassSize {
  /** Bytes of a row of keys and values. */
  readonly groupCastRowBytes: number;
  /** Bytes of a row of gradients of keys and values; 0 in forward. */
  readonly groupReduceRowBytes: number;
  /** Floating-point operations per visible pair, over batch and heads. */
  readonly pairFlops: number;
}

/** The division of a pass into stages. It is the same on all ranks except for the numbers of rows. */
export interface StageSchedule {
  /** Number of remote stages. 0: one call computes local and remote rows after all remote rows have been received. */
  readonly degree: number;
  /** Whether the local rows are attended to in two parts, the second of which overlaps with the last reduction. */
  readonly isSplit: boolean;
  /** By rank: the share of its remote rows before each stage, followed by the share at the end of the last stage. */
  readonly cuts: readonly (readonly number[])[];
  /** By rank: the share of the local rows that is attended to first. */
  readonly ownCuts: readonly number[];
}

/** The inputs of a prediction: the loads of ranks, the sizes of the pass, and the cost model. */
export interface PassProblem {
  readonly loads: readonly RankLoad[];
  readonly size: PassSize;
  readonly cost: ResolvedStageCost;
  /** The host of each rank; undefined unless there are several hosts and ranks share one. */
  readonly hosts: readonly number[] | undefined;
}

/** Kernel times of a pass, in seconds. */
export class KernelModel {
  readonly #size: PassSize;
  readonly #cost: ResolvedStageCost;
  readonly #flopsPerSecond: number;
  readonly #halfSpeedKeys: number;

  constructor({ size, cost }: Pick<PassProblem, "size" | "cost">) {
    this.#size = size;
    this.#cost = cost;
    const isForward = size.groupReduceRowBytes === 0;
    this.#flopsPerSecond = isForward ? cost.flops : cost.backwardFlops;
    this.#halfSpeedKeys = isForward ? cost.halfSpeedKeys : cost.backwardHalfSpeedKeys;
  }

  /**
   * Returns the time of one call over all queries, with local or with received rows; 0 if there are no visible pairs,
   * because then no call is made.
   */
  attentionSeconds(rows: "local" | "received", pairs: number, queries: number): number {
    if (pairs <= 0) return 0;
    const { launch, interleaved } = this.#cost;
    const factor = rows === "received" ? interleaved : 1;
    return launch + (factor * (pairs + this.#halfSpeedKeys * queries) * this.#size.pairFlops) / this.#flopsPerSecond;
  }

  /** Returns the time of kernels that only move memory. */
  memorySeconds(operations: number, bytes: number): number {
    return operations * this.#cost.launch + bytes / this.#cost.memoryBandwidth;
  }
}

/** The rows of one stage by flow (a sender and a receiver), and the load of each rank's ports and kernels. */
class StageRows {
  /** By flow: the sender, the receiver, and the number of rows. */
  senders: Int32Array = new Int32Array(0);
  receivers: Int32Array = new Int32Array(0);
  rows: Float64Array = new Float64Array(0);
  readonly receivedRows: Float64Array;
  readonly pairs: Float64Array;
  readonly sentRows: Float64Array;
  readonly sourceCounts: Int32Array;
  readonly targetCounts: Int32Array;
  /** Rows and ranges of flows with several ranges, which must be packed before they are sent. */
  readonly packedRows: Float64Array;
  readonly packedRanges: Float64Array;
  /** The number of ranges to which returned gradients are added. */
  readonly addedRanges: Float64Array;

  constructor(ranks: number) {
    this.receivedRows = new Float64Array(ranks);
    this.pairs = new Float64Array(ranks);
    this.sentRows = new Float64Array(ranks);
    this.sourceCounts = new Int32Array(ranks);
    this.targetCounts = new Int32Array(ranks);
    this.packedRows = new Float64Array(ranks);
    this.packedRanges = new Float64Array(ranks);
    this.addedRanges = new Float64Array(ranks);
  }

  // oxlint-disable-next-line max-params -- a flow: from which rank to which, how many rows, in how many ranges
  addFlow(sender: number, receiver: number, rows: number, ranges: number): void {
    this.receivedRows[receiver]! += rows;
    this.sentRows[sender]! += rows;
    this.sourceCounts[receiver]!++;
    this.targetCounts[sender]!++;
    this.addedRanges[sender]! += ranges;
    if (ranges <= 1) return;
    this.packedRanges[sender]! += ranges;
    this.packedRows[sender]! += rows;
  }
}

/**
 * The rows that all ranks receive, stored by column because 1 024 ranks may have a million pairs that exchange rows.
 */
export class PeerColumns {
  /** The index of the first peer of each rank, followed by the total number of peers. */
  readonly starts: Int32Array;
  readonly owners: Int32Array;
  readonly rows: Float64Array;
  readonly ranges: Float64Array;
  readonly pairs: Float64Array;
  /** By rank: the total number of received rows. */
  readonly receivedRows: Float64Array;

  constructor(loads: readonly RankLoad[]) {
    const count = loads.reduce((sum, load) => sum + load.peers.length, 0);
    this.starts = new Int32Array(loads.length + 1);
    this.owners = new Int32Array(count);
    [this.rows, this.ranges, this.pairs] = [new Float64Array(count), new Float64Array(count), new Float64Array(count)];
    this.receivedRows = Float64Array.from(loads, (load) => load.rows);
    let index = 0;
    for (const [rank, { peers }] of loads.entries()) {
      for (const { owner, rows, ranges, pairs } of peers) {
        this.owners[index] = owner;
        this.rows[index] = rows;
        this.ranges[index] = ranges;
        this.pairs[index++] = pairs;
      }
      this.starts[rank + 1] = index;
    }
  }

  get ranks(): number {
    return this.receivedRows.length;
  }
}

/** Splits the received rows of all ranks into stages, one stage at a time. */
class StageSplitter {
  readonly #peers: PeerColumns;
  readonly #senders: Int32Array;
  readonly #receivers: Int32Array;
  readonly #rows: Float64Array;
  #numFlows = 0;
  /** By rank: the peer whose rows are next, and how many of its rows, and of all rows, are in earlier stages. */
  readonly #nextPeerByRank: Int32Array;
  readonly #peerRowsTaken: Float64Array;
  readonly #rowsTaken: Float64Array;

  constructor(peers: PeerColumns, stages: number) {
    // The end of a stage splits the rows of at most one peer per rank into two flows.
    const maxFlows = peers.owners.length + peers.ranks * (stages - 1);
    this.#peers = peers;
    [this.#senders, this.#receivers, this.#rows] = [
      new Int32Array(maxFlows),
      new Int32Array(maxFlows),
      new Float64Array(maxFlows),
    ];
    this.#nextPeerByRank = peers.starts.slice();
    [this.#peerRowsTaken, this.#rowsTaken] = [new Float64Array(peers.ranks), new Float64Array(peers.ranks)];
  }

  /** Returns the next stage: for each rank, the remaining rows before `getEnd(rank)`. */
  takeStage(getEnd: (rank: number) => number): StageRows {
    const { ranks } = this.#peers;
    const stage = new StageRows(ranks);
    const firstFlow = this.#numFlows;
    for (let rank = 0; rank < ranks; rank++) this.#takeRows(stage, rank, getEnd(rank));
    stage.senders = this.#senders.subarray(firstFlow, this.#numFlows);
    stage.receivers = this.#receivers.subarray(firstFlow, this.#numFlows);
    stage.rows = this.#rows.subarray(firstFlow, this.#numFlows);
    return stage;
  }

  #takeRows(stage: StageRows, rank: number, end: number): void {
    const { starts, owners, rows, ranges, pairs } = this.#peers;
    const endPeer = starts[rank + 1]!;
    let [peer, takenPeerRows, totalTakenRows] = [
      this.#nextPeerByRank[rank]!,
      this.#peerRowsTaken[rank]!,
      this.#rowsTaken[rank]!,
    ];
    while (totalTakenRows < end && peer < endPeer) {
      const peerRows = rows[peer]!;
      const takenRows = Math.min(peerRows - takenPeerRows, end - totalTakenRows);
      if (takenRows > 0) {
        stage.addFlow(owners[peer]!, rank, takenRows, Math.max(1, Math.ceil((ranges[peer]! * takenRows) / peerRows)));
        stage.pairs[rank]! += (pairs[peer]! * takenRows) / peerRows;
        this.#senders[this.#numFlows] = owners[peer]!;
        this.#receivers[this.#numFlows] = rank;
        this.#rows[this.#numFlows++] = takenRows;
      }
      totalTakenRows += takenRows;
      takenPeerRows += takenRows;
      if (takenPeerRows < peerRows) continue;
      peer++;
      takenPeerRows = 0;
    }
    this.#nextPeerByRank[rank] = peer;
    this.#peerRowsTaken[rank] = takenPeerRows;
    this.#rowsTaken[rank] = totalTakenRows;
  }
}

/** Splits the received rows of all ranks into stages at the shares of a schedule. */
export function splitIntoStages(
  peers: PeerColumns,
  { degree, cuts }: Pick<StageSchedule, "degree" | "cuts">,
): readonly StageRows[] {
  const numStages = Math.max(1, degree);
  const splitter = new StageSplitter(peers, numStages);
  return Array.from({ length: numStages }, (_, stage) => {
    const getCut = (rank: number): number => (stage === numStages - 1 ? 1 : cuts[rank]![stage + 1]!);
    return splitter.takeStage((rank) => Math.round(getCut(rank) * peers.receivedRows[rank]!));
  });
}

/** Predicts the seconds of a pass on its slowest rank. `rows` are the rows of the schedule's stages. */
export function predictPassSeconds(
  problem: PassProblem,
  schedule: StageSchedule,
  rows: readonly StageRows[] = splitIntoStages(new PeerColumns(problem.loads), schedule),
): number {
  return new PassSimulation(problem, schedule, rows).run();
}

class PassSimulation {
  readonly #problem: PassProblem;
  readonly #schedule: StageSchedule;
  readonly #stages: readonly StageRows[];
  readonly #kernels: KernelModel;
  /**
   * By rank: the times at which its host, compute stream and communication stream complete the work enqueued so far.
   */
  readonly #hostEndTimes: Float64Array;
  readonly #computeEndTimes: Float64Array;
  readonly #communicationEndTimes: Float64Array;

  constructor(problem: PassProblem, schedule: StageSchedule, stages: readonly StageRows[]) {
    this.#problem = problem;
    this.#schedule = schedule;
    this.#stages = stages;
    this.#kernels = new KernelModel(problem);
    const zeros = (): Float64Array => new Float64Array(problem.loads.length);
    [this.#hostEndTimes, this.#computeEndTimes, this.#communicationEndTimes] = [zeros(), zeros(), zeros()];
  }

  run(): number {
    const { degree, isSplit } = this.#schedule;
    const isBackward = this.#problem.size.groupReduceRowBytes > 0;
    const arrivalTimes: Float64Array[] = [];
    let returningStage: { readonly stage: number; readonly endTimes: Float64Array } | undefined;
    const numSteps = degree === 0 ? 1 : 1 + degree + (isSplit ? 1 : 0);
    for (let step = 0; step < numSteps; step++) {
      const stage = degree === 0 ? 0 : step - 1;
      const hasRemoteRows = stage >= 0 && stage < Math.max(1, degree);
      const numPosted = Math.min(this.#stages.length, Math.max(stage, 0) + NUM_BUFFERS);
      while (arrivalTimes.length < numPosted) arrivalTimes.push(this.#groupCast(arrivalTimes.length));
      if (hasRemoteRows) this.#waitForTransfer(arrivalTimes[stage]!);
      this.#attend(step, hasRemoteRows ? stage : undefined);
      if (!isBackward) continue;
      if (returningStage && hasRemoteRows) returningStage = this.#addReturnedRows(returningStage);
      if (hasRemoteRows) returningStage = { stage, endTimes: this.#reduce(stage) };
    }
    if (returningStage) this.#addReturnedRows(returningStage);
    return this.#computeEndTimes.reduce((max, seconds) => Math.max(max, seconds), 0);
  }

  /** Packs and posts the keys of a stage. Returns the time at which each rank has received them. */
  #groupCast(index: number): Float64Array {
    const stage = this.#stages[index]!;
    const { groupCastRowBytes } = this.#problem.size;
    for (let rank = 0; rank < this.#hostEndTimes.length; rank++) {
      const operations = 2 * stage.packedRanges[rank]!;
      this.#enqueue(
        rank,
        operations,
        this.#kernels.memorySeconds(operations, 2 * groupCastRowBytes * stage.packedRows[rank]!),
      );
    }
    return this.#transfer(stage, stage.senders, stage.receivers, groupCastRowBytes);
  }

  #reduce(index: number): Float64Array {
    const stage = this.#stages[index]!;
    return this.#transfer(stage, stage.receivers, stage.senders, this.#problem.size.groupReduceRowBytes);
  }

  /** Waits for the returned gradients of a stage and adds them, on every owner. */
  #addReturnedRows({ stage, endTimes }: { readonly stage: number; readonly endTimes: Float64Array }): undefined {
    this.#waitForTransfer(endTimes);
    const { addedRanges, sentRows } = this.#stages[stage]!;
    const bytes = 3 * this.#problem.size.groupReduceRowBytes;
    for (let rank = 0; rank < endTimes.length; rank++) {
      this.#enqueue(
        rank,
        2 * addedRanges[rank]!,
        this.#kernels.memorySeconds(2 * addedRanges[rank]!, bytes * sentRows[rank]!),
      );
    }
    return undefined;
  }

  #attend(step: number, stage: number | undefined): void {
    const { degree, isSplit, ownCuts } = this.#schedule;
    const { loads, size } = this.#problem;
    for (const [rank, load] of loads.entries()) {
      const numReceivedRows = stage === undefined ? 0 : this.#stages[stage]!.receivedRows[rank]!;
      const ownShare = step === 0 ? (isSplit ? ownCuts[rank]! : 1) : stage === undefined ? 1 - ownCuts[rank]! : 0;
      const pairs = load.ownPairs * ownShare + (stage === undefined ? 0 : this.#stages[stage]!.pairs[rank]!);
      const copiedBytes =
        degree === 0
          ? 2 * size.groupCastRowBytes * numReceivedRows + 3 * size.groupReduceRowBytes * numReceivedRows
          : 0;
      const clearedBytes = numReceivedRows * size.groupReduceRowBytes;
      const operations = (numReceivedRows > 0 && size.groupReduceRowBytes > 0 ? 2 : 0) + (degree === 0 ? 4 : 0);
      const seconds =
        this.#kernels.attentionSeconds(stage === undefined ? "local" : "received", pairs, load.queries) +
        this.#kernels.memorySeconds(operations, copiedBytes + clearedBytes);
      this.#enqueue(rank, operations + (pairs > 0 ? 1 : 0), seconds);
    }
  }

  #waitForTransfer(endTimes: Float64Array): void {
    for (let rank = 0; rank < endTimes.length; rank++) {
      this.#hostEndTimes[rank]! += this.#problem.cost.enqueue;
      this.#computeEndTimes[rank] = Math.max(this.#computeEndTimes[rank]!, this.#hostEndTimes[rank]!, endTimes[rank]!);
    }
  }

  /** Enqueues kernels that take `seconds` in total. */
  #enqueue(rank: number, operations: number, seconds: number): void {
    const hostStartTime = this.#hostEndTimes[rank]!;
    const hostEndTime = hostStartTime + operations * this.#problem.cost.enqueue;
    this.#hostEndTimes[rank] = hostEndTime;
    const secondsPerOperation = operations > 0 ? seconds / operations : 0;
    const firstEnqueueTime = hostStartTime + (operations > 0 ? this.#problem.cost.enqueue : 0);
    this.#computeEndTimes[rank] = Math.max(
      Math.max(this.#computeEndTimes[rank]!, firstEnqueueTime) + seconds,
      hostEndTime + secondsPerOperation,
    );
  }

  /**
   * Simulates the flows of a stage. A flow starts when both ranks have reached it, and shares their ports with other
   * flows.
   */
  // oxlint-disable-next-line max-params -- rows, which way, and the size of one
  #transfer(stage: StageRows, senders: Int32Array, receivers: Int32Array, bytes: number): Float64Array {
    const { hosts, cost } = this.#problem;
    const isForward = senders === stage.senders;
    const [outgoingRows, incomingRows] = isForward
      ? [stage.sentRows, stage.receivedRows]
      : [stage.receivedRows, stage.sentRows];
    const [targetCounts, sourceCounts] = isForward
      ? [stage.targetCounts, stage.sourceCounts]
      : [stage.sourceCounts, stage.targetCounts];
    const ranks = this.#hostEndTimes.length;
    const startTimes = new Float64Array(ranks);
    for (let rank = 0; rank < ranks; rank++) {
      this.#hostEndTimes[rank]! += cost.enqueue;
      startTimes[rank] = Math.max(
        this.#hostEndTimes[rank]!,
        this.#computeEndTimes[rank]!,
        this.#communicationEndTimes[rank]!,
      );
    }
    const endTimes = startTimes.slice();
    for (let i = 0; i < senders.length; i++) {
      const [sender, receiver, rows] = [senders[i]!, receivers[i]!, stage.rows[i]!];
      const isLocal = hosts !== undefined && hosts[sender] === hosts[receiver];
      const latency = isLocal ? cost.localLatency : cost.latency;
      const secondsPerRow = bytes / (isLocal ? cost.localBandwidth : cost.bandwidth);
      const end =
        latency +
        Math.max(startTimes[sender]!, startTimes[receiver]!) +
        secondsPerRow *
          Math.max(
            Math.min(outgoingRows[sender]!, targetCounts[sender]! * rows),
            Math.min(incomingRows[receiver]!, sourceCounts[receiver]! * rows),
          );
      if (end > endTimes[sender]!) endTimes[sender] = end;
      if (end > endTimes[receiver]!) endTimes[receiver] = end;
    }
    this.#communicationEndTimes.set(endTimes);
    return endTimes;
  }
}
