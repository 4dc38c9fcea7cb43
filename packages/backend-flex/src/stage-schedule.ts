import {
  KernelModel,
  PeerColumns,
  type PassProblem,
  type PassSize,
  predictPassSeconds,
  type RankLoad,
  type ResolvedStageCost,
  type StageCost,
  stageCostOptions,
  splitIntoStages,
  type StageSchedule,
} from "./stage-time.ts";

/** More stages than this have never been of use: MagiAttention's bound of its dynamic degree. */
const MAX_DEGREE = 8;
/** Transfers between ranks beyond which only a few numbers of stages are compared: they take time to plan. */
const MAX_PEERS_FOR_ALL_DEGREES = 2 ** 17;

export interface ScheduleOptions {
  readonly cost: StageCost;
  /** The number of stages, where it is fixed. */
  readonly degree: number | undefined;
  /** The host of each rank, where several ranks share one of several hosts. */
  readonly hosts?: readonly number[] | undefined;
}

/**
 * The schedule of least predicted time, which is that of the slowest rank; of equal ones the one of fewer stages. `degree`
 * fixes the number of stages.
 *
 * While the rows of a stage are attended to, those of the next one travel and, in backward, the gradients of the one before. The
 * last gradients are behind nothing, or behind a second part of the own rows. Each call of the kernel takes time for all queries, so
 * stages are not free; and a transfer begins when both ranks have come to it, so that ranks wait for each other at every stage.
 * Source of the stages: MagiAttention, whose model has none of the last three, and one degree for both passes.
 */
export function createStageSchedule(
  loads: readonly RankLoad[],
  size: PassSize,
  options: ScheduleOptions,
): StageSchedule {
  const { degree: fixedDegree, hosts } = options;
  const problem: PassProblem = { loads, size, cost: stageCostOptions.parse(options.cost), hosts };
  const cutter = new StageCutter(problem);
  const peers = new PeerColumns(loads);
  let best: { readonly seconds: number; readonly schedule: StageSchedule } | undefined;
  let cachedSplit:
    | { readonly cuts: StageSchedule["cuts"]; readonly rows: ReturnType<typeof splitIntoStages> }
    | undefined;
  for (const degree of fixedDegree === undefined ? candidateDegrees(loads) : [fixedDegree]) {
    for (const schedule of cutter.schedules(degree)) {
      // Two schedules that follow each other may differ in the own rows alone.
      if (schedule.cuts !== cachedSplit?.cuts)
        cachedSplit = { cuts: schedule.cuts, rows: splitIntoStages(peers, schedule) };
      const seconds = predictPassSeconds(problem, schedule, cachedSplit.rows);
      if (!best || seconds < best.seconds) best = { seconds, schedule };
    }
  }
  return best!.schedule;
}

function candidateDegrees(loads: readonly RankLoad[]): number[] {
  const numPeers = loads.reduce((sum, load) => sum + load.peers.length, 0);
  const allDegrees = Array.from({ length: MAX_DEGREE + 1 }, (_, degree) => degree);
  return numPeers > MAX_PEERS_FOR_ALL_DEGREES
    ? allDegrees.filter((degree) => (degree & (degree - 1)) === 0)
    : allDegrees;
}

/** How rows may be cut into a number of stages. */
class StageCutter {
  readonly #loads: readonly RankLoad[];
  readonly #size: PassSize;
  readonly #cost: ResolvedStageCost;
  readonly #kernels: KernelModel;
  /** Rows that each rank sends. */
  readonly #sentRows: Float64Array;

  constructor(problem: PassProblem) {
    this.#loads = problem.loads;
    this.#size = problem.size;
    this.#cost = problem.cost;
    this.#kernels = new KernelModel(problem);
    this.#sentRows = new Float64Array(problem.loads.length);
    for (const { peers } of problem.loads) for (const { owner, rows } of peers) this.#sentRows[owner]! += rows;
  }

  *schedules(degree: number): Generator<StageSchedule, void, undefined> {
    const equalCuts = Array.from({ length: degree + 1 }, (_, stage) => (degree === 0 ? 0 : stage / degree));
    const candidates = [this.#loads.map(() => equalCuts)];
    if (degree > 1)
      candidates.push(this.#loads.map((load, rank) => this.#hiddenCuts(load, degree, this.#maxTransferredRows(rank))));
    for (const cuts of candidates) {
      yield { degree, isSplit: false, cuts, ownCuts: cuts.map(() => 1) };
      if (this.#size.groupReduceRowBytes === 0 || degree === 0) continue;
      yield {
        degree,
        isSplit: true,
        cuts,
        ownCuts: cuts.map((each, rank) => this.#ownCut(this.#maxTransferredRows(rank), each)),
      };
    }
  }

  /** Rows received, or sent if these are more. */
  #maxTransferredRows(rank: number): number {
    return Math.max(this.#loads[rank]!.rows, this.#sentRows[rank]!);
  }

  /** Each stage of as many rows as arrive while the one before it computes; the last one of the rest. */
  // oxlint-disable-next-line max-params -- what is to be done, in how many stages, with how many rows
  #hiddenCuts({ ownPairs, remotePairs, queries }: RankLoad, degree: number, rows: number): number[] {
    const cuts = [0];
    let previousStageSeconds = this.#kernels.attentionSeconds(ownPairs, queries);
    for (let stage = 1; stage < degree; stage++) {
      const numReceivedRows = Math.max(
        0,
        ((previousStageSeconds - this.#cost.latency) * this.#cost.bandwidth) / this.#size.groupCastRowBytes,
      );
      const share = Math.max(rows > 0 ? numReceivedRows / rows : 1, (1 - cuts.at(-1)!) / (4 * degree));
      cuts.push(Math.min(1, cuts.at(-1)! + share));
      previousStageSeconds = this.#kernels.attentionSeconds(remotePairs * (cuts.at(-1)! - cuts.at(-2)!), queries);
    }
    return [...cuts, 1];
  }

  /** The own rows hide the first transfer and the last reduction: divided as these take. */
  #ownCut(rows: number, cuts: readonly number[]): number {
    const { latency, bandwidth } = this.#cost;
    const transferSeconds = (bytes: number): number => (bytes > 0 ? latency + bytes / bandwidth : 0);
    const firstGroupCastSeconds = transferSeconds(rows * cuts[1]! * this.#size.groupCastRowBytes);
    const lastReductionSeconds = transferSeconds(rows * (1 - cuts.at(-2)!) * this.#size.groupReduceRowBytes);
    return firstGroupCastSeconds + lastReductionSeconds > 0
      ? firstGroupCastSeconds / (firstGroupCastSeconds + lastReductionSeconds)
      : 1;
  }
}
