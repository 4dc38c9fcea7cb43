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

/**
 * Largest number of stages that is considered, which is MagiAttention's limit of its dynamic degree. More were never
 * faster.
 */
const MAX_DEGREE = 8;
/**
 * With more transfers between ranks than this, only powers of two are compared as numbers of stages, to limit planning
 * time.
 */
const MAX_PEERS_FOR_ALL_DEGREES = 2 ** 17;

export interface ScheduleOptions {
  readonly cost: StageCost;
  /** The number of stages if it is fixed; undefined to choose it. */
  readonly degree: number | undefined;
  /** The host of each rank; undefined unless there are several hosts and ranks share one. */
  readonly hosts?: readonly number[] | undefined;
}

/**
 * Returns the schedule with the least predicted time of the slowest rank. Among equal ones, it has the fewest stages.
 * `degree` fixes the number of stages.
 *
 * While the local rows are attended to, the first two stages are in flight. While a stage is attended to, the next
 * stage and, in backward, the gradients of the previous stage are in flight. The last gradients overlap with a second
 * part of the local rows, or with nothing. Each kernel call has a cost for all queries, so more stages are not free. A
 * transfer starts when both ranks have reached it, so ranks wait for each other at every stage. Source of the stages:
 * MagiAttention, whose model has none of the last three effects, and one degree for both passes.
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
      // Two consecutive schedules may differ only in the split of local rows.
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

/** Generates candidate schedules with a given number of stages. */
class StageCutter {
  readonly #loads: readonly RankLoad[];
  readonly #size: PassSize;
  readonly #cost: ResolvedStageCost;
  readonly #kernels: KernelModel;
  /** Number of rows that each rank sends. */
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

  /** Returns the larger of the numbers of rows received and sent by a rank. */
  #maxTransferredRows(rank: number): number {
    return Math.max(this.#loads[rank]!.rows, this.#sentRows[rank]!);
  }

  /**
   * Computes cuts in which each stage has as many rows as can be received while the previous one computes. The last has
   * the rest.
   */
  // oxlint-disable-next-line max-params -- what is to be done, in how many stages, with how many rows
  #hiddenCuts({ ownPairs, remotePairs, queries }: RankLoad, degree: number, rows: number): number[] {
    const cuts = [0];
    let previousStageSeconds = this.#kernels.attentionSeconds("local", ownPairs, queries);
    for (let stage = 1; stage < degree; stage++) {
      const numReceivedRows = Math.max(
        0,
        ((previousStageSeconds - this.#cost.latency) * this.#cost.bandwidth) / this.#size.groupCastRowBytes,
      );
      const share = Math.max(rows > 0 ? numReceivedRows / rows : 1, (1 - cuts.at(-1)!) / (4 * degree));
      cuts.push(Math.min(1, cuts.at(-1)! + share));
      const pairs = remotePairs * (cuts.at(-1)! - cuts.at(-2)!);
      previousStageSeconds = this.#kernels.attentionSeconds("received", pairs, queries);
    }
    return [...cuts, 1];
  }

  /**
   * Returns the share of the first part of the local rows. The parts are proportional to the first transfer and the
   * last reduction.
   */
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
