import type { Transfer } from "@mosaic/core";
import {
  type Chunk,
  type ChunkBuffers,
  type DependencyTable,
  modulo,
  recvTransfers,
  sendTransfers,
} from "@mosaic/core/context-parallel";

// At step t rank r works on the keys of source r − t. So the ranks that work on the chunk of s do so one after the other,
// s + 1 first: a chunk that travels to the right reaches each of them in time. Ranks that do not need it are left out:
// it goes in runs of neighbours that do, and the first of each run gets it from its source, which always has it.

/** The peer from which `rank` receives the KV block of `step`: its left neighbour if that had the block, else the source. */
export function recvPeer({ size, needsKv }: DependencyTable, rank: number, step: number): number | undefined {
  const source = modulo(rank - step, size);
  const left = modulo(rank - 1, size);
  if (step === 0 || !needsKv(rank, source)) return undefined;
  return left === source || needsKv(left, source) ? left : source;
}

/** The peer to which `rank` sends the dK and dV sums of `step`: its right neighbour if that adds to them next, else the owner. */
export function sendPeer({ size, needsKv }: DependencyTable, rank: number, step: number): number | undefined {
  const owner = modulo(rank - step, size);
  const right = modulo(rank + 1, size);
  if (step === 0 || !needsKv(rank, owner)) return undefined;
  return right === owner || needsKv(right, owner) ? right : owner;
}

/** The messages required for `step`: at most two chunks are sent, one is received. */
export function kvTransfers(
  dependencies: DependencyTable,
  rank: number,
  step: number,
  { own: ownChunk, current: currentChunk, next: nextChunk }: Readonly<Record<"own" | "current" | "next", Chunk>>,
): readonly Transfer[] {
  const { size } = dependencies;
  const right = modulo(rank + 1, size);
  const consumer = modulo(rank + step, size); // who works on this rank's own keys at that step
  const sender = recvPeer(dependencies, rank, step);
  const transfers: Transfer[] = [];
  if (recvPeer(dependencies, right, step) === rank) transfers.push(...sendTransfers(currentChunk, right));
  if (consumer !== right && recvPeer(dependencies, consumer, step) === rank)
    transfers.push(...sendTransfers(ownChunk, consumer));
  if (sender !== undefined) transfers.push(...recvTransfers(nextChunk, sender));
  return transfers;
}

/** The messages that pass gradient sums on, and the buffers that receive those sent to this rank. */
export interface GradientTransfers {
  readonly transfers: readonly Transfer[];
  /** Sums over the keys of the next step. */
  readonly nextStepSums: Chunk | undefined;
  /** Sums over this rank's own keys. */
  readonly ownerSums: Chunk | undefined;
}

/** The messages that pass on the sums of `step`: at most one chunk is sent, two are received. */
export function gradientTransfers(
  dependencies: DependencyTable,
  rank: number,
  step: number,
  {
    own: ownSums,
    current: currentSums,
    buffers,
  }: { readonly own: Chunk; readonly current: Chunk; readonly buffers: ChunkBuffers },
): GradientTransfers {
  const { size, keyRows } = dependencies;
  const left = modulo(rank - 1, size);
  const consumer = modulo(rank + step, size); // who worked on this rank's own keys at that step
  const receiver = sendPeer(dependencies, rank, step);
  const transfers: Transfer[] = receiver === undefined ? [] : sendTransfers(currentSums, receiver);
  let nextStepSums: Chunk | undefined;
  let ownerSums: Chunk | undefined;
  if (left !== consumer && sendPeer(dependencies, left, step) === rank) {
    nextStepSums = buffers.slot("arriving", ownSums.tensors, keyRows(modulo(left - step, size)));
    transfers.push(...recvTransfers(nextStepSums, left));
  }
  if (sendPeer(dependencies, consumer, step) === rank) {
    // Both arrive at once under masks with gaps only: in a full ring owners receive after the last step, when nothing goes on.
    ownerSums = buffers.slot(nextStepSums ? "receive buffer" : "arriving", ownSums.tensors, keyRows(rank));
    transfers.push(...recvTransfers(ownerSums, consumer));
  }
  return { transfers, nextStepSums, ownerSums };
}

/** Whether any other rank receives the chunk of `rank`. */
export function isSent({ size, needsKv }: DependencyTable, rank: number): boolean {
  for (let peer = 0; peer < size; peer++) if (peer !== rank && needsKv(peer, rank)) return true;
  return false;
}

/** Keys in the longest chunk that `rank` computes on, or owns. */
export function maxChunkRows({ size, needsCompute, keyRows }: DependencyTable, rank: number): number {
  let maxRows = keyRows(rank);
  for (let source = 0; source < size; source++) {
    if (needsCompute(rank, source)) maxRows = Math.max(maxRows, keyRows(source));
  }
  return maxRows;
}
