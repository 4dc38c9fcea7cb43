import type { Transfer } from "@mosaic/core";
import {
  type Chunk,
  type ChunkBuffers,
  type DependencyTable,
  modulo,
  recvTransfers,
  sendTransfers,
} from "@mosaic/core/context-parallel";

// At step t, rank r computes on the keys of source r − t. The chunk of rank s is therefore used by rank s + 1 first,
// then by s + 2, and so on, so passing it to the right delivers it in time. Ranks that do not need the chunk are
// skipped: it is passed along each run of adjacent ranks that need it. The first rank of a run receives it from its
// source, which always has it.

/**
 * Returns the peer from which `rank` receives the KV block of `step`: the left neighbor if it had the block, else the
 * source.
 */
export function recvPeer({ size, needsKv }: DependencyTable, rank: number, step: number): number | undefined {
  const source = modulo(rank - step, size);
  const left = modulo(rank - 1, size);
  if (step === 0 || !needsKv(rank, source)) return undefined;
  return left === source || needsKv(left, source) ? left : source;
}

/**
 * Returns the peer to which `rank` sends the dK and dV sums of `step`: the right neighbor if it adds to them next,
 * else the owner.
 */
export function sendPeer({ size, needsKv }: DependencyTable, rank: number, step: number): number | undefined {
  const owner = modulo(rank - step, size);
  const right = modulo(rank + 1, size);
  if (step === 0 || !needsKv(rank, owner)) return undefined;
  return right === owner || needsKv(right, owner) ? right : owner;
}

/** Returns the messages required for `step`. At most two chunks are sent and one is received. */
export function kvTransfers(
  dependencies: DependencyTable,
  rank: number,
  step: number,
  { own: ownChunk, current: currentChunk, next: nextChunk }: Readonly<Record<"own" | "current" | "next", Chunk>>,
): readonly Transfer[] {
  const { size } = dependencies;
  const right = modulo(rank + 1, size);
  const consumer = modulo(rank + step, size); // the rank that computes on this rank's keys at that step
  const sender = recvPeer(dependencies, rank, step);
  const transfers: Transfer[] = [];
  if (recvPeer(dependencies, right, step) === rank) transfers.push(...sendTransfers(currentChunk, right));
  if (consumer !== right && recvPeer(dependencies, consumer, step) === rank)
    transfers.push(...sendTransfers(ownChunk, consumer));
  if (sender !== undefined) transfers.push(...recvTransfers(nextChunk, sender));
  return transfers;
}

/** The messages that forward gradient sums, and the buffers for the sums that this rank receives. */
export interface GradientTransfers {
  readonly transfers: readonly Transfer[];
  /** Sums over the keys of the next step. */
  readonly nextStepSums: Chunk | undefined;
  /** Sums over this rank's own keys. */
  readonly ownerSums: Chunk | undefined;
}

/** Returns the messages that forward the gradient sums of `step`. At most one chunk is sent and two are received. */
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
  const consumer = modulo(rank + step, size); // the rank that computed on this rank's keys at that step
  const receiver = sendPeer(dependencies, rank, step);
  const transfers: Transfer[] = receiver === undefined ? [] : sendTransfers(currentSums, receiver);
  let nextStepSums: Chunk | undefined;
  let ownerSums: Chunk | undefined;
  if (left !== consumer && sendPeer(dependencies, left, step) === rank) {
    nextStepSums = buffers.slot("arriving", ownSums.tensors, keyRows(modulo(left - step, size)));
    transfers.push(...recvTransfers(nextStepSums, left));
  }
  if (sendPeer(dependencies, consumer, step) === rank) {
    // Both are received at the same step only under masks with gaps: in a full ring, owners receive after the last
    // step.
    ownerSums = buffers.slot(nextStepSums ? "receive buffer" : "arriving", ownSums.tensors, keyRows(rank));
    transfers.push(...recvTransfers(ownerSums, consumer));
  }
  return { transfers, nextStepSums, ownerSums };
}

/** Returns whether any other rank receives the chunk of `rank`. */
export function isSent({ size, needsKv }: DependencyTable, rank: number): boolean {
  for (let peer = 0; peer < size; peer++) if (peer !== rank && needsKv(peer, rank)) return true;
  return false;
}

/** Returns the number of keys in the longest chunk that `rank` owns or computes on. */
export function maxChunkRows({ size, needsCompute, keyRows }: DependencyTable, rank: number): number {
  let maxRows = keyRows(rank);
  for (let source = 0; source < size; source++) {
    if (needsCompute(rank, source)) maxRows = Math.max(maxRows, keyRows(source));
  }
  return maxRows;
}
