import { dtypeBytes, type Tensor } from "@mosaic/core";
import type { Pass, Tile } from "./pass.ts";
import {
  type Batch,
  type Block,
  type ChunkTransfer,
  type SchedulingRule,
  type ScheduleOptions,
  simulateSchedule,
  type Timeline,
} from "./timeline.ts";

/** One step of a schedule: post a batch of transfers, or compute a block. */
export type Step = Batch | Block;

/** The steps of a rank, in order. All ranks of the grid run the same steps, each for its own tile. */
export interface Schedule {
  readonly steps: readonly Step[];
  /** Simulated duration with one batch and one block in progress at a time, in the unit of the costs. */
  readonly makespan: number;
  /**
   * Total time of all transfers, given the number of channels, and total time of all blocks. The larger of the two is a
   * lower bound on the makespan of any order.
   */
  readonly transferTime: number;
  readonly computeTime: number;
}

/** By preference: rows, the peeled order of backward, and orders that suit tiles much longer in one dimension. */
const rulePreferences = [
  { first: "sums", blocks: "rows" },
  { first: "sums", blocks: "peeled" },
  { first: "chunks", blocks: "peeled" },
  { first: "chunks", blocks: "rows" },
  { first: "sums", blocks: "columns" },
  { first: "chunks", blocks: "columns" },
] as const satisfies readonly Omit<SchedulingRule, "batches">[];

/** Tiles with at most this many arrival orders of chunks are searched exhaustively, for example 6 × 4 and 5 × 5. */
const MAX_ARRIVAL_ORDERS = 70;

/**
 * Computes the greedy schedule of Mesh-Attention for forward or backward. A transfer starts as soon as the channel is
 * free: complete sums, of the dimension with more left to send, or else the chunk that unlocks the most blocks for its
 * cost. Among the unlocked blocks, the one that completes sums soonest runs first. Blocks that other ranks wait for
 * thus run first, and blocks that no rank waits for overlap with the last transfers. The best order of blocks (rows,
 * columns or peeled) and the priority of sums or chunks depend on the tile, so each combination is simulated and the
 * shortest is selected. For small tiles, where a single transfer that is too early or too late matters, all arrival
 * orders of chunks are also tried.
 *
 * With two channels, a transfer along the row and one along the column form one batch, with as many transfers of the
 * cheaper kind as fit in the time of one of the other kind. They complete together. This costs little compared with
 * independent channels, and requires only one order of messages on which ranks must agree.
 *
 * This is a pure function, so all ranks compute the same schedule. On one channel and for tiles of at least 4 × 4, the
 * makespan is at most 1.15 times the lower bound for any order. Smaller tiles are too coarse for any order to come
 * close to the bound.
 *
 * Source: "Mesh-Attention", 2025 (arXiv 2512.20968), figure 1. The orders of blocks and the batches are specific to
 * Mosaic.
 */
export function greedySchedule(options: ScheduleOptions): Schedule {
  const { transferTime, computeTime } = computeTotalTimes(options);
  const timeLowerBound = Math.max(transferTime, computeTime) * (1 + 1e-9);
  let bestTimeline: Timeline | undefined;
  for (const rule of candidateRules(options)) {
    const timeline = simulateSchedule(options, rule);
    if (!bestTimeline || timeline.makespan < bestTimeline.makespan) bestTimeline = timeline;
    if (bestTimeline.makespan <= timeLowerBound) break;
  }
  const { batches, blocks, makespan } = bestTimeline!;
  return { steps: interleaveSteps(batches, blocks, options), makespan, transferTime, computeTime };
}

function computeTotalTimes({
  queries,
  keys,
  backward,
  channels,
  costs,
}: ScheduleOptions): Pick<Schedule, "transferTime" | "computeTime"> {
  const rowTime = (queries - 1) * (costs.q + costs.out);
  const columnTime = (keys - 1) * (costs.kv + (backward ? costs.dkv : 0));
  const transferTime = channels === 1 ? rowTime + columnTime : Math.max(rowTime, columnTime);
  return { transferTime, computeTime: queries * keys * costs.block };
}

/** Returns the rules to simulate. Among equal makespans, the first rule is selected. */
function candidateRules({ queries, keys, channels }: ScheduleOptions): SchedulingRule[] {
  const batchModes = channels === 1 ? (["single"] as const) : (["paired", "filled", "single"] as const);
  const baseRules = batchModes.flatMap((batches) =>
    rulePreferences.map((preference): SchedulingRule => ({ ...preference, batches })),
  );
  const triedArrivalOrders =
    countInterleavings(queries - 1, keys - 1) <= MAX_ARRIVAL_ORDERS ? arrivalOrders(queries - 1, keys - 1) : [];
  const searchedRules = rulePreferences
    .slice(0, 5)
    .flatMap((preference) =>
      triedArrivalOrders.map((chunks): SchedulingRule => ({ ...preference, batches: "single", chunks })),
    );
  return [...baseRules, ...searchedRules];
}

/** Returns the number of ways to interleave two sequences of lengths a and b. */
function countInterleavings(a: number, b: number): number {
  let numInterleavings = 1;
  for (let i = 1; i <= Math.min(a, b); i++) numInterleavings = (numInterleavings * (a + b - i + 1)) / i;
  return numInterleavings;
}

function arrivalOrders(q: number, kv: number): ("q" | "kv")[][] {
  if (q === 0 && kv === 0) return [[]];
  const prependKind = (kind: "q" | "kv", orders: ("q" | "kv")[][]) => orders.map((order) => [kind, ...order]);
  return [
    ...(q > 0 ? prependKind("q", arrivalOrders(q - 1, kv)) : []),
    ...(kv > 0 ? prependKind("kv", arrivalOrders(q, kv - 1)) : []),
  ];
}

