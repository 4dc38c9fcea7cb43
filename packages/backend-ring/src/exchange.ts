import type { ProcessGroup, Transfer, Work } from "@mosaic/core";
import {
  type Chunk,
  type ChunkBuffers,
  type DependencyTable,
  modulo,
  receives,
  sends,
} from "@mosaic/core/context-parallel";

// At step t rank r works on the keys of source r − t. So the ranks that work on the chunk of s do so one after the other,
// s + 1 first: a chunk that travels to the right reaches each of them in time. Ranks that do not need it are left out:
// it goes in runs of neighbours that do, and the first of each run gets it from its source, which always has it.

/** Whom `rank` receives the keys from that it works on at `step`: its left neighbour if that had them, else their source. */
export function recvPeer({ size, needsKv }: DependencyTable, rank: number, step: number): number | undefined {
  const source = modulo(rank - step, size);
  const left = modulo(rank - 1, size);
  if (step === 0 || !needsKv(rank, source)) return undefined;
  return left === source || needsKv(left, source) ? left : source;
}

/** Whom `rank` sends its gradient sums of `step` to: its right neighbour if that adds to them next, else their owner. */
export function sendPeer({ size, needsKv }: DependencyTable, rank: number, step: number): number | undefined {
  const owner = modulo(rank - step, size);
  const right = modulo(rank + 1, size);
  if (step === 0 || !needsKv(rank, owner)) return undefined;
  return right === owner || needsKv(right, owner) ? right : owner;
}

/** Posts the messages without which `step` could not be taken, in one batch: two chunks leave at most, one arrives. */
export function postKv(
  group: ProcessGroup,
  dependencies: DependencyTable,
  step: number,
  { own, current, next }: Readonly<Record<"own" | "current" | "next", Chunk>>,
): Work | undefined {
  const { rank, size } = group;
  const right = modulo(rank + 1, size);
  const along = modulo(rank + step, size); // who works on this rank's own keys at that step
  const from = recvPeer(dependencies, rank, step);
  const transfers: Transfer[] = [];
  if (recvPeer(dependencies, right, step) === rank) transfers.push(...sends(current, right));
  if (along !== right && recvPeer(dependencies, along, step) === rank) transfers.push(...sends(own, along));
  if (from !== undefined) transfers.push(...receives(next, from));
  return transfers.length > 0 ? group.sendRecv(transfers, { label: `ring(${dependencies.axis})` }) : undefined;
}

/** Gradient sums under way to this rank. */
export interface PendingGradients {
  readonly work: Work;
  /** Sums over the keys of the next step. */
  readonly toNext: Chunk | undefined;
  /** Sums over this rank's own keys. */
  readonly toOwner: Chunk | undefined;
}

/** Posts the messages that carry the sums of `step` on, in one batch: one chunk leaves at most, two arrive. */
export function postGradients(
  group: ProcessGroup,
  dependencies: DependencyTable,
  step: number,
  { own, current, buffers }: { readonly own: Chunk; readonly current: Chunk; readonly buffers: ChunkBuffers },
): PendingGradients | undefined {
  const { rank, size } = group;
  const left = modulo(rank - 1, size);
  const along = modulo(rank + step, size); // who worked on this rank's own keys at that step
  const to = sendPeer(dependencies, rank, step);
  const buffer = (name: string, source: number) => buffers.slot(name, own.tensors, dependencies.keyRows(source));
  const isNext = left !== along && sendPeer(dependencies, left, step) === rank;
  const toNext = isNext ? buffer("arriving", modulo(left - step, size)) : undefined;
  // Both arrive at once under masks with gaps only: in a full ring owners receive after the last step, when nothing goes on.
  const isOwner = sendPeer(dependencies, along, step) === rank;
  const toOwner = isOwner ? buffer(toNext ? "arriving beside" : "arriving", rank) : undefined;
  const transfers: Transfer[] = [
    ...(to === undefined ? [] : sends(current, to)),
    ...(toNext ? receives(toNext, left) : []),
    ...(toOwner ? receives(toOwner, along) : []),
  ];
  if (transfers.length === 0) return undefined;
  return { work: group.sendRecv(transfers, { label: `ring(${dependencies.axis})` }), toNext, toOwner };
}

/** Whether any other rank receives this one's chunk. */
export function isSent({ rank, size }: ProcessGroup, { needsKv }: DependencyTable): boolean {
  for (let other = 0; other < size; other++) if (other !== rank && needsKv(other, rank)) return true;
  return false;
}

/** Keys in the longest chunk that this rank computes on, or owns. */
export function mostRows({ rank, size }: ProcessGroup, { needsCompute, keyRows }: DependencyTable): number {
  let most = keyRows(rank);
  for (let source = 0; source < size; source++) {
    if (needsCompute(rank, source)) most = Math.max(most, keyRows(source));
  }
  return most;
}
