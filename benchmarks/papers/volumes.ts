import { type AttentionRecord, count, countLinks, type Flow, linkClasses } from "@mosaic/planner";

/** What the mean rank sends in one attention. */
export interface Sent {
  /** In chunks of queries, the papers' unit: B·H·(n/p)·D numbers, of whatever width. */
  readonly chunks: number;
  readonly bytes: number;
}

export interface Volumes {
  readonly forward: Sent;
  readonly backward: Sent;
  readonly both: Sent;
  /** Of `both`, what goes to ranks of other nodes. */
  readonly betweenNodes: Sent;
}

/** Counts a record: neighbours, `ranksPerNode` at a time, are a node. */
export function volumesOf(record: AttentionRecord, ranksPerNode: number): Volumes {
  const { chunk } = count(record);
  const ranks = countLinks(record, { ranksPerNode });
  const mean = (flows: readonly Flow[]): Sent => ({
    chunks: flows.reduce((sum, { elements }) => sum + elements, 0) / ranks.length / chunk,
    bytes: flows.reduce((sum, { bytes }) => sum + bytes, 0) / ranks.length,
  });
  const forward = mean(ranks.flatMap((rank) => linkClasses.map((kind) => rank.forward[kind].sent)));
  const backward = mean(ranks.flatMap((rank) => linkClasses.map((kind) => rank.backward[kind].sent)));
  return {
    forward,
    backward,
    both: { chunks: forward.chunks + backward.chunks, bytes: forward.bytes + backward.bytes },
    betweenNodes: mean(ranks.flatMap((rank) => [rank.forward["inter-node"].sent, rank.backward["inter-node"].sent])),
  };
}

/** How much less than `reference`, as a share of it. */
export function below(value: number, reference: number): number {
  return 1 - value / reference;
}

/** Chunks in one pass each way. */
export interface Passes {
  readonly forward: number;
  readonly backward: number;
}

/** By the papers' analysis: all messages of one width, statistics left out; g query heads share a key head. */
export const formulas = {
  /** Gradients go home after p − 1 hops, ours; `hops` p is what the papers' ring takes. */
  ring: (p: number, g: number, hops: number = p - 1): Passes => ({
    forward: (2 / g) * (p - 1),
    backward: (2 / g) * (p - 1) + (2 / g) * hops,
  }),
  /** A tile of a chunks of queries and b of keys; Attention2D also transposes the grid, `transpose` 1. */
  tile: ([a, b]: readonly [number, number], g: number, transpose: 0 | 1 = 0): Passes => ({
    forward: 2 * (a - 1) + (2 / g) * (b - 1) + (2 / g) * transpose,
    backward: 3 * (a - 1) + (4 / g) * (b - 1) + (2 / g) * transpose,
  }),
} as const;
