import type { Block, Move, PlanOptions, Rule } from "./progress.ts";
import { type Batch, simulate, type Timeline } from "./simulate.ts";

/** One thing to do next: post a batch of moves, or compute a block. */
export type Step = Batch | Block;

/** What a rank does, in order; every rank of the grid does the same at the same time, each for its own tile. */
export interface Plan {
  readonly steps: readonly Step[];
  /** How long it takes with one batch and one block under way at a time, in the unit of the costs. */
  readonly makespan: number;
  /** All moves, by the channels there are, and all blocks. No order takes less than the larger of both. */
  readonly transfer: number;
  readonly compute: number;
}

/** Rows first, the peeled order of backward, and what is better where a tile is much longer one way than the other. */
const preferences = [
  { first: "sums", blocks: "rows" },
  { first: "sums", blocks: "peeled" },
  { first: "chunks", blocks: "peeled" },
  { first: "chunks", blocks: "rows" },
  { first: "sums", blocks: "columns" },
  { first: "chunks", blocks: "columns" },
] as const satisfies readonly Omit<Rule, "batches">[];

/** Tiles of so many orders of chunks, and fewer, are searched; that is 6 × 4 and 5 × 5. */
const maxOrders = 70;

/**
 * The greedy schedule of Mesh-Attention, forward and backward. A move goes as soon as the channel is free: sums that are
 * complete, of the dimension with more left to send, or else the chunk that unlocks most blocks for its cost. Of the
 * blocks that are unlocked the one runs that lets sums leave soonest. So compute is delayed not by idling but by doing
 * first what others wait for, and what nobody waits for hides the last transfers. In which order that is, by rows, by
 * columns or peeled, and whether sums or chunks go first, depends on the tile: each is simulated, and the shortest taken.
 * For small tiles, where one move too early or too late counts, all orders in which chunks can come are tried too.
 *
 * On two channels a move along the row and one along the column make one batch, with as many of the quicker kind as fit
 * beside one of the slower. They are complete together, which costs little against channels of their own, and needs no
 * second order of messages that ranks would have to agree on.
 *
 * A pure function, so that all ranks have the same plan. On one channel, from tiles of 4 × 4 on, its makespan is at most 1.15
 * times what no order can beat; smaller tiles are too coarse for any order to come near it.
 *
 * Source: "Mesh-Attention", 2025 (arXiv 2512.20968), figure 1; the orders of blocks and the batches are our own.
 */
export function planOf(options: PlanOptions): Plan {
  const { transfer, compute } = totalsOf(options);
  const enough = Math.max(transfer, compute) * (1 + 1e-9);
  let best: Timeline | undefined;
  for (const rule of rulesFor(options)) {
    const timeline = simulate(options, rule);
    if (!best || timeline.makespan < best.makespan) best = timeline;
    if (best.makespan <= enough) break;
  }
  const { batches, blocks, makespan } = best!;
  return { steps: interleaved(batches, blocks, options), makespan, transfer, compute };
}

function totalsOf({ queries, keys, backward, channels, costs }: PlanOptions): Pick<Plan, "transfer" | "compute"> {
  const row = (queries - 1) * (costs.q + costs.out);
  const column = (keys - 1) * (costs.kv + (backward ? costs.dkv : 0));
  const transfer = channels === 1 ? row + column : Math.max(row, column);
  return { transfer, compute: queries * keys * costs.block };
}

/** What to try, the first of equals to be taken. */
function rulesFor({ queries, keys, channels }: PlanOptions): Rule[] {
  const ways = channels === 1 ? (["single"] as const) : (["paired", "filled", "single"] as const);
  const rules = ways.flatMap((batches) => preferences.map((preference): Rule => ({ ...preference, batches })));
  const orders = count(queries - 1, keys - 1) <= maxOrders ? ordersOf(queries - 1, keys - 1) : [];
  const searched = preferences
    .slice(0, 5)
    .flatMap((preference) => orders.map((chunks): Rule => ({ ...preference, batches: "single", chunks })));
  return [...rules, ...searched];
}

/** Ways to merge two sequences of these lengths. */
function count(a: number, b: number): number {
  let ways = 1;
  for (let i = 1; i <= Math.min(a, b); i++) ways = (ways * (a + b - i + 1)) / i;
  return ways;
}

function ordersOf(q: number, kv: number): ("q" | "kv")[][] {
  if (q === 0 && kv === 0) return [[]];
  const begin = (kind: "q" | "kv", rest: ("q" | "kv")[][]) => rest.map((order) => [kind, ...order]);
  return [...(q > 0 ? begin("q", ordersOf(q - 1, kv)) : []), ...(kv > 0 ? begin("kv", ordersOf(q, kv - 1)) : [])];
}

/**
 * Both orders in one. Each batch is posted as early as what it sends is complete: a channel takes batches in order, so none
 * waits for compute that it does not depend on, and none is late because the host was.
 */
function interleaved(batches: readonly Batch[], blocks: readonly Block[], { queries, keys }: PlanOptions): Step[] {
  const steps: Step[] = [];
  const row = new Array<number>(queries).fill(0);
  const column = new Array<number>(keys).fill(0);
  let posted = 0;
  const isComplete = ({ kind, offset }: Move) =>
    (kind !== "out" || row[offset] === keys) && (kind !== "dkv" || column[offset] === queries);
  const post = () => {
    for (; posted < batches.length && batches[posted]!.moves.every(isComplete); posted++) steps.push(batches[posted]!);
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
