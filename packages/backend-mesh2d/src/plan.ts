import { type Block, type Move, type PlanOptions, type Rule, simulate } from "./simulate.ts";

/** One thing to do next: post a move, or compute a block. */
export type Step = Move | Block;

/** What a rank does, in order; every rank of the grid does the same at the same time, each for its own tile. */
export interface Plan {
  readonly steps: readonly Step[];
  /** How long it takes with one move and one block under way at a time, in the unit of the costs. */
  readonly makespan: number;
  /** No order takes less: the larger of all moves and all blocks. */
  readonly bound: number;
}

/** Rows first, the peeled order of backward, and what is better where a tile is much longer one way than the other. */
const rules: readonly Rule[] = [
  { first: "sums", blocks: "rows" },
  { first: "sums", blocks: "peeled" },
  { first: "chunks", blocks: "peeled" },
  { first: "chunks", blocks: "rows" },
  { first: "sums", blocks: "columns" },
];

/**
 * The greedy schedule of Mesh-Attention, forward and backward. A move goes as soon as the channel is free: sums that are
 * complete, of the dimension with more left to send, or else the chunk that unlocks most blocks for its cost. Of the
 * blocks that are unlocked the one runs that lets sums leave soonest. So compute is delayed not by idling but by doing
 * first what others wait for, and what nobody waits for hides the last transfers. In which order that is, by rows, by
 * columns or peeled, and whether sums or chunks go first, depends on the tile: each is simulated, and the shortest taken.
 *
 * A pure function, so that all ranks have the same plan. From tiles of 4 × 4 on its makespan is at most 1.16
 * times the bound, and 1.15 from 8 × 8 on; smaller tiles are too coarse for any order to come near it.
 *
 * Source: "Mesh-Attention", 2025 (arXiv 2512.20968), figure 1; the orders of blocks are our own.
 */
export function planOf(options: PlanOptions): Plan {
  const { queries, keys, costs, backward } = options;
  const timelines = rules.map((rule) => simulate(options, rule));
  const { moves, blocks, makespan } = timelines.reduce((best, each) => (each.makespan < best.makespan ? each : best));
  const transfer = (queries - 1) * (costs.q + costs.out) + (keys - 1) * (costs.kv + (backward ? costs.dkv : 0));
  return {
    steps: interleaved(moves, blocks, options),
    makespan,
    bound: Math.max(transfer, queries * keys * costs.block),
  };
}

/**
 * Both orders in one. Each move is posted as early as what it sends is complete: a channel takes moves in order, so none
 * waits for compute that it does not depend on, and none is late because the host was.
 */
function interleaved(moves: readonly Move[], blocks: readonly Block[], { queries, keys }: PlanOptions): Step[] {
  const steps: Step[] = [];
  const row = new Array<number>(queries).fill(0);
  const column = new Array<number>(keys).fill(0);
  let posted = 0;
  const isReady = ({ kind, offset }: Move) =>
    (kind !== "out" || row[offset] === keys) && (kind !== "dkv" || column[offset] === queries);
  const post = () => {
    for (; posted < moves.length && isReady(moves[posted]!); posted++) steps.push(moves[posted]!);
  };
  post();
  for (const block of blocks) {
    steps.push(block);
    row[block.x]!++;
    column[block.y]!++;
    post();
  }
  return steps;
}
