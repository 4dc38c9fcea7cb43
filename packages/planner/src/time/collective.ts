import type { TapeOp } from "../symbolic/tape.ts";
import type { Profile } from "./profile.ts";
import { linkClass } from "./profile.ts";

/** What one member of a collective brings. Counts are elements, by rank in the group. */
export interface CollectiveArguments {
  readonly op: TapeOp;
  /** Rank in the group of the broadcast's root. */
  readonly root: number;
  readonly counts: readonly number[];
  /** Elements of the whole tensor. */
  readonly size: number;
  readonly elementBytes: number;
}

/** Bytes that move to a world rank, in one stretch. */
export interface PeerTransfer {
  readonly peerRank: number;
  readonly bytes: number;
}

/** What a collective comes to for one of its members: bytes to others, and how many latencies follow one another. */
export interface CollectiveTraffic {
  readonly transfers: readonly PeerTransfer[];
  readonly steps: number;
}

/**
 * The messages that member `rank` of a collective sends. Direct: every share goes straight to whom it is for, all at once.
 * Ring: shares pass from rank to rank, so that each rank sends only to its right neighbour, in one step less than there are ranks; an
 * allReduce takes two rounds.
 */
// oxlint-disable-next-line max-params -- the machine, the group, and what one of its members brings
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

// oxlint-disable-next-line max-params -- of what, from whom to whom, of how many
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

/** Every rank passes on all but one share, of an allReduce twice, of a broadcast the whole. */
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
  // A gathered share is not sent on by the rank before its owner; a scattered one is not by its owner.
  const skippedCount = op === "allGather" ? counts[nextIndex]! : counts[rank]!;
  return { peerRank: nextRank, bytes: (total - skippedCount) * elementBytes };
}

/** Seconds of the longest latency among the links that a collective uses. */
export function maxLatency(profile: Profile, ranks: readonly number[]): number {
  const [first] = ranks as [number];
  const hasInterNodeLink = ranks.some((rank) => linkClass(profile, first, rank) === "inter-node");
  return profile.links[hasInterNodeLink ? "inter-node" : "intra-node"].latency;
}
