import type { KvBlock, ProcessGroup, Transfer, Work } from "@mosaic/core";
import { type Chunk, ChunkMemory } from "./memory.ts";
import type { Need } from "./need.ts";
import { around, supplier } from "./route.ts";

/** A ring as one of its ranks sees it. */
export interface Circle {
  readonly group: ProcessGroup;
  readonly need: Need;
  /** Who calls, as messages and traces shall say. */
  readonly label: string;
}

/** One step around the ring: the keys and values [B,Hkv,S,D] of one rank. */
export interface Step extends KvBlock {
  readonly step: number;
  /** Whose they are. */
  readonly source: number;
  /** Whether there is anything to compute on them. If not, they are not there: do not look. */
  readonly visible: boolean;
}

/**
 * Yields every rank's keys and values in turn, one's own first; the next are under way while you use these, which are
 * yours until the next step.
 *
 * The transfer for a step is posted before the work of the step before it is enqueued, and waited for after it. It lands
 * in one of two buffers, the one that the step before that has done with: a transfer begins when everything enqueued
 * earlier has run, so it overwrites nothing in use. If the loop is left early, nothing remains under way.
 */
export function* rotate(circle: Circle, keys: KvBlock): Generator<Step, void, undefined> {
  const { rank, size } = circle.group;
  using memory = new ChunkMemory([keys.k, keys.v], longest(circle));
  const own = isAwaited(circle) ? memory.dense([keys.k, keys.v]) : ([keys.k, keys.v] as const);
  let held: Chunk = own;
  let work: Work | undefined;
  try {
    for (let step = 0; step < size; step++) {
      const next = (step + 1 < size && roomFor(step + 1, circle, memory)) || own;
      work = step + 1 < size ? post(circle, step + 1, { own, held, next }) : undefined;
      const source = around(rank - step, size);
      yield { step, source, visible: circle.need.visits(rank, source), k: held[0], v: held[1] };
      work?.wait();
      work = undefined;
      held = next;
    }
  } finally {
    work?.wait();
  }
}

/** Posts the messages without which `step` could not be taken, in one batch: two chunks leave at most, one arrives. */
function post(circle: Circle, step: number, chunks: Record<"own" | "held" | "next", Chunk>): Work | undefined {
  const { group, need, label } = circle;
  const { own, held, next } = chunks;
  const { rank, size } = group;
  const right = around(rank + 1, size);
  const along = around(rank + step, size); // who works on this rank's own keys at that step
  const from = supplier(need, rank, step);
  const transfers: Transfer[] = [];
  if (supplier(need, right, step) === rank) transfers.push(...messages(held, right));
  if (along !== right && supplier(need, along, step) === rank) transfers.push(...messages(own, along));
  if (from !== undefined) transfers.push(...next.map((tensor) => ({ tensor, from })));
  return transfers.length > 0 ? group.sendRecv(transfers, { label }) : undefined;
}

/** The buffer that the chunk of a step arrives in; zeros if it is only visited, because others of the team need theirs. */
function roomFor(step: number, { group: { rank, size }, need }: Circle, memory: ChunkMemory): Chunk | undefined {
  const source = around(rank - step, size);
  if (need.fetches(rank, source)) return memory.slot(step % 2, need.length(source));
  return need.visits(rank, source) ? memory.zeros(need.length(source)) : undefined;
}

/** Whether any other rank needs this one's chunk. */
function isAwaited({ group: { rank, size }, need }: Circle): boolean {
  for (let other = 0; other < size; other++) if (other !== rank && need.fetches(other, rank)) return true;
  return false;
}

/** Keys in the longest chunk that this rank has to do with. */
export function longest({ group: { rank, size }, need }: Circle): number {
  let most = need.length(rank);
  for (let source = 0; source < size; source++) {
    if (need.visits(rank, source)) most = Math.max(most, need.length(source));
  }
  return most;
}

/** One message per member of the chunk. */
export function messages(tensors: Chunk, to: number): Transfer[] {
  return tensors.map((tensor) => ({ tensor, to }));
}