/**
 * Interleaves batches and blocks into one order. Each batch is posted as soon as the sums that it sends are complete.
 * Batches therefore do not wait for computation that they do not depend on, and are not delayed by the host.
 */
function interleaveSteps(
  batches: readonly Batch[],
  blocks: readonly Block[],
  { queries, keys }: ScheduleOptions,
): Step[] {
  const steps: Step[] = [];
  const numPostedBlocksByRow = new Array<number>(queries).fill(0);
  const numPostedBlocksByColumn = new Array<number>(keys).fill(0);
  let numPostedBatches = 0;
  const isComplete = ({ kind, offset }: ChunkTransfer) =>
    (kind !== "out" || numPostedBlocksByRow[offset] === keys) &&
    (kind !== "dkv" || numPostedBlocksByColumn[offset] === queries);
  const postBatch = () => {
    for (
      ;
      numPostedBatches < batches.length && batches[numPostedBatches]!.chunkTransfers.every(isComplete);
      numPostedBatches++
    )
      steps.push(batches[numPostedBatches]!);
  };
  postBatch();
  for (const block of blocks) {
    steps.push(block);
    numPostedBlocksByRow[block.x]!++;
    numPostedBlocksByColumn[block.y]!++;
    postBatch();
  }
  return steps;
}

/** Inputs of schedules in addition to the pass. They must be equal on all ranks. */
export interface ScheduleSettings {
  readonly channels: 1 | 2;
  readonly computeToTransfer: number;
  readonly links: readonly [row: number, column: number];
}

/** Computes greedy schedules, once for all tiles with the same dimensions and costs. */
export class ScheduleCache {
  readonly #settings: ScheduleSettings;
  readonly #schedules = new Map<string, Schedule>();

  constructor(settings: ScheduleSettings) {
    this.#settings = settings;
  }

  /**
   * Returns the schedule of a tile. Costs are bytes per row times the transfer time per byte, so that ranks with chunks
   * of different lengths have the same schedule. Masks do not change the schedule either, because empty chunks and
   * blocks are skipped when it runs. Transfers that this tile does not make have cost 0 and are also skipped.
   */
  get({ queries, isBackward, grid }: Pass, { keys, isFirst, isLast }: Tile): Schedule {
    const { rows, columns } = grid;
    const { channels, computeToTransfer, links } = this.#settings;
    const q = links[0] * bytesPerRow(queries.inputs);
    const kv = links[1] * bytesPerRow(keys.inputs);
    const out = links[0] * bytesPerRow(queries.sums);
    const dkv = links[1] * bytesPerRow(keys.sums);
    const transferTime = (columns - 1) * (q + out) + (rows - 1) * (kv + dkv);
    // A grid of one rank has no transfers, so any cost is valid.
    const block = ((transferTime || 1) * computeToTransfer) / (rows * columns);
    const costs = { q: isFirst ? q : 0, kv, out: isLast ? out : 0, dkv, block };
    return this.#getOrCreate({ queries: columns, keys: rows, backward: isBackward, channels, costs });
  }

  #getOrCreate(options: ScheduleOptions): Schedule {
    const { queries, keys, backward, costs } = options;
    const key = `${queries},${keys},${backward},${Object.values(costs).join()}`;
    const schedule = this.#schedules.get(key) ?? greedySchedule(options);
    this.#schedules.set(key, schedule);
    return schedule;
  }
}

/** Returns the bytes per row of one sample: H·D or H elements for each of the tensors. */
function bytesPerRow(tensors: readonly Tensor[]): number {
  const elementsPerRow = ({ shape: [, numHeads, , ...innerShape] }: Tensor) =>
    innerShape.reduce((a, b) => a * b, numHeads!);
  return tensors.reduce((sum, tensor) => sum + elementsPerRow(tensor) * dtypeBytes[tensor.dtype], 0);
}

/** The schedule of a pass: see `Mesh2DOptions.schedule`. */
export type ScheduleName = "fused" | "overlapped";

/** Inputs for the choice of a schedule. They are equal on all ranks, so that all ranks choose the same one. */
export interface ScheduleChoiceInputs {
  /** The overlapped schedule of the tile. */
  readonly schedule: Schedule;
  /** The number of chunks of the tile, and the mean number of rows per chunk over all ranks. */
  readonly queries: { readonly chunks: number; readonly rows: number };
  readonly keys: { readonly chunks: number; readonly rows: number };
  /** Number of rows at which a kernel call runs at half the speed of a large one. */
  readonly halfSpeedRows: number;
}

/**
 * Returns the schedule with the lower predicted time; "fused" if they are equal.
 *
 * A kernel call on n queries and m keys takes time proportional to n·m · (1 + h/n)(1 + h/m), where h = halfSpeedRows,
 * because small calls have lower utilization. The fused schedule computes the whole tile in one call, after the
 * transfers of its inputs and before those of its sums. The overlapped schedule computes block by block, overlapped
 * with its transfers.
 */
export function chooseSchedule({ schedule, queries, keys, halfSpeedRows }: ScheduleChoiceInputs): ScheduleName {
  const computeSlowdown = (n: number, m: number) =>
    (1 + halfSpeedRows / Math.max(1, n)) * (1 + halfSpeedRows / Math.max(1, m));
  const { transferTime, computeTime, makespan } = schedule;
  const fusedTime =
    transferTime + computeTime * computeSlowdown(queries.chunks * queries.rows, keys.chunks * keys.rows);
  const makespanRatio = makespan / Math.max(transferTime, computeTime);
  const overlappedTime = makespanRatio * Math.max(transferTime, computeTime * computeSlowdown(queries.rows, keys.rows));
  return fusedTime <= overlappedTime ? "fused" : "overlapped";
}
