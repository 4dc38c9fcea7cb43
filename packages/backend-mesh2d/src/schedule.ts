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

/** One thing to do next: post a batch of moves, or compute a block. */
export type Step = Batch | Block;

/** What a rank does, in order; every rank of the grid does the same at the same time, each for its own tile. */
export interface Schedule {
  readonly steps: readonly Step[];
  /** How long it takes with one batch and one block under way at a time, in the unit of the costs. */
  readonly makespan: number;
  /** All moves, by the channels there are, and all blocks. No order takes less than the larger of both. */
  readonly transferTime: number;
  readonly computeTime: number;
}

/** Rows first, the peeled order of backward, and what is better where a tile is much longer one way than the other. */
const rulePreferences = [
  { first: "sums", blocks: "rows" },
  { first: "sums", blocks: "peeled" },
  { first: "chunks", blocks: "peeled" },
  { first: "chunks", blocks: "rows" },
  { first: "sums", blocks: "columns" },
  { first: "chunks", blocks: "columns" },
] as const satisfies readonly Omit<SchedulingRule, "batches">[];

/** Tiles of so many orders of chunks, and fewer, are searched; that is 6 × 4 and 5 × 5. */
const MAX_ARRIVAL_ORDERS = 70;

/**
 * The greedy schedule of Mesh-Attention, forward and backward. A move goes as soon as the channel is free: sums that are
 * complete, of the dimension with more left to send, or else the chunk that unlocks most blocks for its cost. Of the
 * blocks that are unlocked the one runs that lets sums leave soonest. So compute is delayed not by idling but by doing
 * first what others wait for, and what no rank waits for hides the last transfers. In which order that is, by rows, by
 * columns or peeled, and whether sums or chunks go first, depends on the tile: each is simulated, and the shortest taken.
 * For small tiles, where one move too early or too late counts, all orders in which chunks can come are tried too.
 *
 * On two channels a move along the row and one along the column make one batch, with as many of the quicker kind as fit
 * beside one of the slower. They are complete together, which costs little against channels of their own, and needs no
 * second order of messages that ranks would have to agree on.
 *
 * A pure function, so that all ranks have the same. On one channel, from tiles of 4 × 4 on, its makespan is at most 1.15
 * times what no order can beat; smaller tiles are too coarse for any order to come near it.
 *
 * Source: "Mesh-Attention", 2025 (arXiv 2512.20968), figure 1; the orders of blocks and the batches are our own.
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

/** What to try, the first of equals to be taken. */
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

/** Ways to merge two sequences of these lengths. */
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
 * Both orders in one. Each batch is posted as early as what it sends is complete: a channel takes batches in order, so none
 * waits for compute that it does not depend on, and none is late because the host was.
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

/** What schedules rest on beside the pass: equal on all ranks. */
export interface ScheduleSettings {
  readonly channels: 1 | 2;
  readonly computeToTransfer: number;
  readonly links: readonly [row: number, column: number];
}

/** Makes the greedy schedule of a tile, once for tiles of one kind. */
export class ScheduleCache {
  readonly #settings: ScheduleSettings;
  readonly #schedules = new Map<string, Schedule>();

  constructor(settings: ScheduleSettings) {
    this.#settings = settings;
  }

  /**
   * Costs are bytes per position times what a byte takes, so that ranks with chunks of other lengths have the same schedule; masks
   * leave it as it is too: what is empty is skipped when it is replayed. So is what does not travel with this tile, and
   * costs nothing.
   */
  get({ queries, isBackward, grid }: Pass, { keys, isFirst, isLast }: Tile): Schedule {
    const { rows, columns } = grid;
    const { channels, computeToTransfer, links } = this.#settings;
    const q = links[0] * bytesPerRow(queries.inputs);
    const kv = links[1] * bytesPerRow(keys.inputs);
    const out = links[0] * bytesPerRow(queries.sums);
    const dkv = links[1] * bytesPerRow(keys.sums);
    const transferTime = (columns - 1) * (q + out) + (rows - 1) * (kv + dkv);
    // A grid of one rank moves nothing: any cost will do.
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

/** Of one sequence: H·D numbers, or H, for each of the tensors. */
function bytesPerRow(tensors: readonly Tensor[]): number {
  const elementsPerRow = ({ shape: [, numHeads, , ...innerShape] }: Tensor) =>
    innerShape.reduce((a, b) => a * b, numHeads!);
  return tensors.reduce((sum, tensor) => sum + elementsPerRow(tensor) * dtypeBytes[tensor.dtype], 0);
}

/** How a pass is run: see `Mesh2DOptions.schedule`. */
export type ScheduleName = "fused" | "overlapped";

/** What the choice of a schedule rests on: equal on all ranks, so that they choose alike. */
export interface ScheduleChoiceInputs {
  /** The one by which the tile would be overlapped. */
  readonly schedule: Schedule;
  /** The tile in chunks, and what a chunk holds on the average over ranks. */
  readonly queries: { readonly chunks: number; readonly rows: number };
  readonly keys: { readonly chunks: number; readonly rows: number };
  /** Rows at which a kernel call runs at half its speed. */
  readonly halfSpeedRows: number;
}

/**
 * The schedule that takes less time, the fused one of equals.
 *
 * A kernel call on n queries and m keys takes n·m · (1 + h/n)(1 + h/m), for h = halfSpeedRows: small calls keep a kernel less
 * busy. The fused schedule computes the whole tile in one call, after its transfers and before those of its sums; the overlapped
 * one computes chunk by chunk, behind its transfers as well as it can.
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
