import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { type AttentionBackend, type Coordinate, masks, zigzag } from "@mosaic/core";
import { type AttentionRecord, count, countLinks, type TrafficTotals, linkClasses, record } from "@mosaic/planner";

/** What the mean rank sends in one attention. */
interface SentVolume {
  /** In chunks of queries, the papers' unit: B·H·(n/p)·D numbers, of whatever width. */
  readonly chunks: number;
  readonly bytes: number;
}

export interface Volumes {
  readonly forward: SentVolume;
  readonly backward: SentVolume;
  readonly both: SentVolume;
  /** Of `both`, what goes to ranks of other nodes. */
  readonly betweenNodes: SentVolume;
}

/** Counts a record: neighbours, `ranksPerNode` at a time, are a node. */
export function countVolumes(record: AttentionRecord, ranksPerNode: number): Volumes {
  const { chunk } = count(record);
  const ranks = countLinks(record, { ranksPerNode });
  const computeMeanVolume = (flows: readonly TrafficTotals[]): SentVolume => ({
    chunks: flows.reduce((sum, { elements }) => sum + elements, 0) / ranks.length / chunk,
    bytes: flows.reduce((sum, { bytes }) => sum + bytes, 0) / ranks.length,
  });
  const forward = computeMeanVolume(ranks.flatMap((rank) => linkClasses.map((kind) => rank.forward[kind].sent)));
  const backward = computeMeanVolume(ranks.flatMap((rank) => linkClasses.map((kind) => rank.backward[kind].sent)));
  return {
    forward,
    backward,
    both: { chunks: forward.chunks + backward.chunks, bytes: forward.bytes + backward.bytes },
    betweenNodes: computeMeanVolume(
      ranks.flatMap((rank) => [rank.forward["inter-node"].sent, rank.backward["inter-node"].sent]),
    ),
  };
}

/** How much less than `reference`, as a share of it. */
export function computeSaving(value: number, reference: number): number {
  return 1 - value / reference;
}

/** Chunks in one pass each way. */
export interface ChunksPerPass {
  readonly forward: number;
  readonly backward: number;
}

/** By the papers' analysis: all messages of one width, statistics left out; g query heads share a KV head. */
export const formulas = {
  /** Gradients go home after p − 1 hops, ours; `hops` p is what the papers' ring takes. */
  ring: (p: number, g: number, hops: number = p - 1): ChunksPerPass => ({
    forward: (2 / g) * (p - 1),
    backward: (2 / g) * (p - 1) + (2 / g) * hops,
  }),
  /** A tile of a chunks of queries and b of keys; Attention2D also transposes the grid, `transpose` 1. */
  tile: ([a, b]: readonly [number, number], g: number, numTransposes: 0 | 1 = 0): ChunksPerPass => ({
    forward: 2 * (a - 1) + (2 / g) * (b - 1) + (2 / g) * numTransposes,
    backward: 3 * (a - 1) + (4 / g) * (b - 1) + (2 / g) * numTransposes,
  }),
} as const;

/** A way to attend on some number of ranks. */
export interface MeshStrategy {
  readonly name: string;
  readonly mesh: Coordinate;
  readonly backend: AttentionBackend;
}

export function ringStrategy(ranks: number): MeshStrategy {
  return { name: "ring", mesh: { sp: ranks }, backend: ring() };
}

/** A tile as the papers name it: `a` chunks of queries × `b` of keys, a·b ranks; the `a` ranks of a row are neighbours. */
export function tileStrategy(
  [a, b]: readonly [number, number],
  schedule: "overlapped" | "fused" = "overlapped",
): MeshStrategy {
  return { name: `mesh2d ${a}×${b} ${schedule}`, mesh: { sp: a * b }, backend: mesh2d({ shape: [b, a], schedule }) };
}

/** What is attended to: a causal mask over `tokens`, in bfloat16. */
export interface Problem {
  readonly tokens: number;
  readonly numHeads: number;
  /** As many as heads if absent. */
  readonly numKvHeads?: number;
  readonly headDim: number;
}

/** Balanced by zigzag, forward and backward, by the backend's own code on symbolic devices. */
export function recordProblem({ backend, mesh }: MeshStrategy, problem: Problem): AttentionRecord {
  return record({ ...problem, backend, mesh, mask: masks.causal(), placement: zigzag() });
}
