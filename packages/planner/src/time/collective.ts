import type { Op } from "../symbolic/tape.ts";
import type { Profile } from "./profile.ts";
import { linkClass } from "./profile.ts";

/** What one member of a collective brings. Counts are elements, by rank in the group. */
export interface Part {
  readonly op: Op;
  /** Rank in the group of the broadcast's root. */
  readonly root: number;
  readonly counts: readonly number[];
  /** Elements of the whole tensor. */
  readonly size: number;
  readonly elementBytes: number;
}

/** Bytes that move from one world rank to another, in one stretch. */
export interface Load {
  readonly from: number;
  readonly to: number;
  readonly bytes: number;
}

/** What a collective comes to: bytes between ranks, and how many latencies follow one another. */
export interface Traffic {
  readonly loads: readonly Load[];
  readonly steps: number;
}

/**
 * The messages of a collective. Direct: every share goes straight to whom it is for, all at once. Ring: shares go round, so
 * that each rank sends only to its right neighbour, in one step less than there are ranks; an allReduce goes round twice.
 */
export function trafficOf(profile: Profile, ranks: readonly number[], parts: readonly Part[]): Traffic {
  const [{ op }] = parts as [Part];
  const n = ranks.length;
  if (op === "barrier") return { loads: [], steps: Math.ceil(Math.log2(n)) };
  const ring = profile.collectives === "ring" && op !== "allToAll";
  if (ring) return { loads: around(ranks, parts), steps: (op === "allReduce" ? 2 : 1) * (n - 1) };
  const loads: Load[] = [];
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      const bytes = i === j ? 0 : directBytes(parts, i, j);
      if (bytes > 0) loads.push({ from: ranks[i]!, to: ranks[j]!, bytes });
    }
  }
  return { loads, steps: op === "allReduce" ? 2 : 1 };
}

function directBytes(parts: readonly Part[], i: number, j: number): number {
  const { op, root, counts, size, elementBytes } = parts[i]!;
  switch (op) {
    case "allGather":
      return counts[i]! * elementBytes;
    case "reduceScatter":
    case "allToAll":
      return counts[j]! * elementBytes;
    case "broadcast":
      return i === root ? size * elementBytes : 0;
    default:
      return ((2 * size) / parts.length) * elementBytes;
  }
}

/** Every rank passes on all but one share, of an allReduce twice, of a broadcast the whole. */
function around(ranks: readonly number[], parts: readonly Part[]): Load[] {
  const n = ranks.length;
  return ranks.map((from, i) => {
    const { op, root, counts, size, elementBytes } = parts[i]!;
    const to = ranks[(i + 1) % n]!;
    if (op === "broadcast") return { from, to, bytes: (i + 1) % n === root ? 0 : size * elementBytes };
    if (op === "allReduce") return { from, to, bytes: ((2 * (n - 1)) / n) * size * elementBytes };
    const total = counts.reduce((sum, count) => sum + count, 0);
    // A gathered share is not sent on by the rank before its owner; a scattered one is not by its owner.
    const kept = op === "allGather" ? counts[(i + 1) % n]! : counts[i]!;
    return { from, to, bytes: (total - kept) * elementBytes };
  });
}

/** Seconds of the longest latency among the links that a collective uses. */
export function latencyOf(profile: Profile, ranks: readonly number[]): number {
  const [first] = ranks as [number];
  const far = ranks.some((rank) => linkClass(profile, first, rank) === "inter-node");
  return profile.links[far ? "inter-node" : "intra-node"].latency;
}
