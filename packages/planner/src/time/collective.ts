import type { TapeOp } from "../symbolic/tape.ts";
import type { Profile } from "./profile.ts";
import { linkClass } from "./profile.ts";

/** Arguments of a collective on one member. Counts are elements, by group rank. */
export interface CollectiveArguments {
  readonly op: TapeOp;
  /** Group rank of the broadcast's root. */
  readonly root: number;
  readonly counts: readonly number[];
  /** Number of elements of the whole tensor. */
  readonly size: number;
  readonly elementBytes: number;
}

/** Bytes of one transfer to a world rank. */
export interface PeerTransfer {
  readonly peerRank: number;
  readonly bytes: number;
}

/** Traffic of a collective on one of its members: bytes to other ranks, and the number of consecutive latencies. */
export interface CollectiveTraffic {
  readonly transfers: readonly PeerTransfer[];
  readonly steps: number;
}

/**
 * Returns the messages that member `rank` of a collective sends. Direct: every share is sent straight to its receivers,
 * all at once. Ring: shares pass from rank to rank, so that each rank sends only to its right neighbour, in one step
 * fewer than there are ranks; an allReduce takes two rounds.
 */
// oxlint-disable-next-line max-params -- profile, group, member, and its arguments
export function collectiveTraffic(
  profile: Profile,
  ranks: readonly number[],
  rank: number,
  collective: CollectiveArguments,
): CollectiveTraffic {
  const { op } = collective;
  const n = ranks.length;
  if (op === "barrier") return { transfers: [], steps: Math.ceil(Math.log2(n)) };
  if (profile.collectives === "ring" && op !== "allToAll") {
    return { transfers: [ringTransfer(ranks, rank, collective)], steps: (op === "allReduce" ? 2 : 1) * (n - 1) };
  }
  const transfers: PeerTransfer[] = [];
  for (let peer = 0; peer < n; peer++) {
    const bytes = peer === rank ? 0 : directBytes(collective, rank, peer, n);
    if (bytes > 0) transfers.push({ peerRank: ranks[peer]!, bytes });
  }
  return { transfers, steps: op === "allReduce" ? 2 : 1 };
}

// oxlint-disable-next-line max-params -- arguments, sender, receiver, and group size
function directBytes(
  { op, root, counts, size, elementBytes }: CollectiveArguments,
  i: number,
  j: number,
  n: number,
): number {
  switch (op) {
    case "allGather":
      return counts[i]! * elementBytes;
    case "reduceScatter":
    case "allToAll":
      return counts[j]! * elementBytes;
    case "broadcast":
      return i === root ? size * elementBytes : 0;
    default:
      return ((2 * size) / n) * elementBytes;
  }
}

/**
 * Returns the transfer to the next rank. Every rank passes on all shares but one, in an allReduce twice; in a
 * broadcast, the whole tensor.
 */
function ringTransfer(
  ranks: readonly number[],
  rank: number,
  { op, root, counts, size, elementBytes }: CollectiveArguments,
): PeerTransfer {
  const n = ranks.length;
  const nextIndex = (rank + 1) % n;
  const nextRank = ranks[nextIndex]!;
  if (op === "broadcast") return { peerRank: nextRank, bytes: nextIndex === root ? 0 : size * elementBytes };
  if (op === "allReduce") return { peerRank: nextRank, bytes: ((2 * (n - 1)) / n) * size * elementBytes };
  const total = counts.reduce((sum, count) => sum + count, 0);
  // A gathered share is not sent by the rank before its owner; a scattered share is not sent by its owner.
  const skippedCount = op === "allGather" ? counts[nextIndex]! : counts[rank]!;
  return { peerRank: nextRank, bytes: (total - skippedCount) * elementBytes };
}

/** Returns the longest latency, in seconds, of the links that a collective uses. */
export function maxLatency(profile: Profile, ranks: readonly number[]): number {
  const [first] = ranks as [number];
  const hasInterNodeLink = ranks.some((rank) => linkClass(profile, first, rank) === "inter-node");
  return profile.links[hasInterNodeLink ? "inter-node" : "intra-node"].latency;
}
