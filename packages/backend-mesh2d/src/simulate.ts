import { type Block, columnKinds, type Move, type PlanOptions, Progress, type Rule, rowKinds } from "./progress.ts";

/** Moves that are made in one batch: they begin together and are complete together. */
export interface Batch {
  readonly kind: "batch";
  readonly moves: readonly Move[];
}

export interface Timeline {
  readonly batches: readonly Batch[];
  readonly blocks: readonly Block[];
  readonly makespan: number;
}

/** How long moves take that are made at once: one after the other on one channel, side by side on two. */
export function timeOf(moves: readonly Move[], { costs, channels }: PlanOptions): number {
  const along = (kinds: readonly Move["kind"][]) =>
    moves.reduce((sum, { kind }) => (kinds.includes(kind) ? sum + costs[kind] : sum), 0);
  const [row, column] = [along(rowKinds), along(columnKinds)];
  return channels === 1 ? row + column : Math.max(row, column);
}

/** The timeline of a tile when one batch and one block are under way at a time, and both are begun as soon as can be. */
export function simulate(options: PlanOptions, rule: Rule): Timeline {
  const progress = new Progress(options, rule);
  const batches: Batch[] = [];
  const blocks: Block[] = [];
  let time = 0;
  let batch: { readonly what: Batch; readonly end: number } | undefined;
  let block: { readonly what: Block; readonly end: number } | undefined;
  for (;;) {
    if (!batch) {
      const moves = progress.takeBatch();
      if (moves.length > 0) {
        const what = { kind: "batch", moves } as const;
        batches.push(what);
        batch = { what, end: time + timeOf(moves, options) };
      }
    }
    if (!block) {
      const what = progress.takeBlock();
      if (what) {
        blocks.push(what);
        block = { what, end: time + options.costs.block };
      }
    }
    if (!batch && !block) return { batches, blocks, makespan: time };
    time = Math.min(batch?.end ?? Infinity, block?.end ?? Infinity);
    // Sums of many costs: what ends at the same time may differ in the last bit.
    const now = time * (1 + 1e-12);
    if (batch && batch.end <= now) {
      for (const move of batch.what.moves) progress.finish(move);
      batch = undefined;
    }
    if (block && block.end <= now) {
      progress.finish(block.what);
      block = undefined;
    }
  }
}
