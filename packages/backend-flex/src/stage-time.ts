import { defineOptions, option, type OptionsOf } from "@mosaic/core";

// What a pass takes, by a model of all ranks: a host that enqueues, a compute stream, a communication stream whose transfers
// begin in order, and a port each way. It is what `createStageSchedule` compares schedules by.

const nonNegativeRange = { min: 0 } as const;
const positiveRange = { above: 0 } as const;

export const stageCostOptions = defineOptions("StageCost", {
  /** Seconds that a transfer takes before its first byte moves. Default: 0.00002. */
  latency: option.number({ ...nonNegativeRange, default: 20e-6 }),
  /** Bytes per second that a rank receives, or sends; a port of 400 Gbit/s has the default. Default: 50000000000. */
  bandwidth: option.number({ ...positiveRange, default: 50e9 }),
  /** The latency between ranks of a host, where ranks lie on several hosts. Default: 0.000012. */
  localLatency: option.number({ ...nonNegativeRange, default: 12e-6 }),
  /** The bandwidth between ranks of a host, where ranks lie on several hosts; NVLink has the default. Default: 376000000000. */
  localBandwidth: option.number({ ...positiveRange, default: 376e9 }),
  /** Seconds that a kernel takes beside its work. Default: 0.000001. */
  launch: option.number({ ...nonNegativeRange, default: 1e-6 }),
  /** Seconds that the host takes to enqueue an operation. Default: 0.00001. */
  enqueue: option.number({ ...nonNegativeRange, default: 10e-6 }),
  /** Floating-point operations per second of the attention kernel on many keys; FlashAttention-3 on an H100 has the default. Default: 680000000000000. */
  flops: option.number({ ...positiveRange, default: 680e12 }),
  /** The same of the backward kernel. Default: 600000000000000. */
  backwardFlops: option.number({ ...positiveRange, default: 600e12 }),
  /** Keys of a call at which the attention kernel has half its speed. Default: 160. */
  halfKeys: option.number({ ...nonNegativeRange, default: 160 }),
  /** The same of the backward kernel. Default: 330. */
  backwardHalfKeys: option.number({ ...nonNegativeRange, default: 330 }),
  /** Bytes per second, read and written, of copies and sums. Default: 2570000000000. */
  memoryBandwidth: option.number({ ...positiveRange, default: 2.57e12 }),
});
/** What stages are chosen by: it must be the same on every rank. */
export type StageCost = OptionsOf<typeof stageCostOptions>;
export type ResolvedStageCost = ReturnType<typeof stageCostOptions.parse>;

/** Rows that one rank receives of another. */
export interface PeerRows {
  readonly owner: number;
  readonly rows: number;
  /** In how many ranges they lie there. */
  readonly ranges: number;
  /** Visible pairs on them. */
  readonly pairs: number;
}

/** What one rank has to do in one attention. */
export interface RankLoad {
  /** Visible pairs on its own rows and on those of others. */
  readonly ownPairs: number;
  readonly remotePairs: number;
  readonly queries: number;
  /** Rows that it receives, in the order in which they come. */
  readonly peers: readonly PeerRows[];
  /** The sum over `peers`. */
  readonly rows: number;
}

/** Bytes and arithmetic of one pass, forward or backward. */
export interface PassSize {
  /** Bytes of a row of keys and values. */
  readonly groupCastRowBytes: number;
  /** Bytes of a row of their gradients; 0 in forward. */
  readonly groupReduceRowBytes: number;
  /** Floating-point operations per visible pair, over batch and heads. */
  readonly pairFlops: number;
}

/** How a pass is cut into stages, on all ranks alike but for the numbers of rows. */
export interface StageSchedule {
  /** Remote stages. 0: the own and all remote rows in one call, when these have arrived. */
  readonly degree: number;
  /** Whether the own rows are attended to in two parts, the second behind the last reduction. */
  readonly isSplit: boolean;
  /** By rank: the share of its remote rows before each stage, and behind the last one. */
  readonly cuts: readonly (readonly number[])[];
  /** By rank: the share of the own rows that is attended to first. */
  readonly ownCuts: readonly number[];
}

