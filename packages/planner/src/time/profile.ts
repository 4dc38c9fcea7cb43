import { checkCount } from "../options.ts";
import type { DType } from "@mosaic/core";

/** How two ranks are joined: a rank to itself, ranks of one node, ranks of different nodes. */
export const linkClasses = ["self", "intra-node", "inter-node"] as const;
export type LinkClass = (typeof linkClasses)[number];

/**
 * What joins ranks. A message of S bytes that has a port to itself takes latency + S / bandwidth (Hockney's α and 1/β);
 * messages at the same port share its bandwidth evenly.
 */
export interface Link {
  /** Seconds from when both sides have come until the first byte moves. */
  readonly latency: number;
  /** Bytes per second of one port: each way if it is duplex, else both ways together. */
  readonly bandwidth: number;
  /** Ranks of a node that share a port; 1 where each has its own. */
  readonly sharedBy: number;
  /** Whether what a port sends leaves what it receives alone. */
  readonly duplex: boolean;
}

/**
 * Speed of an attention kernel for one dtype. Of P visible pairs of a query and a key, counted over all heads of size D,
 * it computes F · (D + halfDim) · (P + halfKeys · rows + halfRows · keys) floating-point operations, F = 4 forward and 10
 * backward, rows and keys over all heads too. So a tile of `halfKeys` keys (of many rows) runs at half of full speed:
 * Hockney's n½, in each dimension.
 */
export interface AttentionSpeed {
  /** Floating-point operations per second reached on large tiles. */
  readonly flops: number;
  readonly halfRows: number;
  readonly halfKeys: number;
  readonly halfDim: number;
  /** How many times as long it takes where the rows of a head do not lie side by side, but the heads of a row; 1 if absent. */
  readonly interleaved?: number;
}

/** How much of a device one call can fill: `units` multiprocessors each take `rows` query rows of a head at a time. */
export interface Waves {
  readonly units: number;
  readonly rows: number;
}

/** How long kernels take on one rank that has its device, or its cores, to itself. */
export interface KernelSpeeds {
  /** Seconds that every kernel takes besides. */
  readonly launch: number;
  /** Bytes per second, read and written, of copies, sums, merges and all that only moves memory. */
  readonly bandwidth: number;
  /** Floating-point operations per second of matrix products. */
  readonly matmul: number;
  readonly attend: Readonly<Partial<Record<DType, AttentionSpeed>>>;
  readonly attendBackward: Readonly<Partial<Record<DType, AttentionSpeed>>>;
  /** Absent where a call of any size fills the device. */
  readonly waves?: Waves;
}

/** Cores that the ranks of a node share: kernels and messages alike slow down when more of them run than there are cores. */
export interface SharedCores {
  /** What all cores together achieve, in units of one rank alone: 2 on two cores, less where memory limits them. */
  readonly perNode: number;
}

/**
 * A machine, as far as time goes. Plain data: `JSON.stringify` writes it, `parseProfile` reads and checks it. Seconds, bytes
 * and their ratios throughout.
 */
export interface Profile {
  readonly name: string;
  /** Ranks 0 … ranksPerNode − 1 are the first node's, and so on. */
  readonly ranksPerNode: number;
  readonly links: Readonly<Record<LinkClass, Link>>;
  readonly kernels: KernelSpeeds;
  /** Seconds that the host takes to enqueue one operation; nothing begins before it is enqueued. */
  readonly enqueue: number;
  /** Share of a rank's compute that its communication takes while bytes move: multiprocessors lent to it. */
  readonly communicationTax: number;
  /** Which algorithm collectives follow; allToAll is always direct. sendRecv states its own transfers. */
  readonly collectives: "direct" | "ring";
  /** Whether a rank runs one collective at a time, or one of each group. */
  readonly channels: "rank" | "group";
  /** Only where ranks of a node share cores. */
  readonly cores?: SharedCores;
}

/** The class of the link between two world ranks. */
export function linkClass(profile: Pick<Profile, "ranksPerNode">, a: number, b: number): LinkClass {
  checkCount("linkClass", "ranksPerNode", profile?.ranksPerNode);
  for (const rank of [a, b]) checkCount("linkClass", "rank", rank, { min: 0 });
  if (a === b) return "self";
  const { ranksPerNode } = profile;
  return Math.floor(a / ranksPerNode) === Math.floor(b / ranksPerNode) ? "intra-node" : "inter-node";
}
