import { CollectiveMessages, type CollectiveSizes } from "../collective-messages.ts";
import type { Profile } from "./profile.ts";
import { linkClass } from "./profile.ts";

/** Bytes of one transfer to a world rank. */
export interface PeerTransfer {
  readonly peerRank: number;
  readonly bytes: number;
}

/** Traffic of a collective on one of its members: bytes to other ranks, and the seconds of consecutive latencies. */
export interface CollectiveTraffic {
  readonly transfers: readonly PeerTransfer[];
  readonly latency: number;
}

/**
 * Returns the messages that member `rank` of a collective sends. Direct: every share is sent straight to its receivers,
 * all at once, but to each other node once and forwarded there if several ranks share it. Ring: shares pass from rank to
 * rank, so that each rank sends only to its right neighbor, in one step fewer than there are ranks; an allReduce takes
 * two rounds.
 */
// oxlint-disable-next-line max-params -- profile, group, member, and its arguments
export function collectiveTraffic(
  profile: Profile,
  ranks: readonly number[],
  rank: number,
  collective: CollectiveSizes,
): CollectiveTraffic {
  const { op, elementBytes } = collective;
  const n = ranks.length;
  const stepLatency = maxLatency(profile, ranks);
  if (op === "barrier") return { transfers: [], latency: Math.ceil(Math.log2(n)) * stepLatency };
  if (profile.collectives === "ring" && op !== "allToAll") {
    const steps = (op === "allReduce" ? 2 : 1) * (n - 1);
    return { transfers: [ringTransfer(ranks, rank, collective)], latency: steps * stepLatency };
  }
  const nodes = ranks.map((worldRank) => Math.floor(worldRank / profile.ranksPerNode));
  const messages = new CollectiveMessages(n, nodes);
  const bytesByPeer = new Map<number, number>();
  for (const { peer, isSent, elements } of messages.ofMember(rank, collective)) {
    if (isSent) bytesByPeer.set(peer, (bytesByPeer.get(peer) ?? 0) + elements * elementBytes);
  }
  const transfers = [...bytesByPeer]
    .toSorted(([a], [b]) => a - b)
    .map(([peer, bytes]) => ({ peerRank: ranks[peer]!, bytes }));
  const { direct, forwarded } = messages.steps(op);
  return { transfers, latency: direct * stepLatency + forwarded * profile.links["intra-node"].latency };
}

/**
 * Returns the transfer to the next rank. Every rank passes on all shares but one, in an allReduce twice; in a
 * broadcast, the whole tensor.
 */
function ringTransfer(
  ranks: readonly number[],
  rank: number,
  { op, root, counts, size, elementBytes }: CollectiveSizes,
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
function maxLatency(profile: Profile, ranks: readonly number[]): number {
  const [first] = ranks as [number];
  const hasInterNodeLink = ranks.some((rank) => linkClass(profile, first, rank) === "inter-node");
  return profile.links[hasInterNodeLink ? "inter-node" : "intra-node"].latency;
}