/** Ranks, what they do, and the speeds of what they do it with. */
export interface PassProblem {
  readonly loads: readonly RankLoad[];
  readonly size: PassSize;
  readonly cost: ResolvedStageCost;
  /** The host of each rank, where several ranks share one of several hosts. */
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
    this.#halfSpeedKeys = isForward ? cost.halfKeys : cost.backwardHalfKeys;
  }

  /** One call over all queries; nothing visible, no call. */
  attentionSeconds(pairs: number, queries: number): number {
    if (pairs <= 0) return 0;
    return this.#cost.launch + ((pairs + this.#halfSpeedKeys * queries) * this.#size.pairFlops) / this.#flopsPerSecond;
  }

  /** Kernels that only move memory. */
  memorySeconds(operations: number, bytes: number): number {
    return operations * this.#cost.launch + bytes / this.#cost.memoryBandwidth;
  }
}

/** The rows of one stage: by flow, and by rank what its ports and kernels have to do. */
class StageRows {
  /** By flow: the ranks that send and receive, and the rows. */
  senders: Int32Array = new Int32Array(0);
  receivers: Int32Array = new Int32Array(0);
  rows: Float64Array = new Float64Array(0);
  readonly receivedRows: Float64Array;
  readonly pairs: Float64Array;
  readonly sentRows: Float64Array;
  readonly sourceCounts: Int32Array;
  readonly targetCounts: Int32Array;
  /** Rows sent in several ranges: their copies. */
  readonly packedRows: Float64Array;
  readonly packedRanges: Float64Array;
  /** Ranges that gradients are added to. */
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

/** The rows that all ranks receive, in columns: 1 024 ranks may have a million pairs that exchange some. */
export class PeerColumns {
  /** Where the peers of each rank begin, and the number of all. */
  readonly starts: Int32Array;
  readonly owners: Int32Array;
  readonly rows: Float64Array;
  readonly ranges: Float64Array;
  readonly pairs: Float64Array;
  /** By rank: all rows that it receives. */
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

/** Cuts rows that ranks receive into stages, one stage after the other. */
class StageSplitter {
  readonly #peers: PeerColumns;
  readonly #senders: Int32Array;
  readonly #receivers: Int32Array;
  readonly #rows: Float64Array;
  #numFlows = 0;
  /** By rank: the peer whose rows come next, how many of these and of all rows are in earlier stages. */
  readonly #nextPeerByRank: Int32Array;
  readonly #peerRowsTaken: Float64Array;
  readonly #rowsTaken: Float64Array;

  constructor(peers: PeerColumns, stages: number) {
    // A stage ends within the rows of one peer of each rank at most.
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

  /** The next stage: the rows of each rank before its `ends`. */
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

/** Cuts the rows that ranks receive into stages, as their shares prescribe. */
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

/** Predicts the seconds of a pass: of its slowest rank. `rows` are those of the schedule's stages. */
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
  /** By rank: when its host, its compute and its communication stream are done with what was enqueued so far. */
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
    let arrivalTimes = degree === 0 ? this.#groupCast(0) : undefined;
    let returningStage: { readonly stage: number; readonly endTimes: Float64Array } | undefined;
    const numSteps = degree === 0 ? 1 : 1 + degree + (isSplit ? 1 : 0);
    for (let step = 0; step < numSteps; step++) {
      const stage = degree === 0 ? 0 : step - 1;
      const hasRemoteRows = stage >= 0 && stage < Math.max(1, degree);
      if (hasRemoteRows) this.#waitForTransfer(arrivalTimes!);
      if (degree > 0 && stage + 1 < degree) arrivalTimes = this.#groupCast(stage + 1);
      this.#attend(step, hasRemoteRows ? stage : undefined);
      if (!isBackward) continue;
      if (returningStage && hasRemoteRows) returningStage = this.#addReturnedRows(returningStage);
      if (hasRemoteRows) returningStage = { stage, endTimes: this.#reduce(stage) };
    }
    if (returningStage) this.#addReturnedRows(returningStage);
    return this.#computeEndTimes.reduce((max, seconds) => Math.max(max, seconds), 0);
  }

  /** Packs and posts the keys of a stage: when they have arrived, by rank. */
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

  /** The owner waits for gradients and adds them. */
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
        this.#kernels.attentionSeconds(pairs, load.queries) +
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

  /** Enqueues kernels of so many seconds altogether. */
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

  /** A transfer begins where both sides have their turn, and shares their ports. */
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
